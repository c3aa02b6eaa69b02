"""Tensor files in three formats. Headers are read at once, numbers when they are used."""

import math
import pickle
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from comity._errors import ComityError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool,
    "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16, "I16": torch.int16, "U32": torch.uint32,
    "I32": torch.int32, "U64": torch.uint64, "I64": torch.int64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
"""Torch's dtypes by their safetensors names."""
KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
FLOATS = ("F64", "F32", "F16", "BF16")
"""Kinds of numbers that rules combine."""
COUNTERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
"""Kinds that are copied from the base. Any other kind must be excluded by name."""

STATE_DICTS = ("state_dict", "model_state_dict", "model")
"""Keys under which trainers save the state dict beside other data (NVFlare: ``model``)."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Description of a tensor in a file."""

    shape: tuple[int, ...]
    kind: str
    whole: bool = False
    """Whether it is read as a whole, because its file cannot be mapped or is not in row-major order."""

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
    """A memory-mapped file of tensors."""

    format: str
    metadata: Mapping[str, str] | None = None

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mapped = math.inf
        """Bytes that may be read before the file is mapped again, which returns its pages to the system."""
        self.ties: dict[str, str] = {}
        """Tensors that share the bytes of an earlier one, with the name of that one."""
        self._lock = threading.Lock()
        self._read = 0
        self._held: tuple[str, Tensor] | None = None  # the last tensor
        try:
            self._identity = self._state()
            self.entries = self.open()
        except ComityError:
            raise
        except OSError as error:
            raise self.wrong(f"it cannot be read ({error.strerror or error})") from error
        except Exception as error:  # a library may raise anything for malformed input
            raise self.wrong(f"it is not a {self.format} file, or cut short ({error})") from error

    def open(self) -> dict[str, StoredTensor]:
        """Check the file, map it and describe its tensors."""
        raise NotImplementedError

    def map(self) -> None:
        """Map the file again."""

    def tensor(self, name: str) -> Tensor:
        raise NotImplementedError

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Numbers ``start`` to ``stop`` of a tensor in row-major order. Mapped ones are read when used."""
        entry = self.entries[name]
        with self._lock:
            if not self.path.exists() or self._state() != self._identity:
                raise self.wrong("it changed while it was being read")
            size = ((entry.numel if stop is None else stop) - start) * entry.itemsize
            try:
                if self._read + size > self.mapped:
                    self._held = self._held if entry.whole else None
                    self._read = 0
                    self.map()
                self._read += size
                if self._held is None or self._held[0] != name:
                    self._held = None  # two of them might not fit into memory
                    self._held = name, self.tensor(name).reshape(-1)
            except Exception as error:
                raise self.wrong(f"tensor {name!r} cannot be read ({error})") from error
            return self._held[1][start:stop]

    def _state(self) -> tuple[int, ...]:
        state = self.path.stat()
        return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns

    def wrong(self, reason: str) -> ComityError:
        return ComityError(f"{self.path}: {reason}")


class SafetensorsFile(WeightFile):
    """A safetensors file. The library checks sizes, overlaps and gaps, and maps the tensors."""

    format = "safetensors"

    def open(self) -> dict[str, StoredTensor]:
        self.map()
        self.metadata = self._file.metadata()
        names = getattr(self._file, "offset_keys", self._file.keys)()  # old versions do not know the order
        slices = {name: self._file.get_slice(name) for name in names}
        return {name: StoredTensor(tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()}

    def map(self) -> None:
        self._file: Any = safe_open(self.path, framework="pt")

    def tensor(self, name: str) -> Tensor:
        found: Tensor = self._file.get_tensor(name)
        return found


class TorchFile(WeightFile):
    """A file from torch.save, loaded without running code: only tensors and plain values."""

    format = "torch (1.6 or newer)"

    def open(self) -> dict[str, StoredTensor]:
        sizes = self._check_archive()
        try:
            self.map()
        except pickle.UnpicklingError as error:
            reason = "it holds more than tensors and plain values, which is not safe to load"
            raise self.wrong(f"{reason}; save only the state dict") from error
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
            elif tensor.untyped_storage().nbytes() not in sizes:
                raise self.wrong(f"tensor {name!r} goes beyond its bytes")
            elif tensor.numel():
                place = tensor.data_ptr(), shape, tensor.stride()
                if (first := places.setdefault(place, name)) != name:
                    self.ties[name] = first
            entries[name] = StoredTensor(shape, kind, kind in DTYPES and not tensor.is_contiguous())
        return entries

    def _check_archive(self) -> set[int]:
        """Sizes of the archive's parts; rejects what torch.load would unpack without limit or in wrong byte order."""
        with zipfile.ZipFile(self.path) as archive:
            for info in archive.infolist():
                if info.compress_type or info.compress_size != info.file_size:
                    raise self.wrong("it is a compressed archive, which torch.save does not write")
                if info.filename.lower().endswith("byteorder"):
                    with archive.open(info) as order:
                        if order.read(8) != sys.byteorder.encode():
                            raise self.wrong(f"its byte order is not {sys.byteorder}-endian; convert it first")
            return {info.file_size for info in archive.infolist()}

    def map(self) -> None:
        loaded = torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        self._tensors: dict[str, Tensor] = {}
        if isinstance(loaded, dict):
            inner = [loaded[key] for key in STATE_DICTS if isinstance(loaded.get(key), dict)] + [loaded]
            named = ({n: t for n, t in each.items() if isinstance(t, Tensor) and isinstance(n, str)} for each in inner)
            self._tensors = next(filter(None, named), {})

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


class NpzFile(WeightFile):
    """A file from numpy.savez. Arrays are read as a whole, one at a time."""

    format = "npz"

    def open(self) -> dict[str, StoredTensor]:
        with zipfile.ZipFile(self.path) as archive:
            arrays = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            entries = {info.filename.removesuffix(".npy"): self._describe(archive, info) for info in arrays}
        if not entries:
            raise self.wrong("it holds no arrays")
        return entries

    def _describe(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> StoredTensor:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.wrong(f"{info.filename!r} is compressed by method {info.compress_type}")
        with archive.open(info) as stream:
            # later versions are for the long headers of structured arrays, which may unpack to gigabytes
            if (version := np.lib.format.read_magic(stream)) != (1, 0):
                raise ValueError(f"{info.filename!r} is of version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            stored = info.file_size - stream.tell()
        if dtype.hasobject:
            raise self.wrong(f"{info.filename!r} holds Python objects, which are not loaded")
        if math.prod(shape) * dtype.itemsize != stored:
            raise ValueError(f"{info.filename!r} has {stored:,} bytes for shape {shape}")
        try:
            kind = KINDS[torch.from_numpy(np.empty(0, dtype)).dtype]
        except (TypeError, ValueError, KeyError):
            kind = dtype.str
        return StoredTensor(shape, kind, whole=True)

    def tensor(self, name: str) -> Tensor:
        with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            stream.read(1)  # the checksum is compared at the end of the stream
            return torch.from_numpy(np.ascontiguousarray(array))


FORMATS: dict[str, type[WeightFile]] = {
    ".safetensors": SafetensorsFile, ".npz": NpzFile, **dict.fromkeys((".pt", ".pth", ".bin", ".ckpt"), TorchFile)
}  # fmt: skip
"""Readers by file extension."""
