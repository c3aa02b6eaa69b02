"""What a person sees while a run goes on, and when it is done."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from comity.engine import Callback, Run
from comity.engine._bridge import result_of
from comity.results import Balance


class Progress(Callback):
    """A live bar on a terminal; a plain line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: Bars | None = None

    def on_start(self, run: Run) -> None:
        config, federation = run.config, run.federation
        title = run.title if config.method.name != "Local" else "Local, for comparison"
        if run.server.round:
            self.console.print(f"Going on after round {run.server.round}.", highlight=False)
        model = run.site.model()
        self.console.print(
            f"[bold]{title}[/] [dim]· {federation.name}, {len(federation)} clients, {federation.partition} · "
            f"{config.model}, {model.size():,} parameters · {config.rounds} rounds, seed {config.seed}[/]",
            highlight=False,
        )
        if self.console.is_terminal:
            columns = [
                TextColumn("round"),
                MofNCompleteColumn(),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[told]}"),
                TextColumn("·"),
                TimeRemainingColumn(),
                TextColumn("left"),
            ]
            self.bars = Bars(*columns, console=self.console, transient=True)
            self.bars.start()
            self.task = self.bars.add_task("", total=config.rounds, completed=run.server.round, told="")
        self.told = ""

    def on_round(self, run: Run, record: dict[str, Any]) -> None:
        for cid, why in record.get("failed", {}).items():
            self.console.print(f"[yellow]round {record['round']}: client {cid} left out: {why}[/]", highlight=False)
        seconds = sum(record["seconds"].values())
        accuracy = record.get("eval/L-acc/mean")
        if accuracy is not None:
            self.told = f"accuracy {100 * accuracy:.1f} %"
        told = f"{self.told} · loss {record['train/loss']:.3f} · {seconds:.2f} s a round"
        if self.bars is not None:
            self.bars.update(self.task, completed=record["round"], told=told)
        elif record["round"] % max(1, run.config.rounds // 10) == 0 or run.done:
            self.console.print(f"round {record['round']}/{run.config.rounds} · {told}", highlight=False)

    def on_end(self, run: Run) -> None:
        if self.bars is not None:
            self.bars.stop()
            self.bars = None


def summary(console: Console, run: Run) -> None:
    """The result in a table, the answer in a sentence, and where everything is."""
    result = run.result
    last = result["last"]

    def percent(name: str, how: str = "mean") -> str:
        value = last.get(f"eval/{name}/{how}")
        return "" if value is None else f"{100 * value:.1f} %"

    table = Table(title=f"{run.title}, round {last['round']}, models as {result['moment']}", title_justify="left")
    table.add_column("")
    table.add_column("mean", justify="right")
    table.add_column("± std", justify="right")
    table.add_column("worst tenth", justify="right")
    table.add_column("over samples", justify="right")
    names = {
        "L-acc": "L-acc: own tests",
        "S-acc": "S-acc: some others' too",
        "G-acc": "G-acc: everybody's",
        "global-acc": "common model",
    }
    for name, told in names.items():
        if f"eval/{name}/mean" in last:
            table.add_row(told, *(percent(name, how) for how in ("mean", "std", "worst10", "samples")))
    if transfer := result.get("transfer"):
        table.add_row("Local: each alone", f"{100 * transfer['local']:.1f} %", "", "", "")
    console.print()
    console.print(table)
    balance = Balance.of_run(result_of(result))
    if balance is not None:
        console.print(" ".join([f"{balance.sentence}.", *balance.remarks]), highlight=False)
    best, cost, seconds = result["best"], result["bytes a round"], result["seconds"]
    lines = [f"Best round: {best['round']} with {100 * best['eval/L-acc/mean']:.1f} % (chosen by {best['chosen by']})."]
    if result["conflict-rate"] is not None:
        lines.append(f"Updates in conflict: {100 * result['conflict-rate']:.0f} % of pairs and layers.")
    lines.append(
        f"A round: {cost['down'] / 1e6:.2f} MB down, {cost['up'] / 1e6:.2f} MB up. Seconds in all: "
        + ", ".join(f"{part} {value:.1f}" for part, value in seconds.items())
        + "."
    )
    if result["failures"]:
        lines.append(f"[yellow]{result['failures']} times a client was left out; see rounds.jsonl.[/]")
    for line in lines:
        console.print(f"[dim]{line}[/]", highlight=False)
    if run.folder is not None:
        console.print(f"Run folder: [bold]{run.folder.path}[/]", highlight=False)
