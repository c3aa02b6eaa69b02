"""``comity reproduce``."""

from collections.abc import Sequence
from pathlib import Path

from comity._errors import ComityError, unknown
from comity._options import convert
from comity.commands._command import RUN_OPTIONS, Command
from comity.commands.study import StudyOptions, compare
from comity.config import Entries, read_yaml


def reproduce(options: StudyOptions, example: str | None = None, *, list: bool = False, given: Entries) -> int:
    """Repeat a paper's experiment, given its name.

    The examples are studies; `comity list examples` lists them and shows where their files are. Options on the command
    line override those in an example's file. --scale desk takes minutes, --scale night one night, and --scale paper
    uses the published sizes. --dry-run estimates the time and lists missing data sets and differences from the paper.
    If a configuration is in the paper, its published number is printed next to yours and written to published.md.

    Examples:
        comity reproduce demo
        comity reproduce --list
        comity reproduce confree-table1 --scale desk --seeds 1
        comity reproduce fedpg-table1 --scale paper --only data=fashion-mnist --dry-run

    Options:
        example: name of the example
        list: list all tables and figures of the papers with example, data sets, time and state
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


def _show(rows: Sequence[tuple[str, ...]]) -> None:
    """Print one line per table and figure."""
    from rich.table import Table

    from comity.commands._terminal import wide_console

    table = Table(box=None, pad_edge=False)
    for heading in ("table or figure", "comity reproduce …", "needs (paper scale)", "time: desk, paper", "state"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    wide_console().print(table, highlight=False)


COMMAND = Command(reproduce, RUN_OPTIONS, order=5)
