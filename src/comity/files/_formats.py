"""Files of tensors in three formats. Headers are read at once, numbers when they are used."""

import math
import os
import pickle
import sys
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from comity._errors import ComityError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool,
    "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "U32": torch.uint32,
    "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Torch's dtypes by the names that safetensors gives them."""
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
"""Kinds of numbers that rules combine."""
COUNTERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
"""Kinds that are copied from the base. Any other kind has to be excluded by name."""

STATE_DICTS = ("state_dict", "model_state_dict", "model")
"""Keys under which trainers save the state dict beside other things (NVFlare: ``model``)."""
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
"""What the standard library raises for a damaged or encrypted archive."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as its file describes it."""

    shape: tuple[int, ...]
    kind: str
    whole: bool = False
    """Whether it is read into memory as a whole because its file cannot be mapped or is not in row-major order."""

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind]

    @property
    def itemsize(self) -> int:
        return DTYPES.get(self.kind, torch.uint8).itemsize

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


class WeightFile:
    """A file of tensors, mapped into memory."""

    metadata: Mapping[str, str] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mapped = math.inf
        """Bytes that may be read before the file is mapped anew, which returns its pages to the system."""
        self.ties: dict[str, str] = {}
        """Tensors that are the same bytes as an earlier one, and the name of that one."""
        self._lock = threading.Lock()
        try:
            with path.open("rb") as file:
                self.zipped, self._identity = file.read(4) == b"PK\3\4", self._state()
        except OSError as error:
            raise self.wrong(f"it cannot be read ({error.strerror})") from error
        self._read = 0
        self._held: dict[str, Tensor] = {}  # the last tensor that was read as a whole
        self._tensor = self.map()
        self.entries = self.describe()

    def map(self) -> Callable[[str], Tensor]:
        """Map the file and return what gives a tensor by name."""
        raise NotImplementedError

    def describe(self) -> dict[str, StoredTensor]:
        raise NotImplementedError

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Numbers ``start`` to ``stop`` of a tensor in row-major order. Mapped ones are read when they are used."""
        entry = self.entries[name]
        with self._lock:
            if not self.path.exists() or self._state() != self._identity:
                raise self.wrong("it changed while it was being read")
            size = ((entry.numel if stop is None else stop) - start) * entry.itemsize
            if self._read + size > self.mapped:
                self._tensor, self._read = self.map(), 0
            self._read += size
            flat = self._held.pop(name, None)
            self._held.clear()
            if flat is None:
                flat = self._tensor(name).reshape(-1)
            if entry.whole:
                self._held[name] = flat
            return flat[start:stop]

    def _state(self) -> tuple[int, ...]:
        state = os.stat(self.path)
        return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns

    def wrong(self, reason: str) -> ComityError:
        return ComityError(f"{self.path}: {reason}")


class SafetensorsFile(WeightFile):
    """The library checks sizes, overlaps and gaps, and maps the tensors."""

    def map(self) -> Callable[[str], Tensor]:
        try:
            self._file: Any = safe_open(self.path, framework="pt")
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise self.wrong(f"it is not a safetensors file, or cut short ({_line(error)})") from error
        return self._get

    def _get(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._file.get_tensor(name)
            return tensor
        except (SafetensorError, RuntimeError, ValueError, AttributeError) as error:
            raise self.wrong(f"tensor {name!r} cannot be read ({_line(error)})") from error

    def describe(self) -> dict[str, StoredTensor]:
        self.metadata = self._file.metadata()
        names = getattr(self._file, "offset_keys", self._file.keys)()  # old versions do not know the order
        slices = {name: self._file.get_slice(name) for name in names}
        return {name: StoredTensor(tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()}


class TorchFile(WeightFile):
    """What torch.save wrote, loaded without running code: tensors and plain values only."""

    def map(self) -> Callable[[str], Tensor]:
        if not hasattr(self, "entries"):
            self._check_archive()
        try:
            loaded = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError as error:
            reason = "it holds more than tensors and plain values, which is not safe to load"
            raise self.wrong(f"{reason}; save the state dict alone") from error
        except Exception as error:  # an unpickler that is fed with anything may raise anything
            raise self.wrong(f"torch cannot load it ({_line(error)})") from error
        self._tensors = _state_dict(loaded)
        return self._tensors.__getitem__

    def _check_archive(self) -> None:
        """Reject what torch.load would unpack without limit, read in the wrong byte order, or run."""
        if not self.zipped:
            raise self.wrong("it is not a torch file, or older than torch 1.6: load it and torch.save it again")
        try:
            with zipfile.ZipFile(self.path) as archive:
                self._sizes = {info.file_size for info in archive.infolist()}
                for info in archive.infolist():
                    if info.compress_type or info.compress_size != info.file_size:
                        raise self.wrong("it is a compressed archive, which torch.save does not write")
                    if info.filename.lower().endswith("byteorder"):
                        with archive.open(info) as order:
                            if order.read(8) != sys.byteorder.encode():
                                raise self.wrong(f"its byte order is not {sys.byteorder}-endian; convert it first")
        except BROKEN as error:
            raise self.wrong(f"it is a broken torch file, or cut short ({_line(error)})") from error

    def describe(self) -> dict[str, StoredTensor]:
        if not self._tensors:
            raise self.wrong("it holds no state dict: no tensors by name")
        entries: dict[str, StoredTensor] = {}
        places: dict[object, str] = {}
        for name, tensor in self._tensors.items():
            kind, shape = KINDS.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape)
            if tensor.layout != torch.strided or tensor.is_quantized:
                kind = str(tensor.layout)
            elif tensor.nbytes > tensor.untyped_storage().nbytes():
                kind = f"an expanded view of {kind}"
            elif tensor.untyped_storage().nbytes() not in self._sizes:
                raise self.wrong(f"tensor {name!r} goes beyond its bytes")
            elif tensor.numel():
                place = tensor.data_ptr(), shape, tensor.stride()
                if (first := places.setdefault(place, name)) != name:
                    self.ties[name] = first
            entries[name] = StoredTensor(shape, kind, kind in DTYPES and not tensor.is_contiguous())
        return entries


class NpzFile(WeightFile):
    """What numpy.savez wrote. Arrays are read as a whole, one at a time."""

    def map(self) -> Callable[[str], Tensor]:
        return self._get

    def _get(self, name: str) -> Tensor:
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as stream:
                array = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read(1)  # at the end of the stream the checksum is compared
                return torch.from_numpy(np.ascontiguousarray(array))
        except BROKEN as error:
            raise self.wrong(f"array {name!r} is broken ({_line(error)})") from error

    def describe(self) -> dict[str, StoredTensor]:
        entries: dict[str, StoredTensor] = {}
        if not self.zipped:
            raise self.wrong("it is not an npz file")
        try:
            with zipfile.ZipFile(self.path) as archive:
                for info in archive.infolist():
                    name = info.filename.removesuffix(".npy")
                    if name in entries:
                        raise self.wrong(f"it holds {name!r} twice")
                    if name != info.filename:
                        entries[name] = self._describe(archive, info, name)
        except BROKEN as error:
            raise self.wrong(f"it is a broken npz file, or cut short ({_line(error)})") from error
        if not entries:
            raise self.wrong("it holds no arrays")
        return entries

    def _describe(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> StoredTensor:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.wrong(f"array {name!r} is compressed by method {info.compress_type}")
        with archive.open(info) as stream:
            # Later versions are for the long headers of structured arrays, which may unpack to gigabytes.
            if (version := np.lib.format.read_magic(stream)) != (1, 0):
                raise ValueError(f"array {name!r} is of version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            stored = info.file_size - stream.tell()
        if dtype.hasobject:
            raise self.wrong(f"array {name!r} holds Python objects, which are not loaded")
        if math.prod(shape) * dtype.itemsize != stored:
            raise ValueError(f"array {name!r} has {stored:,} bytes for shape {shape}")
        try:
            kind = KINDS[torch.from_numpy(np.empty(0, dtype)).dtype]
        except (TypeError, ValueError, KeyError):
            kind = dtype.str
        return StoredTensor(shape, kind, whole=True)


FORMATS: dict[str, type[WeightFile]] = {
    ".safetensors": SafetensorsFile, ".npz": NpzFile, **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), TorchFile)
}  # fmt: skip
"""By the end of a file's name."""


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0]


def _state_dict(loaded: Any) -> dict[str, Tensor]:
    """The tensors by name: those that were loaded, or those under one of the keys that trainers use."""
    if not isinstance(loaded, dict):
        return {}
    for inner in (*(loaded[key] for key in STATE_DICTS if isinstance(loaded.get(key), dict)), loaded):
        found = {name: value for name, value in inner.items() if isinstance(value, Tensor) and isinstance(name, str)}
        if found:
            return found
    return {}
