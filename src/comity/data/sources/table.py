"""Tables: one row a sample; columns of numbers and of categories, with blanks, ids and whatever else people have."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError, install, one_line, unknown
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget, array_bytes, check_file, reading

TARGETS = ("target", "label", "outcome", "class", "diagnosis", "disease", "y")
CLIENTS = ("client", "hospital", "site", "centre", "center", "clinic", "institution", "user", "device")
"""Names of columns that say plainly what they are, the first that is there."""
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "."}
ID = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|index|number|nr|no)$|^unnamed", re.IGNORECASE)
MOST_CATEGORIES = 50
TEXT = 20
"""How many times a file's size its cells take as Python's text while they are read; those of two letters take most."""

Cells = Sequence[Any]
"""A column as it was read: text, numbers, None."""
Missing = Literal["mean", "marked"]


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What a table's columns are: the options of the same names."""

    target: str | None = None
    client: str | None = None
    missing: Missing = "mean"


def is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv", ".parquet")


def read_table(name: str, path: Path, budget: Budget, about: Columns) -> Dataset:
    """A CSV (commas, semicolons, tabs or bars; UTF-8 or Latin-1) or a Parquet file."""
    with reading(path):
        check_file(path)
        columns = _parquet(path, budget) if path.suffix.lower() == ".parquet" else _csv(path, budget)
        return table_of(name, columns, about, budget)


