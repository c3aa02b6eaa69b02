"""Tensors in a file: where their bytes lie, pieces of them, and the file again with some of them new."""

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

from comity._errors import ComityError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool,
    "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "U32": torch.uint32,
    "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64,
}  # fmt: skip
"""By the names that safetensors gives them."""

FLOATS = {kind: dtype for kind, dtype in DTYPES.items() if dtype.is_floating_point}
"""Kinds of numbers that rules combine."""

COUNTERS = DTYPES.keys() - FLOATS.keys()
"""Kinds that are copied from the base. Other kinds (float8, complex numbers) have to be left out by name."""

BLOCK = 2**23  # bytes copied at once
SHARED = hasattr(os, "preadv")
"""Whether several threads can read an open file, each at its own place."""
AHEAD = 2**21  # bytes after which the system is asked to fetch more

NewTensors = Mapping[str, Callable[[], Iterator[Tensor]]]
"""New contents by name: each tensor's numbers in pieces, row by row, of the dtype that the file has."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file, and where it lies there."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    """Of its first byte."""
    stride: tuple[int, ...] | None = None
    """For numbers that are not stored row by row: channels last, or Fortran's order."""
    packed: bool = False
    """Whether its bytes are compressed."""

    @property
    def in_order(self) -> bool:
        """Whether its pieces must be read one after the other."""
        return self.packed or self.stride is not None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind]

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


class WeightFile:
    """A file with tensors; which ones is known without reading them. Each format says how to find out and write."""

    ties: ClassVar[bool] = False
    """Whether two of its tensors may be the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: tuple[int, ...] | None = None
        self._kept: io.FileIO | None = None
        self._whole: tuple[str, Tensor] | None = None
        self.entries: dict[str, StoredTensor] = self.read_entries()

    def read_entries(self) -> dict[str, StoredTensor]:
        raise NotImplementedError

    def write(self, target: BinaryIO, new: NewTensors) -> None:
        """Write this file again, with the tensors in ``new`` replaced."""
        raise NotImplementedError

    def read(self, name: str, start: int, stop: int, target: memoryview) -> None:
        """Fill ``target`` with some of a tensor's numbers, counted row by row. Pieces are asked for in order."""
        entry = self.entries[name]
        size = entry.dtype.itemsize
        if entry.stride is None:
            self.piece(entry, start * size, stop * size, target)
            return
        if self._whole is None or self._whole[0] != name:
            numbers = torch.empty(entry.numel, dtype=entry.dtype)
            self.piece(entry, 0, entry.nbytes, view(numbers))
            self._whole = name, numbers.as_strided(entry.shape, entry.stride).reshape(-1)
        target[:] = view(self._whole[1][start:stop])
        if stop == entry.numel:
            self._whole = None

    def piece(self, entry: StoredTensor, start: int, stop: int, target: memoryview) -> None:
        """Fill ``target`` with bytes ``start`` to ``stop`` of a tensor."""
        self.fill(target, entry.offset + start)

    def bytes(self, start: int, stop: int) -> bytearray:
        """Bytes ``start`` to ``stop`` of the file."""
        taken = bytearray(stop - start)
        self.fill(memoryview(taken), start)
        return taken

    def fill(self, target: memoryview, start: int) -> None:
        """Read as many bytes as there is room for, from ``start`` on."""
        stop = start + len(target)
        try:
            with self.opened() if self._kept is None else nullcontext(self._kept) as file:
                while target:
                    count = _read_at(file, stop - len(target), target)
                    if not count:
                        raise self.wrong("it is cut short")
                    target = target[count:]
                # The system fetches what comes next while this is worked on.
                if start // AHEAD < stop // AHEAD and hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), stop, AHEAD, os.POSIX_FADV_WILLNEED)
        except OSError as error:
            raise self.wrong(f"it cannot be read ({error.strerror})") from error

    def opened(self) -> io.FileIO:
        """The file, which must still be the one that it was when it was opened first."""
        try:
            file = io.FileIO(self.path)
        except OSError as error:
            raise self.wrong(f"it cannot be read ({error.strerror})") from error
        state = os.fstat(file.fileno())
        identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
        self._identity = self._identity or identity
        if identity != self._identity:
            file.close()
            raise self.wrong("it changed while it was being read")
        return file

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside, the file is opened once for all pieces, which several threads may read at once."""
        with self.opened() as self._kept:
            try:
                yield
            finally:
                self._kept = None

    def renewed(self, start: int, stop: int, new: NewTensors) -> Iterator[memoryview]:
        """Bytes ``start`` to ``stop`` of the file, with those of the tensors in ``new`` replaced."""
        changed = (self.entries[name] for name in new)
        here = start
        for entry in sorted(changed, key=lambda entry: entry.offset):
            if entry.numel and start <= entry.offset < stop:
                yield from self._copied(here, entry.offset)
                yield from encoded(entry, new[entry.name]())
                here = entry.offset + entry.nbytes
        yield from self._copied(here, stop)

    def _copied(self, start: int, stop: int) -> Iterator[memoryview]:
        for at in range(start, stop, BLOCK):
            yield memoryview(self.bytes(at, min(at + BLOCK, stop)))

    def size(self) -> int:
        with self.opened() as file:
            return file.seek(0, 2)

    def wrong(self, reason: str) -> ComityError:
        return ComityError(f"{self.path}: {reason}")


def _read_at(file: io.FileIO, place: int, target: memoryview) -> int | None:
    if SHARED:
        return os.preadv(file.fileno(), [target], place)
    file.seek(place)
    return file.readinto(target)


def encoded(entry: StoredTensor, pieces: Iterator[Tensor]) -> Iterator[memoryview]:
    """The bytes of a tensor's new numbers, in the order in which the file stores them."""
    if entry.stride is None:
        for piece in pieces:
            yield view(piece.contiguous())
    else:
        laid_out = torch.empty_strided(entry.shape, entry.stride, dtype=entry.dtype)
        laid_out.copy_(torch.cat(list(pieces)).view(entry.shape))
        yield view(laid_out.as_strided((entry.numel,), (1,)))


def view(numbers: Tensor) -> memoryview:
    """The bytes of a flat tensor, in its own memory."""
    array: Any = numbers.view(torch.uint8).numpy()
    return memoryview(array)


def is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether strides only change the order of numbers: none is left out and none stands for two."""
    expected = 1
    for step, length in sorted(zip(stride, shape, strict=True)):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True
