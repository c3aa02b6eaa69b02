"""Tables: one sample per row; columns of numbers and categories, possibly with blanks and ids."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from comity._datasets import DataFiles
from comity._errors import ComityError, one_line, unknown
from comity._words import counted, listed
from comity.data._dataset import Dataset
from comity.data.schema import Cells, Encoded, Problem, Schema, is_blank
from comity.data.schema_file import read_schema
from comity.data.sources.columns import Columns, columns_of, read_columns
from comity.data.sources.infer import ambiguous_marks, client_names, for_others, infer_schema
from comity.data.sources.reading import Budget, array_bytes, reading

TARGETS = ("target", "label", "outcome", "class", "diagnosis", "disease", "y")
CLIENTS = ("client", "hospital", "site", "centre", "center", "clinic", "institution", "user", "device")
"""Column names that are recognised as target or client; the first one present is used."""
TOTALS = {"total", "totals", "sum", "mean", "average", "median", "summe", "gesamt", "mittelwert"}
"""First cell of a last row that summarises the others."""
MOST_LISTED_LINES = 5
"""Number of lines that a note lists individually."""


def read_table(name: str, path: Path, budget: Budget, about: DataFiles) -> Dataset:
    """Read the samples of a table in a file."""
    with reading(path):
        return table_of(name, columns_of(path, budget, about.sheet), about, budget)


def table_of(name: str, columns: Mapping[str, Cells], about: DataFiles, budget: Budget) -> Dataset:
    """Samples from columns, with the given schema or an inferred one."""
    table = _without_totals(name, columns)
    if about.schema is None:
        target, client = _own_columns(f"data {name}", table, about.target, about.client, "data.")
        text = _chosen("data.text", about.text, table, ())
        if text is not None and text in (target, client):
            raise ComityError(f"data.text must be another column than those of target and client, got {text}")
        known = _with_values(f"data {name}", table, target, client)
        schema, questions = infer_schema(known, target, client, marked=about.missing == "marked", text=text)
        questions += ambiguous_marks(table, schema)
        _require_columns(name, schema)
    else:
        schema, questions = _given_schema(about), ()
        if missing := [column for column in (*schema.used, schema.target) if column not in table]:
            raise ComityError(f"data {name} lacks {', '.join(missing)} of {about.schema}")
        known = _with_values(f"data {name}", table, schema.target, schema.client)
    rows = len(known[schema.target])
    budget.take(array_bytes((rows, len(schema.features) + 1), np.dtype(np.float32)), f"data {name}")
    encoded, problems = _encoded(schema, known)
    if problems and about.schema is None:
        raise ComityError(f"data {name}: {_problem_text(known, problems[0])}")
    bad = sorted({problem.row for problem in problems})
    keep = np.setdiff1d(np.arange(rows), bad)
    if not len(keep):
        raise ComityError(f"data {name}: no row fits the schema: {_problem_text(known, problems[0])}")
    notes = [*table.notes, *_notes(schema, known, len(table[schema.target]) - rows)]
    if bad:
        named = ", ".join(known.place(row) for row in bad[:MOST_LISTED_LINES]) + ", …" * (len(bad) > MOST_LISTED_LINES)
        notes.append(f"left out: {counted(len(bad), 'row')} that do not fit {about.schema} ({named})")
    assert encoded.y is not None
    return Dataset(
        name,
        encoded.x[keep],
        encoded.y[keep],
        len(schema.classes),
        {} if encoded.clients is None else {"client": client_names(encoded.clients)[keep]},
        schema.classes,
        notes=tuple(one_line(f"{name}: {note}", 2000) for note in notes),
        warnings=questions,
        schema=schema,
    )


def site_schema(
    path: Path, target: str | None, client: str | None, *, all_categories: bool = False, sheet: str | None = None
) -> tuple[Schema, tuple[str, ...]]:
    """The shareable schema of a site's table, and questions about the table."""
    table = _without_totals(str(path), read_columns(path, sheet=sheet))
    target, client = _own_columns(str(path), table, target, client, "--")
    known = _with_values(str(path), table, target, client)
    schema, questions = infer_schema(known, target, client)
    problems = _encoded(schema, known)[1] if schema.used else []
    if problems:
        raise ComityError(f"{path}: {_problem_text(known, problems[0])}")
    return for_others(schema, known, all_categories=all_categories), questions + ambiguous_marks(table, schema)