def _csv(path: Path, budget: Budget) -> dict[str, Cells]:
    budget.check(TEXT * path.stat().st_size, path)
    content = path.read_bytes()
    if b"\0" in content:
        raise ComityError(f"{path}: not a text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    first = text.partition("\n")[0]
    delimiter = max(",;\t|", key=first.count)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
    header = [cell.strip() or f"column {k}" for k, cell in enumerate(next(rows, []), 1)]
    if twice := [cell for cell in header if header.count(cell) > 1]:
        raise ComityError(f"{path}: two columns are called {twice[0]}")
    cells: list[list[str]] = [[] for _ in header]
    for row in rows:
        if not any(map(str.strip, row)):
            continue
        if len(row) != len(header):
            raise ComityError(f"{path}, line {rows.line_num}: {len(row)} cells; the header has {len(header)}")
        for column, cell in zip(cells, row, strict=True):
            cell = cell.strip()
            column.append(cell.replace(",", ".") if delimiter == ";" and _DECIMAL.fullmatch(cell) else cell)
    return dict(zip(header, cells, strict=True))


_DECIMAL = re.compile(r"[+-]?\d*,\d+")


def _parquet(path: Path, budget: Budget) -> dict[str, Cells]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ComityError(f"{path}: Parquet needs pyarrow: {install('tables')}") from error
    about = parquet.read_metadata(path)
    unpacked = sum(about.row_group(k).total_byte_size for k in range(about.num_row_groups))
    budget.check(TEXT * max(unpacked, path.stat().st_size, about.num_rows * about.num_columns), path)
    table = parquet.read_table(path)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def table_of(name: str, columns: Mapping[str, Cells], about: Columns, budget: Budget | None = None) -> Dataset:
    """Samples from columns: numbers as they are, categories one-hot, ids and what is always the same left out."""
    if len({len(cells) for cells in columns.values()}) != 1:
        raise ComityError(f"data {name}: no columns, or columns of different lengths")
    target = _chosen("target", about.target, columns, TARGETS)
    client = _chosen("client", about.client, columns, CLIENTS)
    if target is None:
        raise ComityError(
            f"data {name}: which column is to be predicted? Give data.target, one of {', '.join(columns)}"
        )
    if client == target:
        raise ComityError(f"data.client must be another column than data.target, got {target} for both")
    owned = [target] if client is None else [target, client]
    known = [row for row in range(len(columns[target])) if not any(_is_blank(columns[own][row]) for own in owned)]
    if not known:
        raise ComityError(f"data {name}: no row has a value of {' and '.join(owned)}")
    blank_rows = len(columns[target]) - len(known)
    if blank_rows:
        columns = {column: [cells[row] for row in known] for column, cells in columns.items()}

    y, class_names = _classes(target, columns[target])
    features: list[NDArray[np.float32]] = []
    counts, blanks, left_out = {"numbers": 0, "categories": 0}, 0, []
    for column in (column for column in columns if column not in owned):
        kind, values, why = _features(column, columns[column])
        if why:
            left_out.append(f"{one_line(column, 40)} ({why})")
            continue
        counts[kind] += 1
        blank = np.isnan(values[:, :1])
        blanks += int(blank.sum())
        features += [values, blank.astype(np.float32)] if about.missing == "marked" and blank.any() else [values]
        if budget is not None:
            budget.take(array_bytes(values.shape, values.dtype), f"data {name}")
    if not features:
        raise ComityError(f"data {name}: no column to learn from; left out: {', '.join(left_out) or 'none'}")
    x = np.concatenate(features, axis=1)
    if blank_rows:
        left_out.append(f"{blank_rows:,} rows without {' or '.join(owned)}")
    notes = [
        f"{target} is to be predicted, " + (f"each {client} is a client" if client else "no column names the clients"),
        f"{len(x):,} rows; {counts['numbers']} numbers and {counts['categories']} categories make {x.shape[1]} features"
        + (f"; {blanks:,} blank cells stand at the mean of the training samples" if blanks else "")
        + (", each marked by a feature" if blanks and about.missing == "marked" else ""),
        *([f"left out: {', '.join(left_out)}"] if left_out else []),
    ]
    clients = {} if client is None else {"client": _names(columns[client])}
    return Dataset(
        name, x, y, len(class_names), clients, class_names, notes=tuple(one_line(f"{name}: {note}") for note in notes)
    )


def _chosen(option: str, given: str | None, columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """The column that is named, or one whose name says plainly what it is."""
    by_name = {column.lower(): column for column in columns}
    if given is None:
        return next((by_name[name] for name in usual if name in by_name), None)
    if given.lower() not in by_name:
        raise unknown(f"column, data.{option}", given, columns)
    return by_name[given.lower()]


def _is_blank(cell: Any) -> bool:
    return cell is None or cell != cell or (isinstance(cell, str) and cell.strip().lower() in MISSING)


def _numbers(cells: Cells) -> NDArray[np.float64] | None:
    """A column of numbers, NaN for blanks; ``None`` if it holds anything else."""
    try:
        return np.array([np.nan if _is_blank(cell) else float(cell) for cell in cells])
    except (TypeError, ValueError):
        return None


def _names(cells: Cells) -> NDArray[Any]:
    """Names of clients or classes, none of them blank: whole numbers, or text without the blanks around it."""
    numbers = _numbers(cells)
    if numbers is not None and (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53:
        return numbers.astype(np.int64)
    return np.array([one_line(cell, 100) for cell in cells])


def _classes(target: str, cells: Cells) -> tuple[NDArray[np.int64], list[str]]:
    names, y = np.unique(_names(cells), return_inverse=True)
    if names.dtype.kind == "U" and _numbers(cells) is not None:
        raise ComityError(
            f"data.target: {target} holds numbers such as {names[0]}, not classes, which are predicted here"
        )
    if len(names) > max(2, len(y) // 2):
        raise ComityError(
            f"data.target: {target} has {len(names)} different values in {len(y)} rows; a class needs two"
        )
    return y, [str(name) for name in names]


def _features(column: str, cells: Cells) -> tuple[str, NDArray[np.float32], str]:
    """The kind of a column, its features (NaN where it is blank), and why it is left out, if it is."""
    numbers = _numbers(cells)
    if numbers is not None:
        known = numbers[~np.isnan(numbers)]
        different = np.unique(known)
        whole = len(different) == len(cells) and (known == np.round(known)).all()
        named_so = ID.search(column) is not None and len(different) > len(cells) // 2
        if whole and (named_so or different[-1] - different[0] == len(cells) - 1):
            return "numbers", np.empty((0, 0), np.float32), "numbers the rows"
        why = "always the same" if len(different) == 1 else "blank" if not len(different) else ""
        return "numbers", numbers[:, None].astype(np.float32), why
    text = np.array(["" if _is_blank(cell) else one_line(cell, 100) for cell in cells])
    blank = text == ""
    categories = np.unique(text[~blank])
    why = "always the same" if len(categories) == 1 else ""
    if len(categories) > MOST_CATEGORIES or (len(categories) == (~blank).sum() > 2):
        why = f"text of {len(categories):,} different values"
    if why:
        return "categories", np.empty((0, 0), np.float32), why
    values = (text[:, None] == categories).astype(np.float32)
    values[blank] = np.nan
    return "categories", values, ""
