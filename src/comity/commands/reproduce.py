"""``comity reproduce``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from comity._errors import ComityError, unknown
from comity._options import convert
from comity.commands._command import RUN_OPTIONS, Command
from comity.commands.study import StudyOptions, compare
from comity.config import Entries, read_yaml

if TYPE_CHECKING:
    from comity.studies import Row

WIDE = 130
"""Columns from which on the list names the data sets of each line."""


def reproduce(options: StudyOptions, example: str | None = None, *, list: bool = False, given: Entries) -> int:
    """Repeat a paper's experiment, given its name.

    The examples are studies; `comity list examples` lists them and shows where their files are. Options on the command
    line override those in an example's file. --scale desk takes minutes, --scale night one night, and --scale paper
    uses the published sizes. --dry-run estimates the time and lists missing data sets and differences from the paper.
    The paper's numbers are printed next to yours and written to published.md.

    Examples:
        comity reproduce demo
        comity reproduce --list
        comity reproduce confree-table1 --scale desk --seeds 1
        comity reproduce fedpg-table1 --scale paper --only data=fashion-mnist --dry-run

    Options:
        example: name of the example
        list: list all tables and figures of the papers, with example, data sets, time and our outcome
    """
    from comity.studies import examples, overview

    known = examples()
    if list:
        _show(overview(convert(given.get("data_dir"), Path | None, "data_dir")))
        return 0
    if example is None:
        raise ComityError(f"comity reproduce takes the name of an example: {', '.join(known)}")
    if example not in known:
        raise unknown("example", example, known)
    given = {"out": Path("studies") / f"{example}-{options.scale or 'desk'}", **given}
    return compare(read_yaml(known[example]), given, options, example)


def _show(rows: Sequence["Row"]) -> None:
    """Print one line per table and figure, which fits in 80 columns, and what is missing."""
    from rich.table import Table

    from comity.commands._terminal import wide_console
    from comity.studies import MARKS

    console = wide_console()
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("table or figure", "comity reproduce …", "data", "desk", "paper", "claims"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        names = ", ".join(f"{name} (missing)" if name in row.missing else name for name in row.needs)
        counts = f"{len(row.needs) - len(row.missing)} of {len(row.needs)}"
        data = (names if console.width >= WIDE else counts) if row.needs else "–"
        table.add_row(row.item, row.example or "–", data, row.desk, row.paper, row.marks or "–")
    console.print(table, highlight=False)
    absent = dict.fromkeys(name for row in rows for name in row.missing)
    legend = ", ".join(f"{mark} {word}" for mark, word in MARKS.items()).replace(
        "larger than", "larger than a stated size"
    )
    notes = [
        f"data: data sets that --scale paper needs; missing: {', '.join(absent) or 'none'}",
        "desk, paper: time on one core at each scale; for paper it is estimated by a cost model",
        f"claims: one mark per claim of the paper; {legend}",
        *(f"{row.item}: {row.what}" for row in rows if not row.example),
    ]
    console.print("\n" + "\n".join(notes), highlight=False, markup=False)


COMMAND = Command(reproduce, RUN_OPTIONS, order=5)
