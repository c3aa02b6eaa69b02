"""``comity ask``."""

from pathlib import Path
from typing import TYPE_CHECKING

from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._options import Count
from comity.commands._command import RUN_OPTIONS, Command
from comity.config import Entries

if TYPE_CHECKING:
    from rich.console import Console

TAKEN = ("data", "data_dir", "data_limit", "clients", "partition", "seed", "test_share", "metric", "margin")


def ask(
    table: Path | None = None,
    *,
    given: Entries,
    target: str | None = None,
    client: str | None = None,
    seeds: Count = 6,
) -> int:
    """Estimate in seconds which clients would gain by joining.

    Two logistic regressions are compared on rows that neither was trained on: one on the data of all clients, and one
    per client on its own data. The table also shows, for each client, how many similar clients of natural federations
    (real data sets with real sites) gained by joining. Columns and classes that sites seem to use with different
    meanings are listed first.

    Examples:
        comity ask patients.csv --target outcome --client hospital
        comity ask --data heart --metric log-loss

    Options:
        table: a table with one row per sample: .csv, .tsv, .parquet, .xlsx
        target: column to predict; by default one named target, label, outcome, …
        client: column with the client of each row; by default one named client, hospital, site, …
        seeds: number of seeds; every three seeds test each row once, so use a multiple of 3
    """
    if table is not None and "data" in given:
        raise ComityError(f"give a table or --data, not both: got {table} and {given['data']}")
    named = {"data.target": target, "data.client": client}
    given = {name: value for name, value in named.items() if value is not None} | given
    data = str(given.pop("data", "") if table is None else table)
    if not data:
        raise ComityError("comity ask needs TABLE or --data: comity ask TABLE [options]; see comity ask --help")
    whereabouts(data)

    from comity.commands._terminal import announce, wide_console

    console = wide_console()
    announce(console, data)
    show_asked(console, data, given, seeds)
    return 0


def show_asked(console: "Console", data: str, given: Entries, seeds: int = 6) -> None:
    """Print the estimate; options of a run that are not about the data are ignored."""
    from comity.probe import ask

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    taken = {name: value for name, value in given.items() if name.partition(".")[0] in TAKEN}
    console.print(ask(data, seeds=seeds, say=say, **taken))


COMMAND = Command(ask, [option for option in RUN_OPTIONS if option.name in TAKEN], order=-1)
