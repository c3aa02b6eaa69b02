"""Columns of a Parquet file; the page sizes are added up before any page is unpacked."""

from collections.abc import Iterator
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import IO, Any

from comity._errors import ComityError, install
from comity.data.sources.reading import Budget

CELL = 20
"""Minimum bytes of a cell as a Python object."""
COPIES = 8
"""How often the bytes of a page are held while reading: unpacked, in Arrow's column, as Python text."""
LONGEST_HEADER = 1 << 16
"""Maximum bytes of a page header."""
_I32, _BINARY, _LIST, _SET, _MAP, _STRUCT = 5, 8, 9, 10, 11, 12
"""Types of Thrift's compact protocol, the format of headers."""


def read_parquet(path: Path, budget: Budget) -> dict[str, list[Any]]:
    """All columns of a file, by name."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ComityError(f"{path}: Parquet needs pyarrow: {install('tables')}") from error
    columns: dict[str, list[Any]] = {}
    limits = {"thrift_string_size_limit": 10**7, "thrift_container_size_limit": 10**6}
    with parquet.ParquetFile(path, **limits) as file, path.open("rb") as raw:
        about = file.metadata
        budget.check(CELL * about.num_rows * about.num_columns, path)
        for group in map(about.row_group, range(about.num_row_groups)):
            for chunk in map(group.column, range(group.num_columns)):
                packed, unpacked = chunk.total_compressed_size, sum(_pages(raw, chunk))
                budget.check(COPIES * unpacked, path, packed)
        for batch in file.iter_batches(batch_size=1024):  # a page of a few bytes may hold any number of values
            budget.take(CELL * batch.num_rows * batch.num_columns + COPIES * batch.nbytes, path)
            for name, cells in batch.to_pydict().items():
                columns.setdefault(name, []).extend(cells)
    return columns


def _pages(raw: IO[bytes], chunk: Any) -> Iterator[int]:
    """Unpacked size of each page of a column chunk, by the page's own header: the chunk may declare less."""
    place = min(offset for offset in (chunk.dictionary_page_offset, chunk.data_page_offset) if offset)
    end = place + chunk.total_compressed_size
    while place < end:
        raw.seek(place)
        header = BytesIO(raw.read(LONGEST_HEADER))
        fields = dict(_fields(header))
        if not (fields.get(2, -1) >= 0 and fields.get(3, -1) >= 0):
            raise ValueError("a page has no size")
        yield fields[2]
        place += header.tell() + fields[3]


def _fields(stream: IO[bytes]) -> Iterator[tuple[int, int]]:
    """Integer fields of a struct in Thrift's compact protocol, by field number; other fields are skipped."""
    number = 0
    while kind := _byte(stream):
        number = number + (kind >> 4) if kind >> 4 else _zigzag(stream)
        value = _value(stream, kind & 15, 0)
        if kind & 15 == _I32:
            yield number, value


def _value(stream: IO[bytes], kind: int, depth: int) -> int:
    """Read one value; return it if it is an integer."""
    if depth > 8:
        raise ValueError("a page's header is nested too deeply")
    if kind in (1, 2):  # true and false are part of the type
        return 0
    if kind == 3:
        return _byte(stream)
    if kind in (4, _I32, 6):
        return _zigzag(stream)
    if kind == 7:
        stream.read(8)
    elif kind == _BINARY:
        stream.read(_varint(stream))
    elif kind in (_LIST, _SET):
        head = _byte(stream)
        for _ in repeat(None, head >> 4 if head >> 4 < 15 else _varint(stream)):
            _value(stream, 3 if head & 15 in (1, 2) else head & 15, depth + 1)
    elif kind == _STRUCT:
        while inner := _byte(stream):
            if not inner >> 4:
                _zigzag(stream)
            _value(stream, inner & 15, depth + 1)
    else:
        raise ValueError("a page's header is not Parquet's")
    return 0


def _byte(stream: IO[bytes]) -> int:
    found = stream.read(1)
    if not found:
        raise ValueError("a page's header is cut short")
    return found[0]


def _varint(stream: IO[bytes]) -> int:
    value = shift = 0
    while shift < 70:
        byte = _byte(stream)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
        shift += 7
    raise ValueError("a page's header has a number without end")


def _zigzag(stream: IO[bytes]) -> int:
    value = _varint(stream)
    return (value >> 1) ^ -(value & 1)