class Checked(NamedTuple):
    """Result of checking a table against a schema."""

    rows: int
    blank: int
    """Rows without a target or client, which are left out."""
    problems: list[str]
    """One line per cell that does not fit."""
    bad_rows: int
    lacking: list[str]
    extra: list[str]


def check_table(path: Path, schema: Schema, sheet: str | None = None) -> Checked:
    """Check a site's table against a schema."""
    table = _without_totals(str(path), read_columns(path, sheet=sheet))
    lacking = [name for name in (*schema.used, schema.target) if name not in table]
    expected = {*schema.columns, *schema.ignored, schema.target, schema.client, schema.id}
    extra = [name for name in table if name not in expected]
    rows = max((len(cells) for cells in table.values()), default=0)
    if lacking:
        return Checked(rows, 0, [], 0, lacking, extra)
    known = _with_values(str(path), table, schema.target, schema.client)
    problems = _encoded(schema, known)[1]
    bad = len({problem.row for problem in problems})
    said = [_problem_text(known, problem) for problem in problems]
    return Checked(rows, rows - len(known[schema.target]), said, bad, [], extra)


def _encoded(schema: Schema, table: Columns) -> tuple[Encoded, list[Problem]]:
    """The table as arrays, and its problems, including clients that the schema does not name."""
    encoded = schema.encode(table)
    names = set(schema.clients)
    unknown_clients = [
        Problem(row, schema.client or "", f"unknown client {one_line(name, 40)}")
        for row, name in enumerate(encoded.clients or ())
        if names and name not in names
    ]
    return encoded, sorted(encoded.problems + unknown_clients)


def _problem_text(table: Columns, problem: Problem) -> str:
    return f"{table.place(problem.row)}, column {one_line(problem.column, 40)}: {problem.reason}"


def _without_totals(name: str, columns: Mapping[str, Cells]) -> Columns:
    """The table without a last row of totals."""
    if len({len(cells) for cells in columns.values()}) != 1:
        raise ComityError(f"data {name}: no columns, or columns of different lengths")
    table = columns if isinstance(columns, Columns) else Columns({key: list(cells) for key, cells in columns.items()})
    first = next(iter(table.values()))
    last = str(first[-1]).strip().lower().rstrip(":") if first else ""
    if last not in TOTALS or sum(str(cell).strip().lower().rstrip(":") == last for cell in first) > 1:
        return table
    shorter = table.select(range(len(first) - 1))
    shorter.notes += (f"left out: the last row ({table.place(len(first) - 1)}), which begins with {first[-1]}",)
    return shorter


def _own_columns(
    where: str, columns: Mapping[str, Cells], target: str | None, client: str | None, prefix: str
) -> tuple[str, str | None]:
    """The names of the target and client columns; ``prefix`` is that of their options in messages."""
    chosen = _chosen(f"{prefix}target", target, columns, TARGETS)
    owner = _chosen(f"{prefix}client", client, columns, CLIENTS)
    if chosen is None:
        raise ComityError(f"{where}: which column is to be predicted? Give {prefix}target, one of {', '.join(columns)}")
    if owner == chosen:
        raise ComityError(f"{prefix}client must be another column than {prefix}target, got {chosen} for both")
    return chosen, owner


