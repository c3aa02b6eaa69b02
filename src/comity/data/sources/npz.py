"""An npz file with samples and labels."""

import io
import itertools
import re
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget, array_bytes, pool, reading

LONGEST_HEADER = 10_000
LARGEST_DIRECTORY = 1 << 20

SAMPLES = ("x", "images", "data", "features")
LABELS = ("y", "labels", "label", "targets")
"""Accepted key names; the first one present is used."""
SPLITS = ("", "train", "val", "test")
KEY = re.compile(r"(?:(train|val|test)_)?(.+?)(?:_(train|val|test))?")
"""``x_train`` is x of train, ``test_images`` images of test."""


def read_npz(name: str, path: Path, budget: Budget) -> Dataset | None:
    """``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test``, ``y_test``, or ``train_images``, ``train_labels``, …

    Train, validation and test are pooled. Any further key with single values in these splits is a column. Nothing else
    is read, and nothing is unpacked before everything is known to fit.
    """
    if not path.is_file():
        return None
    with reading(path), open_archive(path) as archive:
        members: dict[str, dict[str, zipfile.ZipInfo]] = {}
        for info in archive.infolist():
            name_in_file = info.filename.removesuffix(".npy")
            first, stem, last = found.groups() if (found := KEY.fullmatch(name_in_file)) else ("", name_in_file, "")
            members.setdefault(stem, {})[first or last or ""] = info
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
        chosen: dict[str, list[Member]] = {}
        for stem, entries in sorted(members.items()):
            if splits[0] not in entries:
                continue
            several = [plain_member(archive, entries[split], path) for split in splits if split in entries]
            if stem in (samples, labels) and not all(member.shape for member in several):
                raise ComityError(f"{path}: {_joined(several, 'or')} holds a single value; expected one per sample")
            if stem in (samples, labels) or (stem.isprintable() and all(len(each.shape) == 1 for each in several)):
                chosen[stem] = several
        for member in itertools.chain(*chosen.values()):
            budget.take(
                array_bytes(member.shape, member.dtype), f"{path}: {member.info.filename}", member.info.compress_size
            )
        pooled = {}
        for stem, several in chosen.items():
            arrays = [npy.read_array(archive.open(member.info), allow_pickle=False) for member in several]
            pooled[stem] = pool(arrays, path, _joined(several, "and"))
    x, y = pooled.pop(samples), pooled.pop(labels)
    notes = (f"{name}: its key client says whose each sample is",) if "client" in pooled else ()
    return Dataset(name, x, y, columns=pooled, notes=notes)


class _ArchiveFile(io.FileIO):
    """A zip file with a limit on its table of contents, which Python reads at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise ValueError(f"it has a table of contents of {size} bytes; allowed: {LARGEST_DIRECTORY}")
        return super().read(size) or b""


@contextmanager
def open_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    if not zipfile.is_zipfile(path):
        raise ComityError(f"{path}: corrupt, truncated or not an npz file")
    with _ArchiveFile(path) as file, zipfile.ZipFile(file) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers that Python 2 wrote, or that are not Python
        yield archive


@dataclass(frozen=True)
class Member:
    """An npy file in an archive: its header and the offset of its values."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int


def _joined(members: Sequence[Member], word: str) -> str:
    """``x_train and x_test``."""
    return f" {word} ".join(member.info.filename.removesuffix(".npy") for member in members)


def read_header(file: IO[bytes], where: object) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type and length of an npy header; the position of ``file`` is undefined afterwards."""
    start = io.BytesIO(file.read(LONGEST_HEADER))
    try:
        version = npy.read_magic(start)
        shape, _, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(start)
    except Exception as error:  # the header is evaluated as a Python literal, which can raise anything
        raise ComityError(f"{where} has no readable npy header: {error or type(error).__name__}") from error
    return shape, dtype, start.tell()


def read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Member:
    """The header of one file in the archive; rejects compression that cannot be unpacked piece by piece."""
    if info.flag_bits & 1:
        raise ComityError(f"{path}: {info.filename} is encrypted")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ComityError(f"{path}: {info.filename} is compressed in a way that numpy does not; allowed: deflate")
    with archive.open(info) as file:
        return Member(info, *read_header(file, f"{path}: {info.filename}"))


def plain_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Member:
    """The header of an array of numbers or text; rejects a size that differs from the file's in the archive."""
    member = read_member(archive, info, path)
    if member.dtype.hasobject:
        raise ComityError(
            f"{path}: corrupt or not an npz file of plain arrays: {info.filename} holds Python objects, which are "
            "not read"
        )
    if member.dtype.kind not in "biufSU" or not member.dtype.itemsize:
        raise ComityError(f"{path}: {info.filename} is of type {member.dtype.str}; allowed: numbers and text")
    size = member.start + prod(member.shape) * member.dtype.itemsize
    if size != info.file_size or min(member.shape, default=0) < 0:
        raise ComityError(
            f"{path}: corrupt or truncated: {info.filename} announces an array of shape {member.shape}, type "
            f"{member.dtype.str}, which takes {size} bytes, and has {info.file_size}"
        )
    return member
