"""Files that are ZIP archives: those of torch.save and of numpy.savez."""

import pickle
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import IO, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.files._file import BLOCK, DTYPES, NewTensors, StoredTensor, WeightFile, encoded, is_dense

TORCH_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
NUMPY_KINDS = {
    torch.empty(0, dtype=dtype).numpy().dtype.str: kind for kind, dtype in DTYPES.items() if dtype != torch.bfloat16
}
WRAPPED = ("state_dict", "model_state_dict", "model")
"""Keys under which trainers save the state dict beside other things (NVFlare: ``model``)."""

BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error)
"""What the standard library raises at a broken archive; a RuntimeError if it has a password."""


class ArchivedFile(NamedTuple):
    """A file that is in an archive without compression, and where its bytes lie there."""

    info: zipfile.ZipInfo
    start: int
    stop: int


class Archive(WeightFile):
    """What the two formats have in common."""

    def unzipped(self, otherwise: str) -> zipfile.ZipFile:
        with self.opened() as file:
            if file.read(4) != b"PK\3\4":
                raise self.wrong(otherwise)
        return zipfile.ZipFile(self.path)

    def members(self, archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, int]]:
        """Each file of the archive and where its bytes begin."""
        for info in archive.infolist():
            header = self.bytes(info.header_offset, info.header_offset + 30)
            signature, name, extra = struct.unpack("<4s22xHH", header)
            if signature != b"PK\3\4" or info.flag_bits & 1:
                raise self.wrong("it is a broken archive, or an encrypted one")
            yield info, info.header_offset + 30 + name + extra


class TorchFile(Archive):
    """What torch.save wrote: a pickle that says what the tensors are, and their storages as files of an archive."""

    ties = True

    def read_entries(self) -> dict[str, StoredTensor]:
        try:
            with self.unzipped("it is not a torch file, or older than torch 1.6: torch.save it again") as archive:
                self.directory = archive.start_dir
                members = [ArchivedFile(info, at, at + info.file_size) for info, at in self.members(archive)]
        except BROKEN as error:
            raise self.wrong(f"it is a broken torch file, or cut short ({error})") from error
        # torch.save compresses nothing, and a small pickle may unpack to gigabytes.
        if any(member.info.compress_type or member.info.compress_size != member.info.file_size for member in members):
            raise self.wrong("it is a compressed archive, which torch.save does not write")
        self.storages = {member.start: member for member in members if "/data/" in member.info.filename}
        entries = {name: self._entry(name, tensor) for name, tensor in state_dict(self._loaded()).items()}
        if not entries:
            raise self.wrong("it holds no state dict: no tensors by name")
        return entries

    def _loaded(self) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.load(self.path, map_location="meta", weights_only=True)
        except pickle.UnpicklingError as error:
            reason = "it holds more than tensors and plain values, which is not safe to load"
            raise self.wrong(f"{reason}; save the state dict alone") from error
        except Exception as error:  # an unpickler that is fed with anything may raise anything
            raise self.wrong(
                f"torch cannot load it ({str(error).splitlines()[0] if str(error) else error!r})"
            ) from error

    def _entry(self, name: str, tensor: Tensor) -> StoredTensor:
        kind, shape = TORCH_KINDS.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape)
        if tensor.layout != torch.strided or tensor.is_quantized:
            return StoredTensor(name, shape, str(tensor.layout), 0)
        if not tensor.numel():
            return StoredTensor(name, shape, kind, 0)
        # torch notes this where it loads to the meta device.
        offset = getattr(tensor.untyped_storage(), "_checkpoint_offset", None)
        if offset is None:
            raise self.wrong(f"torch {torch.__version__} does not say where its tensors lie; a newer torch does")
        member, first = self.storages.get(offset), tensor.storage_offset() * tensor.element_size()
        if member is None:
            raise self.wrong(f"tensor {name!r} is not where the file says it is")
        stride = None if tensor.is_contiguous() else tuple(tensor.stride())
        if stride is not None and not is_dense(shape, stride):
            return StoredTensor(name, shape, f"a view with gaps of {kind}", 0)
        if member.start + first + tensor.numel() * tensor.element_size() > member.stop:
            raise self.wrong(f"tensor {name!r} goes beyond its bytes")
        return StoredTensor(name, shape, kind, member.start + int(first), stride)

    def write(self, target: BinaryIO, new: NewTensors) -> None:
        """Every byte stays in its place, for torch computes where storages lie; only checksums are corrected."""
        changed = [self.entries[name].offset for name in new if self.entries[name].numel]
        sums: dict[int, int] = {}
        here = 0
        for member in sorted(self.storages.values(), key=lambda member: member.start):
            if any(member.start <= offset < member.stop for offset in changed):
                for block in self.renewed(here, member.start, {}):
                    target.write(block)
                total = 0
                for block in self.renewed(member.start, member.stop, new):
                    total = zlib.crc32(block, total)
                    target.write(block)
                sums[member.start] = total
                here = member.stop
        for block in self.renewed(here, self.size(), {}):
            target.write(block)
        self._correct_checksums(target, sums)

    def _correct_checksums(self, target: BinaryIO, sums: Mapping[int, int]) -> None:
        """A checksum stands in the archive's directory, and either before or after the bytes of its file."""
        with zipfile.ZipFile(self.path) as archive:
            at = self.directory
            for info, start in self.members(archive):
                _, name, extra, comment = struct.unpack("<4s24xHHH", self.bytes(at, at + 34))
                if start in sums:
                    stop = start + info.file_size
                    after = bool(info.flag_bits & 8)
                    signed = after and self.bytes(stop, stop + 4) == b"PK\7\x08"
                    for place in (at + 16, stop + 4 * signed if after else info.header_offset + 14):
                        target.seek(place)
                        target.write(struct.pack("<I", sums[start]))
                at += 46 + name + extra + comment


