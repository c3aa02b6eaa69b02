"""The schema of a table: the content of each column and its conversion to features. It holds no rows."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from comity._errors import ComityError, one_line
from comity.data.text import TEXT_FEATURES, hashed

Cells = Sequence[Any]
"""A column as read: text, numbers, dates, None."""
Kind = Literal["number", "boolean", "date", "ordered", "category", "text", "blank"]

FORMAT = 1
"""Version of the format of schema files."""
MISSING = {
    *("", "na", "n/a", "nan", "null", "none", "?", "-", "."),
    *("#n/a", "#na", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!"),
}
TRUTHS = {"true": 1.0, "false": 0.0}
EPOCH = datetime(2000, 1, 1)
"""Dates become days since this date."""
OTHER = "(other)"
"""Feature of categories that a schema does not list, if it has one."""
WIDEST_TEXT = 2**16
"""Maximum number of features of a text column."""
_HUGE = 3e38
"""Largest allowed number, about that of float32."""
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
_SLASHED = re.compile(r"(\d{1,2})[/-](\d{1,2})[/-](\d{4})")


class Problem(NamedTuple):
    """A cell that does not fit the schema."""

    row: int
    """Row index from 0, without the header."""
    column: str
    reason: str


class Column(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Conversion of one column's cells to features.

    A number, boolean, date or ordered category is one feature; a category is one feature per value; text is ``width``
    features, from hashed words and letters.
    """

    kind: Kind
    categories: tuple[str, ...] = ()
    """Values of a category; for an ordered one from lowest to highest. A blank marker that is listed here, such as
    ``none``, is a value in this column."""
    other: bool = False
    """Whether unlisted values share a feature of their own; otherwise they do not fit."""
    marked: bool = False
    """Whether an additional feature is 1 where the cell is blank."""
    unit: str = ""
    """Unit of a number; cells may end with it."""
    low: float | None = None
    high: float | None = None
    """Range of a number; cells outside do not fit."""
    day_first: bool | None = None
    """Whether 05/06/2024 is the 5th of June; with ``None`` such dates do not fit."""
    constant: bool = False
    """Whether all cells of the table were equal: like a blank column, such a column has no features."""
    width: int = TEXT_FEATURES
    """Number of features of a text column."""

    def __post_init__(self) -> None:
        named = self.kind in ("category", "ordered")
        for wrong, words in (
            (named and not (self.categories or self.other), "a category needs `categories`"),
            (self.categories and not named, f"a {self.kind} has no `categories`"),
            (self.other and self.kind != "category", f"`other` is for categories, not for a {self.kind} column"),
            (len(set(self.categories)) < len(self.categories), "`categories` has the same value twice"),
            ("" in self.categories, "`categories` has an empty value"),
            (any(each != one_line(each, 100) for each in self.categories), "`categories` has a value too long or odd"),
            (not all(np.isfinite(each) for each in (self.low, self.high) if each is not None), "a limit is no number"),
            (not 1 <= self.width <= WIDEST_TEXT, f"`width` must be 1 to {WIDEST_TEXT:,}"),
            (self.low is not None and self.high is not None and self.low > self.high, "`low` is above `high`"),
        ):
            if wrong:
                raise ValueError(words)

    @property
    def used(self) -> bool:
        """Whether the column has features."""
        return self.kind != "blank" and not self.constant

    def features(self, name: str) -> list[str]:
        """Names of the column's features."""
        if not self.used:
            return []
        values = [f"{name} = {each}" for each in (*self.categories, *[OTHER] * self.other)]
        if self.kind == "text":
            return [f"{name} {place}" for place in range(self.width)]
        return (values if self.kind == "category" else [name]) + [f"{name} is blank"] * self.marked

    def encode(self, cells: Cells) -> tuple[NDArray[np.float32], dict[int, str]]:
        """Features (rows, width), with NaN for blank cells, and by row the reason why a cell does not fit."""
        if not self.used:
            return np.zeros((len(cells), 0), np.float32), {}
        if self.kind == "text":
            return hashed(["" if cell is None else str(cell) for cell in cells], self.width), {}
        if self.kind == "number" and not self.marked and (known := numbers_of(cells, self.unit)) is not None:
            low = -_HUGE if self.low is None else max(self.low, -_HUGE)
            high = _HUGE if self.high is None else min(self.high, _HUGE)
            if (np.isnan(known) | ((known >= low) & (known <= high))).all():  # nearly always; otherwise cell by cell
                return known[:, None].astype(np.float32), {}
        one_hot = self.kind == "category"
        values = np.zeros((len(cells), len(self.categories) + self.other if one_hot else 1))
        read = self._reader()
        problems: dict[int, str] = {}
        for row, cell in enumerate(cells):
            if is_blank(cell, self.categories):
                values[row] = np.nan
                continue
            try:
                value = read(cell)
                if one_hot:
                    values[row, int(value)] = 1
                else:
                    values[row] = self._within(value)
            except (TypeError, ValueError, OverflowError) as error:
                values[row] = np.nan
                said = f"{one_line(cell, 40)} is no {self.kind}" + (f" in {self.unit}" if self.unit else "")
                problems[row] = str(error) if isinstance(error, _CellError) else said
        marks = [np.isnan(values[:, :1])] if self.marked else []
        with np.errstate(over="ignore"):
            return np.concatenate([values, *marks], axis=1).astype(np.float32), problems

    def _reader(self) -> Callable[[Any], float]:
        if self.kind == "number":
            return partial(number, unit=self.unit)
        if self.kind == "date":
            return partial(days, day_first=self.day_first)
        return truth if self.kind == "boolean" else self._place()

    def _place(self) -> Callable[[Any], float]:
        places = {name: place for place, name in enumerate(self.categories)}
        name_of = labels(self.categories)

        def place(cell: Any) -> float:
            name = name_of(cell)
            if name not in places and not self.other:
                known = ", ".join(self.categories[:5]) + ", …" * (len(self.categories) > 5)
                raise _CellError(f"unknown value {one_line(cell, 40)}; known: {known}")
            return places.get(name, len(places))

        return place

    def _within(self, value: float) -> float:
        if not abs(value) <= _HUGE:
            raise _CellError(f"{value:g} is not finite")
        for limit, beyond, word in ((self.low, -1, "below"), (self.high, 1, "above")):
            if limit is not None and (value - limit) * beyond > 0:
                raise _CellError(f"{value:g} is {word} {limit:g}" + (f" {self.unit}" if self.unit else ""))
        return value


