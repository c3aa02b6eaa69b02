"""Tables: one row a sample; columns of numbers and of categories, with blanks, ids and whatever else people have."""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._datasets import TABLES, DataFiles
from comity._errors import ComityError, install, one_line, unknown
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget, array_bytes, reading

TARGETS = ("target", "label", "outcome", "class", "diagnosis", "disease", "y")
CLIENTS = ("client", "hospital", "site", "centre", "center", "clinic", "institution", "user", "device")
"""Names of columns that say plainly what they are, the first that is there."""
MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "-", "."}
ID = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|index|number|nr|no)$|^unnamed", re.IGNORECASE)
MOST_CATEGORIES = 50
MANY_NUMBERS = 10
"""From so many different whole numbers a target may be a quantity."""
ROWS_A_CLASS = 20
"""Whole numbers of more than MOST_CATEGORIES values that have fewer rows each are a quantity, as an age is."""
TEXT = 20
"""How many times a file's size its cells take as Python's text while they are read; those of two letters take most."""

Cells = Sequence[Any]
"""A column as it was read: text, numbers, None."""


def is_table(path: Path) -> bool:
    return path.suffix.lower() in TABLES


def read_table(name: str, path: Path, budget: Budget, about: DataFiles) -> Dataset:
    """A CSV (commas, semicolons, tabs or bars; UTF-8 or Latin-1) or a Parquet file."""
    with reading(path):
        columns = _parquet(path, budget) if path.suffix.lower() == ".parquet" else _csv(path, budget)
        return table_of(name, columns, about, budget)


def _csv(path: Path, budget: Budget) -> Mapping[str, Cells]:
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
    if twice := next((cell for cell, times in Counter(header).items() if times > 1), None):
        raise ComityError(f"{path}: two columns are called {twice}")
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


def _parquet(path: Path, budget: Budget) -> Mapping[str, Cells]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ComityError(f"{path}: Parquet needs pyarrow: {install('tables')}") from error
    columns: dict[str, list[Any]] = {}
    with parquet.ParquetFile(path) as file:
        budget.check(TEXT * file.metadata.num_rows * file.metadata.num_columns, path)
        for batch in file.iter_batches(batch_size=1024):  # a page of a few bytes may stand for any number of values
            budget.take(TEXT * batch.nbytes, path)
            for name, cells in batch.to_pydict().items():
                columns.setdefault(name, []).extend(cells)
    return columns


def table_of(name: str, columns: Mapping[str, Cells], about: DataFiles, budget: Budget) -> Dataset:
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

    y, class_names, question = _classes(target, columns[target])
    features: list[NDArray[np.float32]] = []
    numbers, categories, blanks, left_out = 0, 0, 0, []
    for column in (column for column in columns if column not in owned):
        values, why = _features(column, columns[column])
        if values is None:
            left_out.append(f"{one_line(column, 40)} ({why})")
            continue
        budget.take(array_bytes((len(y), values.shape[1] + 1), values.dtype), f"data {name}")
        numbers, categories = numbers + (values.shape[1] == 1), categories + (values.shape[1] > 1)
        blank = np.isnan(values[:, :1])
        blanks += int(blank.sum())
        features += [values, blank.astype(np.float32)] if about.missing == "marked" and blank.any() else [values]
    if not features:
        raise ComityError(f"data {name}: no column to learn from; left out: {', '.join(left_out) or 'none'}")
    x = np.concatenate(features, axis=1)
    if blank_rows:
        left_out.append(f"{blank_rows:,} rows without {' or '.join(owned)}")
    notes = [
        f"{target} is to be predicted, " + (f"each {client} is a client" if client else "no column names the clients"),
        f"{len(x):,} rows; {numbers} numbers and {categories} categories make {x.shape[1]} features"
        + (f"; {blanks:,} blank cells stand at the mean of the training samples" if blanks else "")
        + (", each marked by a feature" if blanks and about.missing == "marked" else ""),
        *([f"left out: {', '.join(left_out)}"] if left_out else []),
    ]
    clients = {} if client is None else {"client": _names(columns[client])}
    shown = tuple(one_line(f"{name}: {note}") for note in notes)
    return Dataset(name, x, y, len(class_names), clients, class_names, notes=shown, warnings=question)


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


def _classes(target: str, cells: Cells) -> tuple[NDArray[np.int64], list[str], tuple[str, ...]]:
    """Each row's class, the names of the classes, and a question where they look like a quantity."""
    names, y = np.unique(_names(cells), return_inverse=True)
    quantity = len(names) > MOST_CATEGORIES and len(y) < ROWS_A_CLASS * len(names)
    if _numbers(cells) is not None and (names.dtype.kind == "U" or quantity):
        raise ComityError(
            f"data.target: {target} holds {len(names)} different numbers such as {names[0]}, and classes are predicted "
            "here; make a column of bins of it first, such as low and high"
        )
    if len(names) > max(2, len(y) // 2):
        raise ComityError(
            f"data.target: {target} has {len(names)} different values in {len(y)} rows; a class needs two"
        )
    question = f"The target {target} has {len(names)} different numbers: are they classes? If not, make bins of it."
    doubtful = names.dtype.kind == "i" and len(names) >= MANY_NUMBERS
    return y, [str(name) for name in names], (one_line(question),) * doubtful


def _features(column: str, cells: Cells) -> tuple[NDArray[np.float32] | None, str]:
    """The features of a column, NaN where it is blank, or why it is left out."""
    numbers = _numbers(cells)
    if numbers is not None:
        known = numbers[~np.isnan(numbers)]
        whole = len(known) == len(cells) and bool((known == np.round(known)).all())
        if whole and len(np.unique(known)) == len(cells) > 2:
            rising = bool((np.diff(known) > 0).all()) and known[-1] - known[0] < 2 * len(cells)
            if rising or ID.search(column):
                return None, "numbers the rows"
        if not len(known) or known.min() == known.max():
            return None, "always the same" if len(known) else "blank"
        return numbers[:, None].astype(np.float32), ""
    text = ["" if _is_blank(cell) else one_line(cell, 100) for cell in cells]
    places = {name: k for k, name in enumerate(sorted({*text} - {""}))}
    if len(places) > MOST_CATEGORIES or len(places) == len(text) - text.count("") > 2:
        return None, f"text of {len(places):,} different values"
    if len(places) == 1:
        return None, "always the same"
    values = np.zeros((len(text), len(places)), np.float32)
    for row, name in enumerate(text):
        values[row, places.get(name, slice(None))] = 1 if name else np.nan
    return values, ""
