"""Infer the schema of a table from its cells."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from comity._errors import ComityError, one_line
from comity._words import listed
from comity.data.schema import Cells, Column, Schema, days, fits, is_blank, labels, numbers_of, truth

ID = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|index|number|nr|no)$|^unnamed", re.IGNORECASE)
MOST_CATEGORIES = 50
MANY_NUMBERS = 10
"""With so many different integers a target may be a quantity."""
ROWS_PER_CLASS = 20
"""Integers with more than MOST_CATEGORIES values and fewer rows per value are a quantity, such as an age."""
MIN_COUNT = 10
"""Minimum number of known values of a feature for a site to send sums of it."""
RARE = 5
"""In a column with more than MOST_CATEGORIES values, rarer values form one category, "(other)".

A schema that leaves the site does not list a category with fewer rows.
"""
MOSTLY = 10
"""If at most one cell in so many is no number, the column holds numbers with mistakes, not categories."""
NUMBERS_ROWS = "numbers the rows"
DOUBTFUL = ("none", "na", "-")
"""Blank markers that are often real values in a text column: no pain, North America, a negative test."""
_WITH_UNIT = re.compile(r"[+-]?[\d.]+(?:e[+-]?\d+)?(?:\s*([%°]\S{0,15})|\s+([^\W\d]\S{0,15}))", re.IGNORECASE)
_SHORT_YEAR = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2}")


def infer_schema(
    columns: Mapping[str, Cells], target: str, client: str | None, *, marked: bool = False, text: str | None = None
) -> tuple[Schema, tuple[str, ...]]:
    """Infer the schema of a table whose rows all have a target and a client; also returns questions for the user.

    ``text``: the column whose words become features.
    """
    classes, questions = _classes(target, columns[target])
    found: dict[str, Column] = {}
    ignored: dict[str, str] = {}
    for name, cells in columns.items():
        if name in (target, client):
            continue
        column = Column("text") if name == text else infer_column(name, cells, marked)
        if isinstance(column, Column):
            found[name] = column
            questions += [
                f"The column {name} holds {pair}: are they the same?" for pair in similar_names(column.categories)
            ]
        else:
            ignored[name] = column
    names_rows = [name for name, why in ignored.items() if why == NUMBERS_ROWS]
    names_rows += [name for name in ignored if ID.search(name) and len(set(columns[name])) == len(columns[name])]
    clients = () if client is None else tuple(map(str, np.unique(client_names(columns[client]))))
    questions += [f"The clients are called {pair}: are they the same?" for pair in similar_names(clients)]
    schema = Schema(target, tuple(classes), found, client, clients, next(iter(names_rows), None), ignored)
    return schema, tuple(map(one_line, questions))


def infer_column(name: str, cells: Cells, marked: bool) -> Column | str:
    """The description of a column, or the reason why it cannot be used."""
    marked = marked and any(map(is_blank, cells))
    known = [cell for cell in cells if not is_blank(cell)]
    if not known:
        return Column("blank")
    if all(isinstance(cell, (bool, np.bool_)) for cell in known):
        return Column("boolean", marked=marked, constant=len(set(known)) == 1)
    units = _units(known)
    numbers = numbers_of(known, next(iter(units), ""))
    if numbers is not None:
        whole = len(known) == len(cells) and bool((numbers == np.round(numbers)).all())
        if whole and len(np.unique(numbers)) == len(cells) > 2:
            rising = bool((np.diff(numbers) > 0).all()) and numbers[-1] - numbers[0] < 2 * len(cells)
            if rising or ID.search(name):
                return NUMBERS_ROWS
        unit = next(iter(units), "")
        return Column("number", marked=marked, unit=unit, constant=bool(numbers.min() == numbers.max()))
    if len(units) > 1:
        return f"numbers in {listed(sorted(units)[:3])}; convert them to one unit"
    counts = Counter(map(labels(()), known))
    constant = len(counts) == 1
    readings = [day_first for day_first in (None, True, False) if fits(partial(days, day_first=day_first), known)]
    if readings:
        if readings == [True, False]:
            return f"dates such as {one_line(known[0], 20)}: day or month first? Write them as 2024-12-31"
        return Column("date", marked=marked, day_first=readings[0], constant=constant)
    if all(isinstance(cell, str) and _SHORT_YEAR.fullmatch(cell) for cell in known):
        return f"dates such as {known[0]} without the century; write them as 2024-12-31"
    if fits(truth, known):
        return Column("boolean", marked=marked, constant=constant)
    advice = "to learn from it, group them in a column of your own"
    if len(counts) == counts.total() > 2:
        return f"text of {len(counts):,} different values"
    if len(counts) <= MOST_CATEGORIES:
        return Column("category", tuple(sorted(counts)), marked=marked, constant=constant)
    wrong = [value for value in counts if numbers_of([value]) is None]
    cells_of_text = sum(counts[value] for value in wrong)
    if MOSTLY * cells_of_text <= counts.total():
        example = one_line(wrong[0], 20)
        return f"{cells_of_text:,} of {counts.total():,} cells are no number, such as {example}; leave them blank"
    frequent = sorted(value for value, rows in counts.items() if rows >= RARE)
    covered = sum(counts[value] for value in frequent)
    if not 2 <= len(frequent) <= MOST_CATEGORIES or 2 * covered < counts.total():
        return f"text of {len(counts):,} different values; {advice}"
    return Column("category", tuple(frequent), other=True, marked=marked)


def ambiguous_marks(table: Mapping[str, Cells], schema: Schema) -> tuple[str, ...]:
    """Ask whether a blank marker is a value in text columns.

    It is not asked if the marker is in fewer than ``RARE`` rows, or also in a column of numbers, dates or booleans,
    where it can only mean a blank cell.
    """
    own = [name for name in (schema.target, schema.client) if name is not None]
    held = {
        name: Counter(
            cell.strip() for cell in table[name] if isinstance(cell, str) and cell.strip().lower() in DOUBTFUL
        )
        for name in (*own, *schema.columns)
    }
    kinds = {name: column.kind for name, column in schema.columns.items()}
    plain = {mark for name, kind in kinds.items() if kind in ("number", "date", "boolean") for mark in held[name]}
    return tuple(
        one_line(
            f"The column {name} holds {mark!r} in {rows:,} of {len(table[name]):,} rows, "
            + ("which are left out" if name in own else "read as blank")
            + f": is it a value? Then rename it{'' if name in own else ', or list it in a schema (--data.schema)'}."
        )
        for name, marks in held.items()
        if name in own or kinds[name] == "category"
        for mark, rows in marks.items()
        if rows >= RARE and mark not in plain
    )


def for_others(schema: Schema, columns: Mapping[str, Cells], *, all_categories: bool = False) -> Schema:
    """The schema of a site in a form that may be shared: with ranges, without values of few rows.

    Ranges are rounded outwards to one significant digit. A category with fewer than ``RARE`` rows is not listed unless
    ``all_categories`` is set: it becomes part of "(other)".
    """
    return replace(
        schema,
        columns={name: _rounded(each, columns[name], all_categories) for name, each in schema.columns.items()},
        min_count=MIN_COUNT,
    )


def _rounded(column: Column, cells: Cells, all_categories: bool) -> Column:
    if column.kind == "number":
        numbers = numbers_of(cells, column.unit)
        assert numbers is not None
        return replace(column, low=outwards(np.nanmin(numbers), -1), high=outwards(np.nanmax(numbers), 1))
    if column.kind != "category" or all_categories:
        return column
    counts = Counter(map(labels(column.categories), (cell for cell in cells if not is_blank(cell))))
    listed = tuple(value for value in column.categories if counts[value] >= RARE)
    return replace(column, categories=listed, other=column.other or len(listed) < len(column.categories))


def outwards(value: float, direction: int) -> float:
    """``value`` rounded down (−1) or up (1) to one significant digit."""
    exact = Decimal(float(value))
    place = Decimal(1).scaleb(exact.adjusted() if exact else 0)
    return float(exact.quantize(place, ROUND_FLOOR if direction < 0 else ROUND_CEILING))


def similar_names(names: Iterable[str]) -> list[str]:
    """Pairs of names that differ only in case, accents and spaces, as text."""
    by_letters: dict[str, str] = {}
    pairs = []
    for name in names:
        plain = unicodedata.normalize("NFKD", name).casefold()
        letters = "".join(each for each in plain if not unicodedata.combining(each) and each not in " _")
        if letters in by_letters:
            pairs.append(f"{by_letters[letters]!r} and {name!r}")
        by_letters.setdefault(letters, name)
    return pairs


def client_names(cells: Cells) -> NDArray[Any]:
    """Names of clients or classes (no blanks): integers, or stripped text."""
    numbers = numbers_of(cells)
    if numbers is not None and (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53:
        return numbers.astype(np.int64)
    return np.array([one_line(cell, 100) for cell in cells])


def _units(known: Cells) -> dict[str, None]:
    """The units after the numbers; empty if one number has no unit."""
    units: dict[str, None] = {}
    for cell in known:
        found = _WITH_UNIT.fullmatch(cell) if isinstance(cell, str) else None
        if found is None:
            return {}
        units[found[1] or found[2]] = None
    return units


def _classes(target: str, cells: Cells) -> tuple[list[str], list[str]]:
    """The class names, and a question if they look like a quantity."""
    names = np.unique(client_names(cells))
    quantity = len(names) > MOST_CATEGORIES and len(cells) < ROWS_PER_CLASS * len(names)
    if numbers_of(cells) is not None and (names.dtype.kind == "U" or quantity):
        raise ComityError(
            f"data.target: {target} holds {len(names)} different numbers such as {names[0]}, and classes are predicted "
            "here; make a column of bins of it first, such as low and high"
        )
    if len(names) > max(2, len(cells) // 2):
        raise ComityError(
            f"data.target: {target} has {len(names)} different values in {len(cells)} rows; a class needs two"
        )
    if names.dtype.kind == "i" and len(names) >= MANY_NUMBERS:
        return list(map(str, names)), [
            f"The target {target} holds {len(names)} different numbers, {names[0]} to {names[-1]}: are they classes? "
            "If so, carry on; each is a class of its own. If it is a quantity, add a column of bins to the table, such "
            "as low, normal and high, and give its name as the target."
        ]
    return list(map(str, names)), [
        f"The classes are called {pair}: are they the same?" for pair in similar_names(map(str, names))
    ]
