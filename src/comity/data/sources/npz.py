"""One npz file with x_train, y_train, x_test, y_test."""

import io
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget, array_bytes, check_file, pool, read_array, reading

LONGEST_HEADER = 10_000
LARGEST_DIRECTORY = 1 << 20

# numpy evaluates this text as Python; a pattern has no side effects, not even warnings
HEADER = re.compile(
    r"\{\s*'descr':\s*'(?P<type>[^']*)',\s*'fortran_order':\s*(?P<fortran>True|False),"
    r"\s*'shape':\s*\((?P<shape>[\dL,\s]*)\),?\s*\}\s*"
)


def read_npz(name: str, path: Path, budget: Budget) -> Dataset:
    """Train and test pooled; any further pair ``<column>_train``, ``<column>_test`` of single values is a column.

    Nothing else in the file is read, and nothing is unpacked before all of it is known to fit.
    """
    with reading(path), open_archive(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for key in ("x_train", "y_train"):
            if key not in members:
                raise ComityError(
                    f"{path}: no {key}; it holds {', '.join(sorted(members)) or 'nothing'} and must hold "
                    "x_train, y_train, x_test, y_test"
                )
        headers: dict[str, list[Header]] = {}
        for stem in sorted(key.removesuffix("_train") for key in members if key.endswith("_train")):
            keys = [key for key in (f"{stem}_train", f"{stem}_test") if key in members]
            pair = [_array_header(archive, members[key], path) for key in keys]
            if stem in ("x", "y") and not all(header.shape for header in pair):
                raise ComityError(f"{path}: {stem}_train or {stem}_test holds a single value; expected one a sample")
            if stem in ("x", "y") or (stem.isprintable() and all(len(header.shape) == 1 for header in pair)):
                headers[stem] = pair
        for pair in headers.values():
            for header in pair:
                budget.take(array_bytes(header.shape, header.dtype), f"{path}: {header.member.filename}")
        pooled = {
            stem: pool([_unpack(archive, header) for header in pair], path, f"{stem}_train and {stem}_test")
            for stem, pair in headers.items()
        }
    return Dataset(name, pooled.pop("x"), pooled.pop("y"), columns=pooled)


@dataclass(frozen=True)
class Header:
    """What an npy file says of itself, and where its values begin."""

    type: str
    fortran: bool
    shape: tuple[int, ...]
    start: int
    member: zipfile.ZipInfo

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.type)


class _ArchiveFile(io.FileIO):
    """A zip file whose table of contents is small: Python reads it whole, entry by entry."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise ValueError(f"it has a table of contents of {size} bytes; allowed: {LARGEST_DIRECTORY}")
        return super().read(size) or b""


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    check_file(path)
    if not zipfile.is_zipfile(path):
        raise ComityError(f"{path}: corrupt, truncated or not an npz file")
    with _ArchiveFile(path) as file, zipfile.ZipFile(file) as archive:
        yield archive


def open_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> IO[bytes]:
    """One file of the archive, packed in a way that can be unpacked a piece at a time."""
    if member.flag_bits & 1:
        raise ComityError(f"{path}: {member.filename} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ComityError(f"{path}: {member.filename} is compressed in a way that numpy does not; allowed: deflate")
    return archive.open(member)


def read_header(file: IO[bytes], member: zipfile.ZipInfo, path: Path) -> Header:
    magic = file.read(8)
    width = {b"\x93NUMPY\1\0": 2, b"\x93NUMPY\2\0": 4, b"\x93NUMPY\3\0": 4}.get(magic)
    if width is None:
        raise ComityError(f"{path}: {member.filename} is not an npy file; it begins with {magic.hex()}")
    length = int.from_bytes(file.read(width), "little")
    text = file.read(min(length, LONGEST_HEADER)).decode("latin-1")
    entries = HEADER.fullmatch(text)
    if entries is None or length > LONGEST_HEADER:
        raise ComityError(f"{path}: {member.filename} does not announce an array of numbers or text: {text}")
    shape = tuple(map(int, re.findall(r"\d+", entries["shape"])))
    return Header(entries["type"], entries["fortran"] == "True", shape, 8 + width + length, member)


def _array_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Header:
    """The header of an array of numbers or text, whose size is that of the file in the archive."""
    with open_member(archive, member, path) as file:
        header = read_header(file, member, path)
    if "O" in header.type:
        raise ComityError(
            f"{path}: corrupt or not an npz file of plain arrays: {member.filename} holds Python objects, "
            "which are not read"
        )
    if not re.fullmatch(r"[<>|=]?[biufSU][1-9]\d{0,6}", header.type):
        raise ComityError(f"{path}: {member.filename} is of type {header.type}; allowed: numbers and text")
    size = header.start + prod(header.shape) * header.dtype.itemsize
    if size != member.file_size:
        raise ComityError(
            f"{path}: corrupt or truncated: {member.filename} announces an array of shape {header.shape}, type "
            f"{header.type}, which takes {size} bytes, and has {member.file_size}"
        )
    return header


def _unpack(archive: zipfile.ZipFile, header: Header) -> NDArray[Any]:
    with archive.open(header.member) as file:
        file.seek(header.start)
        return read_array(file, header.shape, header.dtype, header.fortran)