def state_dict(loaded: Any) -> dict[str, Tensor]:
    """The tensors by name: those that were loaded, or those under one of the keys that trainers use."""
    if not isinstance(loaded, dict):
        return {}
    for inner in (*(loaded[key] for key in WRAPPED if isinstance(loaded.get(key), dict)), loaded):
        found = {name: value for name, value in inner.items() if isinstance(value, Tensor) and isinstance(name, str)}
        if found:
            return found
    return {}


class NpzFile(Archive):
    """What numpy.savez wrote: arrays as files of an archive, each after a short header."""

    def read_entries(self) -> dict[str, StoredTensor]:
        self._stream: Inflating | None = None
        self.headers: dict[str, tuple[zipfile.ZipInfo, int, bytes]] = {}
        entries: dict[str, StoredTensor] = {}
        try:
            with self.unzipped("it is not an npz file") as archive:
                for info, start in self.members(archive):
                    if info.filename.endswith(".npy"):
                        entry = self._entry(archive, info, start)
                        if entry.name in entries:
                            raise self.wrong(f"it holds {entry.name!r} twice")
                        entries[entry.name] = entry
        except BROKEN as error:
            raise self.wrong(f"it is a broken npz file, or cut short ({error})") from error
        if not entries:
            raise self.wrong("it holds no arrays")
        return entries

    def _entry(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, start: int) -> StoredTensor:
        name = info.filename.removesuffix(".npy")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self.wrong(f"array {name!r} is compressed by method {info.compress_type}")
        with archive.open(info) as stream:
            # Later versions are for the long headers of structured arrays, which may unpack to gigabytes.
            if (version := np.lib.format.read_magic(stream)) != (1, 0):
                raise ValueError(f"array {name!r} is of version {version}")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            length = stream.tell()
        if dtype.hasobject:
            raise self.wrong(f"array {name!r} holds Python objects, which are not loaded")
        if length + int(np.prod(shape, dtype=object)) * dtype.itemsize != info.file_size:
            raise ValueError(f"array {name!r} has {info.file_size - length:,} bytes for shape {shape}")
        with archive.open(info) as stream:
            self.headers[name] = info, start, stream.read(length)
        stride = None
        if fortran and len(shape) > 1 and 0 not in shape:
            stride = tuple(int(np.prod(shape[:axis], dtype=object)) for axis in range(len(shape)))
        # The offset of a compressed array counts from the beginning of its own unpacked bytes.
        packed = info.compress_type != zipfile.ZIP_STORED
        offset = length if packed else start + length
        return StoredTensor(name, shape, NUMPY_KINDS.get(dtype.str, dtype.str), offset, stride, packed)

    def piece(self, entry: StoredTensor, start: int, stop: int, target: memoryview) -> None:
        info, begin, _ = self.headers[entry.name]
        if not entry.packed:
            super().piece(entry, start, stop, target)
            return
        try:
            if self._stream is None or self._stream.info is not info or self._stream.at != entry.offset + start:
                self._stream = Inflating(self, info, begin)
                self._stream.skip(entry.offset + start)
            self._stream.into(target)
        except (zlib.error, ValueError) as error:
            raise self.wrong(f"array {entry.name!r} is broken ({error})") from error

    def write(self, target: BinaryIO, new: NewTensors) -> None:
        with zipfile.ZipFile(self.path) as archive, zipfile.ZipFile(target, "w") as written:
            for info in archive.infolist():
                same = zipfile.ZipInfo(info.filename, info.date_time)
                same.compress_type, same.external_attr = info.compress_type, info.external_attr
                name = info.filename.removesuffix(".npy")
                with written.open(same, "w", force_zip64=True) as stream:
                    if name in new and name in self.headers:
                        stream.write(self.headers[name][2])
                        for block in encoded(self.entries[name], new[name]()):
                            stream.write(block)
                    else:
                        self._copy(archive, info, stream)

    def _copy(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: IO[bytes]) -> None:
        try:
            with archive.open(info) as old:
                shutil.copyfileobj(old, target, BLOCK)
        except BROKEN as error:
            raise self.wrong(f"{info.filename!r} is broken ({error})") from error


class Inflating:
    """A compressed file of an archive, unpacked piece by piece from its beginning; no file stays open in between."""

    def __init__(self, file: WeightFile, info: zipfile.ZipInfo, start: int) -> None:
        self.file, self.info = file, info
        self.at = 0
        self._next, self._end = start, start + info.compress_size
        self._packed: bytes | bytearray = b""
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._sum = 0

    def skip(self, to: int) -> None:
        while self.at < to:
            self.into(memoryview(bytearray(min(BLOCK, to - self.at))))

    def into(self, space: memoryview) -> None:
        while len(space):
            if not self._packed:
                stop = min(self._next + BLOCK, self._end)
                self._packed, self._next = self.file.bytes(self._next, stop), stop
            block = self._inflate.decompress(self._packed, min(len(space), BLOCK))
            if not block and (self._inflate.eof or self._next == self._end):
                raise ValueError("it ends too early")
            self._packed = self._inflate.unconsumed_tail
            space[: len(block)] = block
            space = space[len(block) :]
            self._sum = zlib.crc32(block, self._sum)
            self.at += len(block)
        if self.at == self.info.file_size and self._sum != self.info.CRC:
            raise ValueError("its checksum is another")
