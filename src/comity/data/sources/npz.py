"""One npz file with samples and labels."""

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
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


SAMPLES = ("x", "images", "data", "features")
LABELS = ("y", "labels", "label", "targets")
"""What they are called, the first that is there."""
SPLITS = ("", "train", "val", "test")
_NAMED = "|".join(SPLITS[1:])
KEY = re.compile(rf"(?:(?P<first>{_NAMED})_)?(?P<stem>.+?)(?:_(?P<last>{_NAMED}))?")


def read_npz(name: str, path: Path, budget: Budget) -> Dataset:
    """``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``train_images``, ``train_labels``, …

    Train, validation and test are pooled. Any further key of single values in these splits is a column. Nothing else
    in the file is read, and nothing is unpacked before all of it is known to fit.
    """
    with reading(path), open_archive(path) as archive:
        members: dict[str, dict[str, zipfile.ZipInfo]] = {}
        for info in archive.infolist():
            stem, split = _key(info.filename.removesuffix(".npy"))
            members.setdefault(stem, {})[split] = info
        samples, labels = (next((n for n in names if n in members), names[0]) for names in (SAMPLES, LABELS))
        given = members.get(samples, {}) | members.get(labels, {})
        splits = [split for split in SPLITS if split in given] or ["train"]
        splits = splits if splits[0] in ("", "train") else ["train", *splits]
        for stem in (samples, labels):
            if lacking := [split for split in splits if split not in members.get(stem, {})]:
                held = ", ".join(sorted(info.filename.removesuffix(".npy") for info in archive.infolist()))
                raise ComityError(
                    f"{path}: no {'_'.join(filter(None, (stem, lacking[0])))}; it holds {held or 'nothing'} and must "
                    "hold x and y, or x_train, y_train, x_test, y_test"
                )
        headers: dict[str, list[Header]] = {}
        for stem, entries in sorted(members.items()):
            if splits[0] not in entries:
                continue
            several = [_array_header(archive, entries[split], path) for split in splits if split in entries]
            if stem in (samples, labels) and not all(header.shape for header in several):
                raise ComityError(f"{path}: {_joined(several, 'or')} holds a single value; expected one a sample")
            if stem in (samples, labels) or (stem.isprintable() and all(len(each.shape) == 1 for each in several)):
                headers[stem] = several
        for header in (header for several in headers.values() for header in several):
            budget.take(array_bytes(header.shape, header.dtype), f"{path}: {header.member.filename}")
        pooled = {
            stem: pool([_unpack(archive, header) for header in several], path, _joined(several, "and"))
            for stem, several in headers.items()
        }
    x, y = pooled.pop(samples), pooled.pop(labels)
    notes = (f"{name}: its key client says whose each sample is",) if "client" in pooled else ()
    return Dataset(name, x, y, columns=pooled, notes=notes)


def _key(key: str) -> tuple[str, str]:
    """What a key holds and of which split: ``x_train`` is x and train, ``test_images`` images and test."""
    parts = KEY.fullmatch(key)
    return (key, "") if parts is None else (parts["stem"], parts["first"] or parts["last"] or "")


def _joined(headers: Sequence["Header"], word: str) -> str:
    """``x_train and x_test``."""
    return f" {word} ".join(header.member.filename.removesuffix(".npy") for header in headers)


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
