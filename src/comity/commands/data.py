"""``comity data``."""

import shutil
import sys
from pathlib import Path
from textwrap import fill

from comity._datasets import whereabouts
from comity._errors import ComityError, one_line, unknown
from comity._federations import natural
from comity._labels import spelling
from comity._memory import within_memory
from comity._words import counted
from comity.commands._command import RUN_OPTIONS, Command, ConfigFile
from comity.config import Config, Entries

INDENT = 11 * " "
"""Width of the names in a natural federation's card."""
HEART = Path(__file__).parents[1] / "data" / "sources" / "heart.txt"
"""Source and licence of ``heart``, which is on the leaderboard but not among the natural federations of the table."""
SHOWN = 20
"""Number of problems that are printed."""


def data(
    file: ConfigFile,
    table: str | None = None,
    *,
    schema: Path | None = None,
    get: str | None = None,
    given: Entries,
) -> int:
    """Show samples per client and class, or check a table.

    Examples:
        comity data patients.csv
        comity data --data digits --partition dirichlet --partition.alpha 0.1 --clients 20
        comity data --data synthetic --data.label_shift 0.9
        comity data --schema common.yaml patients.csv
        comity data --get pisa

    Options:
        table: path of a table, same as --data
        schema: check the table against this schema file (from `comity schema`)
        get: print citation, licence and source of a natural federation, and how to create its file
    """
    if get is not None:
        return _get(get)
    if table is not None:
        if "data" in given:
            raise ComityError(f"--data must be left out, got {given['data']} beside {table}")
        given = {"data": table, **given}
    if schema is not None:
        return _check(schema, given)
    chosen = Config.of(file.entries(given))
    whereabouts(chosen.data.name, chosen.data_dir)

    from comity.commands._terminal import Terminal
    from comity.data import describe
    from comity.engine import RunPlan

    with within_memory("the data"):
        federation = RunPlan(chosen).everyone
    console = Terminal(highlight=False)
    console.print(describe(federation))
    for note in (*federation.notes, *federation.warnings, federation.caveat):
        if note:
            console.print(note, markup=False)
    return 0


def _get(name: str) -> int:
    if spelling(name) == "heart":  # embedded, with a notice of its own
        print(HEART.read_text(encoding="utf-8"), end="")
        return 0
    found = next((each for each in natural().values() if spelling(each.name) == spelling(name)), None)
    if found is None:
        raise unknown("natural federation", name, natural())
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in found.card().splitlines():
        print(fill(line, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False))
    return 0


def _check(file: Path, given: Entries) -> int:
    path = whereabouts(str(given.get("data", "")), given.get("data_dir")) if given.get("data") else None
    if path is None:
        raise ComityError("comity data --schema checks a table: comity data --schema common.yaml my.csv")

    from comity.data import check_table, read_schema

    schema = read_schema(file)
    found = check_table(path, schema, given.get("data.sheet"))
    for name in found.lacking:
        print(one_line(f"missing column: {name}"))
    for name in found.extra:
        print(one_line(f"not in the schema, ignored: {name}"))
    for problem in found.problems[:SHOWN]:
        print(one_line(problem))
    if len(found.problems) > SHOWN:
        print(f"… and {counted(len(found.problems) - SHOWN, 'more problem')}")
    if found.lacking:
        raise ComityError(f"{path} lacks {counted(len(found.lacking), 'column')} of {file}")
    if found.problems:
        raise ComityError(f"{path}: {found.bad_rows:,} of {found.rows:,} rows do not fit {file}")
    blank = f"; {found.blank:,} have no target or client and are left out" if found.blank else ""
    print(f"{path} fits {file}: {found.rows:,} rows, {counted(len(schema.features), 'feature')}{blank}")
    return 0


TAKEN = ("data", "data_dir", "data_limit", "partition", "clients", "test_share", "val_share", "seed")
COMMAND = Command(data, [option for option in RUN_OPTIONS if option.name in TAKEN], order=9)
