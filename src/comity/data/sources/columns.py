"""Read the columns of a table from any supported file: delimited text, also compressed, Excel sheets and Parquet."""

import bz2
import csv
import gzip
import io
import lzma
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

from comity._datasets import TABLES
from comity._errors import ComityError, install, one_line, unknown
from comity.data.schema import is_blank
from comity.data.sources.reading import Budget, reading

TEXT = 20
"""Memory of the cells as Python text, as a multiple of the file size; two-letter cells take most."""
XML = 5
"""The same for the XML in an .xlsx file, where each cell has at least 15 letters of markup."""
CHUNK = 2**20
_OPEN: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}


class Columns(dict[str, list[Any]]):
    """Cells by column name, with the line of each row in the file and notes about the file."""

    def __init__(self, cells: dict[str, list[Any]], lines: Sequence[int] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(cells)
        self.lines, self.notes = lines, tuple(notes)

    def place(self, row: int) -> str:
        """The position of a row in the file: its line, or its row number if the file has no lines."""
        return f"line {self.lines[row]}" if self.lines else f"row {row + 1}"

    def select(self, rows: Sequence[int]) -> "Columns":
        """Some of the rows, with their line numbers."""
        cells = {name: [column[row] for row in rows] for name, column in self.items()}
        return Columns(cells, [self.lines[row] if self.lines else row + 1 for row in rows], self.notes)


def is_table(path: Path) -> bool:
    return path.name.lower().endswith(TABLES)


def read_columns(path: Path, limit: int | str | None = None, sheet: str | None = None) -> Columns:
    """Read the cells of a table: text, numbers, dates, None.

    .csv and .tsv (separated by commas, semicolons, tabs or bars; UTF-8, UTF-16 or Latin-1), the same as .gz, .bz2, .xz
    or the only file of a .zip, .xlsx (the first sheet, or ``sheet``) and .parquet. Numbers in text get a decimal point.
    ``limit`` is the maximum memory of the table, such as ``"2GB"``.
    """
    return columns_of(path, Budget(limit), sheet)


def columns_of(path: Path, budget: Budget, sheet: str | None = None) -> Columns:
    with reading(path):
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            return _parquet(path, budget)
        if suffix == ".xlsx":
            return _sheet(path, budget, sheet)
        return _text(path, _unpacked(path, budget))


def _unpacked(path: Path, budget: Budget) -> bytes:
    """The content of a text file. The limit is checked before each piece is unpacked, whatever the file declares."""
    suffix = path.suffix.lower()
    if suffix == ".zip":
        with ZipFile(path) as archive:
            members = [each for each in archive.infolist() if not each.is_dir() and "__MACOSX" not in each.filename]
            if len(members) != 1:
                raise ComityError(f"{path}: a .zip must hold one table, got {len(members)} files")
            with archive.open(members[0]) as stream:
                return _pieces(stream, path, budget)
    if suffix not in _OPEN:
        budget.check(TEXT * path.stat().st_size, path)
    with _OPEN.get(suffix, io.open)(path, "rb") as stream:
        return _pieces(stream, path, budget)


def _pieces(stream: IO[bytes], path: Path, budget: Budget) -> bytes:
    content = bytearray()
    while piece := stream.read(CHUNK):
        content += piece
        budget.check(TEXT * len(content), path)
    return bytes(content)


def _text(path: Path, content: bytes) -> Columns:
    text = _decoded(content)
    if "\0" in text:
        raise ComityError(f"{path}: not a text file")
    lines, chosen = 0, re.match(r"sep=(.)\r?\n", text)
    if chosen:  # Excel writes it before the header
        text, lines = text[chosen.end() :], 1
    unquoted = re.sub(r'"[^"]*"', "", text[:CHUNK]).lstrip()
    delimiter = chosen[1] if chosen else max(",;\t|", key=re.split(r"[\r\n]", unquoted, maxsplit=1)[0].count)

    def rows() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
        while True:
            line = lines + reader.line_num + 1
            try:
                yield line, [cell.strip() for cell in next(reader)]
            except StopIteration:
                return
            except csv.Error as error:
                raise ComityError(f"{path}, line {line}: corrupt or truncated: {error}") from error

    return _gather(path, rows(), delimiter)


def _decoded(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16")
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode("latin-1")


def _sheet(path: Path, budget: Budget, sheet: str | None) -> Columns:
    try:
        from openpyxl import load_workbook
    except ImportError as error:
        raise ComityError(f"{path}: .xlsx needs openpyxl: {install('tables')}") from error
    with ZipFile(path) as archive:  # reads no more of a member than the size counted here
        budget.check(XML * sum(member.file_size for member in archive.infolist()), path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and other parts that are not read
        book = load_workbook(path, read_only=True, data_only=True, keep_links=False)
    try:
        if sheet is not None and sheet not in book.sheetnames:
            raise unknown("sheet", sheet, book.sheetnames, of="(data.sheet)")
        chosen = book[sheet or book.sheetnames[0]]
        chosen.reset_dimensions()  # the file's own dimensions may be wrong

        def rows() -> Iterator[tuple[int, list[Any]]]:
            for line, row in enumerate(chosen.iter_rows(values_only=True), 1):
                budget.take(8 * len(row), path)  # one cell far to the right implies thousands of empty ones
                yield line, [each.strip() if isinstance(each, str) else each for each in row]

        found = _gather(path, rows(), "", ragged=True)
    finally:
        book.close()
    if sheet is None and len(book.sheetnames) > 1:
        found.notes += (
            f"of {len(book.sheetnames)} sheets the first, {book.sheetnames[0]}; --data.sheet names another",
        )
    return found


def _parquet(path: Path, budget: Budget) -> Columns:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ComityError(f"{path}: Parquet needs pyarrow: {install('tables')}") from error
    columns: dict[str, list[Any]] = {}
    with parquet.ParquetFile(path) as file:
        budget.check(TEXT * file.metadata.num_rows * file.metadata.num_columns, path)
        for batch in file.iter_batches(batch_size=1024):  # a page of a few bytes may hold any number of values
            budget.take(TEXT * batch.nbytes, path)
            for name, cells in batch.to_pydict().items():
                columns.setdefault(one_line(name, 100), []).extend(cells)
    return Columns(columns)


def _gather(path: Path, rows: Iterable[tuple[int, list[Any]]], delimiter: str, *, ragged: bool = False) -> Columns:
    """Columns from rows and their lines; the first row that is not blank is the header."""
    filled = ((line, row) for line, row in rows if any(cell not in ("", None) for cell in row))
    top, first = next(filled, (1, []))
    header = [one_line("" if cell is None else cell, 100) for cell in first]
    cells: list[list[Any]] = [[] for _ in header]
    lines: list[int] = []
    for line, row in filled:
        while len(row) > len(header) and row[-1] in ("", None):
            row.pop()
        if ragged and len(row) < len(header):
            row += [None] * (len(header) - len(row))
        if not lines and sum(map(bool, header)) == 1 < sum(cell not in ("", None) for cell in row):
            raise ComityError(f"{path}, line {top}: a title stands above the names of the columns; remove it")
        if len(row) != len(header):
            raise ComityError(f"{path}, line {line}: {len(row)} cells; the header has {len(header)}")
        lines.append(line)
        for column, cell in zip(cells, row, strict=True):
            column.append(cell)
    named: dict[str, list[Any]] = {}
    times = Counter[str]()
    notes = []
    for k, (name, column) in enumerate(zip(header, cells, strict=True), 1):
        if not name and all(cell in ("", None) for cell in column):
            continue
        own = name = name or f"column {k}"
        while own in named:
            times[name] += 1
            own = f"{name} ({times[name] + 1})"
        if own != name:
            notes.append(f"{name} is the name of several columns; one of them is called {own} here")
        named[own] = with_decimal_points(column, delimiter)
    return Columns(named, lines, notes)


_TAIL = r"(?P<tail>\s*[%°]\S*|\s+[^\W\d]\S*)?"
_WRITTEN = re.compile(rf"(?P<sign>[+-]?)(?P<digits>\d[\d.,'’\u00a0\u202f]*|[.,]\d+){_TAIL}")
_SPACED = re.compile(r"['’\u00a0\u202f]")
_ODD = re.compile(r"[,'’\u00a0\u202f]\d|\d\.\d+\.\d")
_GROUPS = {mark: re.compile(rf"[1-9]\d{{0,2}}(\{mark}\d{{3}})+") for mark in ".,"}


def with_decimal_points(cells: list[Any], delimiter: str) -> list[Any]:
    """Write a column's numbers as 1234.5 if at least half of its cells are numbers.

    1.234,5 and 12,5, 1,234.5 and 1'234 are unambiguous. The meaning of 1,234 follows from the other cells of the
    column, otherwise from the delimiter: a file with semicolons has decimal commas, one with commas does not. If
    neither decides, the cell stays as it is and is not a number.
    """
    if not _ODD.search("\n".join(cell for cell in cells if isinstance(cell, str))):
        return cells
    written = [_WRITTEN.fullmatch(cell) if isinstance(cell, str) else None for cell in cells]
    marks = [_decimal_mark(found["digits"]) if found else None for found in written]
    votes = "".join({mark for mark in marks if mark in (".", ",")})
    prior = {";": ",", ",": "."}.get(delimiter, "")
    doubtful = {".": votes if len(votes) == 1 else ".", ",": votes if len(votes) == 1 else "" if votes else prior}
    result = list(cells)
    for row, (found, mark) in enumerate(zip(written, marks, strict=True)):
        if found is None or mark is None:
            continue
        digits = _SPACED.sub("", found["digits"])
        if mark == "?":
            mark = doubtful["," if "," in digits else "."]
        if mark:
            digits = digits.replace({".": ",", ",": "."}[mark], "").replace(mark, ".")
        result[row] = found["sign"] + digits + (found["tail"] or "")
    known = [cell for cell in result if not is_blank(cell)]
    readable = sum(_WRITTEN.fullmatch(cell) is not None if isinstance(cell, str) else True for cell in known)
    return result if 2 * readable >= len(known) else cells


def _decimal_mark(digits: str) -> str | None:
    """The decimal mark of a number; "" if it has none, "?" if its mark is ambiguous, None if it is not a number."""
    if _SPACED.search(digits):
        if not re.fullmatch(rf"\d{{1,3}}({_SPACED.pattern}\d{{3}})+([.,]\d+)?", digits):
            return None
        digits = _SPACED.sub("", digits)
        return digits.strip("0123456789")
    kinds = {mark: digits.count(mark) for mark in ".," if mark in digits}
    if not kinds:
        return ""
    last = max(kinds, key=digits.rindex)
    whole, _, rest = digits.rpartition(last)
    if len(kinds) == 2:
        groups = _GROUPS["," if last == "." else "."]
        return last if kinds[last] == 1 and rest and groups.fullmatch(whole) else None
    grouped = _GROUPS[last].fullmatch(digits) is not None
    if kinds[last] > 1:
        return {".": ",", ",": "."}[last] if grouped else None
    return "?" if grouped else last