def _chosen(option: str, given: str | None, columns: Iterable[str], usual: Sequence[str]) -> str | None:
    """The given column, or one with a usual name."""
    by_name = {column.lower(): column for column in columns}
    if given is None:
        found = next((by_name[name] for name in usual if name in by_name), None)
    elif given.lower() in by_name:
        found = given if given in by_name.values() else by_name[given.lower()]
    else:
        raise unknown("column", given, columns, of=f"({option})")
    if found is not None and f"{found} (2)" in by_name.values():
        raise ComityError(f"{option}: two columns are called {found}; rename one of them")
    return found


def _with_values(where: str, table: Columns, target: str, client: str | None) -> Columns:
    """The rows that have a target and, if there is a client column, a client."""
    owned = [name for name in (target, client) if name is not None and name in table]
    known = [row for row in range(len(table[target])) if not any(is_blank(table[own][row]) for own in owned)]
    if not known:
        raise ComityError(f"{where}: no row has a value of {' and '.join(owned)}")
    return table if len(known) == len(table[target]) else table.select(known)


def _given_schema(about: DataFiles) -> Schema:
    """The schema file given as an option; rejects options that contradict it."""
    assert about.schema is not None
    schema = read_schema(Path(about.schema))
    for option, own in (("target", schema.target), ("client", schema.client)):
        if (given := getattr(about, option)) not in (None, own):
            raise ComityError(f"data.{option} must be {own} or left out, got {given}: {about.schema} names it")
    if about.text is not None:
        raise ComityError(f"data.text must be left out: {about.schema} says which columns are `kind: text`")
    if about.missing != "mean":
        raise ComityError(f"data.missing must be left out: {about.schema} says which columns are `marked: true`")
    _require_columns(about.schema, schema)
    return schema


def _require_columns(name: str, schema: Schema) -> None:
    if not schema.used:
        left_out = ", ".join(f"{one_line(column, 40)} ({why})" for column, why in schema.left_out.items())
        raise ComityError(f"data {name}: no column to learn from{f'; left out: {left_out}' if left_out else ''}")


def _notes(schema: Schema, columns: Mapping[str, Cells], blank_rows: int) -> list[str]:
    """Sentences for the user about how the table was read."""
    names = [schema.target] if schema.client is None else [schema.target, schema.client]
    kinds = Counter[str](column.kind for column in schema.used.values())
    filled = [name for name, column in schema.used.items() if column.kind != "text"]
    blanks = sum(is_blank(cell, schema.columns[name].categories) for name in filled for cell in columns[name])
    marked = any(column.marked for column in schema.used.values())
    made = [f"{kinds['number']} numeric"]
    made += [f"{kinds[kind]} {kind}" for kind in ("date", "boolean", "text") if kinds[kind]]
    made += [f"{kinds['category'] + kinds['ordered']} categorical"]
    units = [f"{one_line(name, 40)} in {column.unit}" for name, column in schema.used.items() if column.unit]
    grouped = [one_line(name, 40) for name, column in schema.used.items() if column.other]
    reasons = schema.left_out
    left_out = [f"{one_line(column, 40)} ({reasons[column]})" for column in columns if column in reasons]
    left_out += [f"{counted(blank_rows, 'row')} without {' or '.join(names)}"] if blank_rows else []
    made = [", ".join(made[:-1]), made[-1]]
    return [
        f"the target is {schema.target}; "
        + (f"each {schema.client} is a client" if schema.client in columns else "no column names the clients"),
        f"{len(columns[schema.target]):,} rows; {' and '.join(made)} columns make {len(schema.features)} features"
        + (f"; {blanks:,} missing values are replaced by the training mean" if blanks else "")
        + (", each marked by a feature" if blanks and marked else "")
        + ("; dates count days since 2000-01-01" if kinds["date"] else "")
        + (f"; numbers with units: {', '.join(units)}" if units else "")
        + (f"; rare values are one category of {listed(grouped)}" if grouped else ""),
        *([f"left out: {', '.join(left_out)}"] if left_out else []),
    ]
