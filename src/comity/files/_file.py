"""Tensors in a file: where their bytes lie, pieces of them, and the file again with some of them new."""

import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

from comity._errors import ComityError

FLOATS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Kinds of numbers that rules combine, as safetensors names them."""

COUNTERS = frozenset(("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"))
"""Kinds that are copied from the base. What is in neither (float8, complex numbers) has to be left out by name."""

BLOCK = 2**23  # bytes copied at once

Fresh = Mapping[str, Callable[[], Iterator[Tensor]]]
"""New contents by name: each tensor's numbers in pieces, row by row, of the dtype that the file has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    """Of its first byte."""
    stride: tuple[int, ...] | None = None
    """Where its numbers are not row by row: channels last, or Fortran's order."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return FLOATS[self.kind]

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


class WeightFile:
    """What a file holds, known without reading it; each format says how to find out and how to write."""

    shares: ClassVar[bool] = False
    """Whether two of its tensors may be the same bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None
        self._whole: tuple[str, Tensor] | None = None
        self.entries: dict[str, Entry] = self.found()

    def found(self) -> dict[str, Entry]:
        raise NotImplementedError

    def write(self, target: BinaryIO, fresh: Fresh) -> None:
        """This file again, with the tensors in ``fresh`` new."""
        raise NotImplementedError

    def read(self, name: str, start: int, stop: int) -> Tensor:
        """Some of a tensor's numbers, counted row by row. Pieces are asked for in order."""
        entry = self.entries[name]
        if entry.stride is None:
            size = entry.dtype.itemsize
            return self.piece(entry, start * size, stop * size).view(entry.dtype)
        if self._whole is None or self._whole[0] != name:
            numbers = self.piece(entry, 0, entry.nbytes).view(entry.dtype)
            self._whole = name, numbers.as_strided(entry.shape, entry.stride).reshape(-1)
        numbers = self._whole[1][start:stop]
        if stop == entry.numel:
            self._whole = None
        return numbers

    def piece(self, entry: Entry, start: int, stop: int) -> Tensor:
        """Bytes ``start`` to ``stop`` of a tensor."""
        return self.bytes(entry.offset + start, entry.offset + stop)

    def bytes(self, start: int, stop: int) -> Tensor:
        """Bytes ``start`` to ``stop`` of the file."""
        taken = torch.empty(stop - start, dtype=torch.uint8)
        rest = view(taken)
        try:
            with self.opened() as file:
                file.seek(start)
                while len(rest):
                    count = file.readinto(rest)
                    if not count:
                        raise self.wrong("it is cut short")
                    rest = rest[count:]
                if hasattr(os, "posix_fadvise"):  # what comes next is fetched while this is worked on
                    os.posix_fadvise(file.fileno(), stop, stop - start, os.POSIX_FADV_WILLNEED)
        except OSError as error:
            raise self.wrong(f"it cannot be read ({error.strerror})") from error
        return taken

    def opened(self) -> io.FileIO:
        """Opened for each piece: clients times shards would be more files than a process may hold open."""
        try:
            file = io.FileIO(self.path)
        except OSError as error:
            raise self.wrong(f"it cannot be read ({error.strerror})") from error
        state = os.fstat(file.fileno())
        now = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
        self._seen = self._seen or now
        if now != self._seen:
            file.close()
            raise self.wrong("it changed while it was being read")
        return file

    def renewed(self, start: int, stop: int, fresh: Fresh) -> Iterator[memoryview]:
        """Bytes ``start`` to ``stop`` of the file, with those of the tensors in ``fresh`` new."""
        changed = (self.entries[name] for name in fresh)
        here = start
        for entry in sorted(changed, key=lambda entry: entry.offset):
            if entry.numel and start <= entry.offset < stop:
                yield from self._copied(here, entry.offset)
                yield from encoded(entry, fresh[entry.name]())
                here = entry.offset + entry.nbytes
        yield from self._copied(here, stop)

    def _copied(self, start: int, stop: int) -> Iterator[memoryview]:
        for at in range(start, stop, BLOCK):
            yield view(self.bytes(at, min(at + BLOCK, stop)))

    def wrong(self, reason: str) -> ComityError:
        return ComityError(f"{self.path}: {reason}")


def encoded(entry: Entry, pieces: Iterator[Tensor]) -> Iterator[memoryview]:
    """The bytes of a tensor's new numbers, as the entry has them."""
    if entry.stride is None:
        for piece in pieces:
            yield view(piece.contiguous())
    else:
        laid = torch.empty_strided(entry.shape, entry.stride, dtype=entry.dtype)
        laid.copy_(torch.cat(list(pieces)).view(entry.shape))
        yield view(laid.as_strided((entry.numel,), (1,)))


def view(numbers: Tensor) -> memoryview:
    """The bytes of a flat tensor, in its own memory."""
    array: Any = numbers.view(torch.uint8).numpy()
    return memoryview(array)


def dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether strides only change the order of numbers: none is left out and none stands for two."""
    expected = 1
    for step, length in sorted(zip(stride, shape, strict=True)):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True
