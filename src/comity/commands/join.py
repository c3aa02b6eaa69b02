"""``comity join``."""

from contextlib import suppress
from pathlib import Path

from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._options import Count
from comity.commands._command import RUN_OPTIONS, Command
from comity.commands.ask import show_asked
from comity.config import Entries
from comity.results import schema


def join(
    table: Path,
    *,
    given: Entries,
    target: str | None = None,
    client: str | None = None,
    seeds: Count = 6,
    overwrite: bool = False,
    quiet: bool = False,
) -> int:
    """Show which clients gain by joining, and save their models.

    The command first prints the estimate of comity ask. Then it compares local training with FedAvg, APFL, and FedAvg
    with a guard, which falls back on a client's own model if held-out samples favour it. The learning rate is chosen by
    validation, and each row is tested by models that were not trained on it. Any option of comity run may be given;
    with --method, --rule or --guard, only that configuration is compared with local training. The same command resumes
    a stopped run.

    Examples:
        comity join patients.csv --target outcome --client hospital
        comity join patients.csv --target outcome --client hospital --metric log-loss --out joined

    Options:
        table: a table with one row per sample: .csv, .tsv, .parquet, .xlsx
        target: column to predict; by default one named target, label, outcome, …
        client: column with the client of each row; by default one named client, hospital, site, …
        seeds: number of seeds; every three seeds test each row once, so use a multiple of 3
        overwrite: replace the content of --out
        quiet: print only errors
    """
    named = {"data.target": target, "data.client": client}
    given = {name: value for name, value in named.items() if value is not None} | given
    out = Path(str(given.pop("out", "joined")))
    whereabouts(str(table))

    from rich.console import Console

    from comity.commands._terminal import announce, interruptible, show_title, wide_console

    console = Console()
    if not quiet:
        announce(console, str(table))

    from comity.report import write
    from comity.studies import Show, join

    if not quiet and (overwrite or not (out / schema.STUDY).exists()):
        with suppress(ComityError):  # the study reports what is wrong
            show_asked(wide_console(), str(table), given)
            console.print("\nNow the same comparison by federated training:", highlight=False)
    with interruptible(console, "these rounds") as stopped:
        done = join(
            table,
            out=out,
            seeds=seeds,
            overwrite=overwrite,
            show=Show(None if quiet else console),
            stop=stopped,
            **given,
        )
        if stopped():
            console.print("Stopped. The same command resumes it.", highlight=False)
            return 130
    page = out / "report.html"
    write([out], page, say=lambda _: None)
    for title, error in done.study.failed.items():
        console.print(f"{title} failed: {error}", highlight=False, markup=False)
    if not quiet:
        terminal, verdict = wide_console(), done.study.verdict
        show_title(terminal, verdict)
        if verdict.cell is not None and verdict.cell.clients:
            terminal.print(verdict.cell.client_table)
        lr, metric = f"--lr {done.learning_rate:g}", f"--metric {done.study.settings[0].deciding}"
        lines = (
            "",
            f"Learning rate {done.learning_rate:g}, chosen by validation.",
            f"Report: {page}",
            f"Models: {done.models}, one folder per client (of {done.models_of}, trained on two thirds of the rows)",
            "",
            "Predict new rows:",
            f"  comity predict {done.models}/CLIENT new.csv -o predictions.csv",
            "Run the federation with each table at its own site (docs/tutorials/sites.md):",
            f"  comity flower new federation --schema {out / 'schema.yaml'} {metric} {lr} --guard mixture",
        )
        terminal.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    return 1 if done.study.failed else 0


COMMAND = Command(join, [option for option in RUN_OPTIONS if option.name != "data"], order=0)
