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
    """Estimate in seconds, before any training, whether joining pays for each client.

    A logistic regression of all clients is compared with each client's own on rows that neither was trained on. Beside
    each client stands how many clients of natural federations with a similar result gained by joining. Columns and
    classes that sites probably mean differently are named first.

    Examples:
        comity ask patients.csv --target outcome --client hospital
        comity ask --data heart --metric log-loss

    Options:
        table: a table with one row per sample: .csv, .tsv, .parquet, .xlsx
        target: the column to predict; by default one that is called target, label, outcome, …
        client: the column that names the client; by default one that is called client, hospital, site, …
        seeds: three consecutive seeds test each row once
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
    """Print what the probe says; options of a run that are not about the data are left out."""
    from comity.probe import ask

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    taken = {name: value for name, value in given.items() if name.partition(".")[0] in TAKEN}
    console.print(ask(data, seeds=seeds, say=say, **taken))


COMMAND = Command(ask, [option for option in RUN_OPTIONS if option.name in TAKEN], order=-1)