class _CellError(ValueError):
    """A cell that does not fit a column, with the reason."""


class Encoded(NamedTuple):
    """A table as features and, if present, classes and clients. Rows with a problem are included."""

    x: NDArray[np.float32]
    y: NDArray[np.int64] | None
    """Class indices, −1 where blank or unknown; ``None`` without a target column."""
    clients: list[str] | None
    """Client names, empty where blank; ``None`` without a client column."""
    problems: list[Problem]


class Schema(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The columns of a table, with the target column and the client column."""

    target: str
    classes: tuple[str, ...]
    columns: dict[str, Column]
    """Columns in the order of their features; blank and constant columns have none."""
    client: str | None = None
    clients: tuple[str, ...] = ()
    """Names of all clients, in the order of their indices."""
    id: str | None = None
    """Column that identifies a row, copied to predictions."""
    ignored: dict[str, str] = field(default_factory=dict)
    """Unused columns of the table, with the reason."""
    min_count: int = 0
    """A client with fewer known values of a feature leaves its sums out of mean and standard deviation."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        own = [self.target] if self.client is None else [self.target, self.client]
        for wrong, words in (
            (not self.classes, "`classes` is empty"),
            (len(set(self.classes)) < len(self.classes), "`classes` has the same name twice"),
            (len(set(self.clients)) < len(self.clients), "`clients` has the same name twice"),
            (
                len(set(own)) < len(own) or any(name in self.columns for name in own),
                "`target` and `client` are columns",
            ),
            (any(map(is_blank, (*self.classes, *self.clients))), "a class or client has a name that means blank"),
        ):
            if wrong:
                raise ValueError(words.replace("are columns", "must be columns of their own"))

    @property
    def features(self) -> list[str]:
        return [feature for name, column in self.columns.items() for feature in column.features(name)]

    @property
    def used(self) -> dict[str, Column]:
        """The columns that have features."""
        return {name: column for name, column in self.columns.items() if column.used}

    @property
    def left_out(self) -> dict[str, str]:
        """The columns without features, with the reason."""
        same = {name: each for name, each in self.columns.items() if not each.used}
        return {
            name: "blank" if each.kind == "blank" else "always the same" for name, each in same.items()
        } | self.ignored

    def lacking(self, table: Iterable[str]) -> list[str]:
        """The columns with features that a table does not have."""
        there = set(table)
        return [name for name in self.used if name not in there]

    def encode(self, table: Mapping[str, Cells]) -> Encoded:
        """Encode a table. Raises an error if the table lacks a column or the schema has no features."""
        if lacking := self.lacking(table):
            raise ComityError(f"the table lacks {', '.join(lacking)}; it needs every column of its schema")
        if not self.used:
            raise ComityError("the schema has no column to learn from")
        x, problems = [], []
        for name, column in self.used.items():
            values, wrong = column.encode(table[name])
            x.append(values)
            problems += [Problem(row, name, reason) for row, reason in wrong.items()]
        y = self.encode_target(table[self.target]) if self.target in table else None
        if y is not None:
            problems += [
                Problem(row, self.target, f"unknown class {one_line(cell, 40)}")
                for row, cell in enumerate(table[self.target])
                if y[row] < 0 and not is_blank(cell)
            ]
        clients = None
        if self.client is not None and self.client in table:
            name_of = labels(self.clients)
            clients = ["" if is_blank(cell) else name_of(cell) for cell in table[self.client]]
        return Encoded(np.concatenate(x, axis=1), y, clients, sorted(problems))

    def encode_target(self, cells: Cells) -> NDArray[np.int64]:
        """(rows,) class index; −1 where blank or unknown."""
        places, name_of = {name: place for place, name in enumerate(self.classes)}, labels(self.classes)
        return np.array([-1 if is_blank(cell) else places.get(name_of(cell), -1) for cell in cells], np.int64)


def is_blank(cell: Any, values: Sequence[str] = ()) -> bool:
    """Whether a cell is empty or a blank marker that is not one of the column's own ``values``."""
    if isinstance(cell, str):
        return (text := cell.strip()).lower() in MISSING and text not in values
    try:
        return cell is None or bool(cell != cell)
    except (TypeError, ValueError):  # pandas' NA is not even unequal to itself
        return True


def labels(known: Sequence[str]) -> Callable[[Any], str]:
    """Reader for names of classes, categories or clients: trimmed text, or integers if all known names are integers.

    So 1, "1" and 1.0 are the same name.
    """
    numeric = bool(known) and all(re.fullmatch(r"-?\d+", name) for name in known)

    def name_of(cell: Any) -> str:
        if numeric or isinstance(cell, (float, np.floating)):
            with suppress(TypeError, ValueError, OverflowError):
                if float(cell).is_integer() and abs(float(cell)) < 2**53:
                    return str(int(float(cell)))
        return one_line(cell, 100)

    return name_of


def numbers_of(cells: Cells, unit: str = "") -> NDArray[np.float64] | None:
    """A column of numbers, NaN where blank; ``None`` if it contains anything else."""
    try:
        return np.array([np.nan if is_blank(cell) else number(cell, unit) for cell in cells])
    except (TypeError, ValueError, OverflowError):
        return None


def number(cell: Any, unit: str = "") -> float:
    """Parse a number, optionally followed by its unit."""
    if isinstance(cell, str):
        cell = cell.strip().removesuffix(unit)
        if "_" in cell:  # Python accepts it as a thousands separator
            raise ValueError(cell)
    return float(cell)


def truth(cell: Any) -> float:
    """1 for true and 0 for false, from text or a number."""
    value = TRUTHS.get(cell.strip().lower()) if isinstance(cell, str) else None
    if value is None and (value := number(cell)) not in (0, 1):
        raise _CellError(f"{one_line(cell, 40)} is neither true nor false")
    return value


def days(cell: Any, day_first: bool | None = None) -> float:
    """Days since 2000-01-01 of 2024-05-31, 31.5.2024, 2024/5/31 or, with ``day_first``, 31/5/2024, also with a time."""
    if isinstance(cell, str):
        cell = _parsed_date(cell.strip(), day_first)
    if isinstance(cell, date) and not isinstance(cell, datetime):
        cell = datetime.combine(cell, time())
    if not isinstance(cell, datetime):
        raise TypeError(cell)
    return (cell.replace(tzinfo=None) - EPOCH).total_seconds() / 86_400


def _parsed_date(text: str, day_first: bool | None) -> datetime:
    written, _, clock = text.partition(" ")
    dotted, slashed = _DOTTED.fullmatch(written), _SLASHED.fullmatch(written)
    if dotted or (slashed and day_first is not None):
        first, second, year = map(int, (dotted or slashed).groups())  # type: ignore[union-attr]
        day, month = (first, second) if dotted or day_first else (second, first)
        return datetime.combine(date(year, month, day), time.fromisoformat(clock) if clock else time())
    if slashed:
        raise _CellError(f"{text} is ambiguous: which is the day, which the month? Write {slashed[3]}-MM-DD")
    if yearly := re.fullmatch(r"(\d{4})/(\d{1,2})/(\d{1,2})", written):
        text = "{}-{:0>2}-{:0>2}".format(*yearly.groups()) + (f" {clock}" if clock else "")
    return datetime.fromisoformat(text)


def fits(read: Callable[[Any], float], cells: Iterable[Any]) -> bool:
    """Whether every non-blank cell can be read this way."""
    try:
        return all(is_blank(cell) or read(cell) is not None for cell in cells)
    except (TypeError, ValueError, OverflowError):
        return False
