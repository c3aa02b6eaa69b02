"""Terminal output during a run and at its end."""

import math
from collections.abc import Iterator

from msgspec.structs import asdict
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from comity._labels import EVALUATED
from comity.commands._terminal import show_title
from comity.compare import ClientTable, LoadedStudy
from comity.config import BALANCED
from comity.engine import Callback, Run
from comity.metrics import (
    ALL,
    BOUND,
    CONSTANT,
    DECIDING,
    MAJORITY,
    METRICS,
    MIXED,
    OWN,
    OWN_WEIGHT,
    SOME,
    VALIDATED,
    Metric,
)
from comity.results import FALL, Newcomers, Result, RoundRecord

BALANCED_ACCURACY = DECIDING[BALANCED].key
SHOWN = [each for each in METRICS if each not in (*VALIDATED.values(), OWN_WEIGHT, BOUND, CONSTANT, MAJORITY, MIXED)]
"""Metrics of the summary, where a run has them."""


class Progress(Callback):
    """A live progress bar in a terminal; otherwise occasional plain lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars: Bars | None = None

    def on_start(self, run: Run) -> None:
        config, federation = run.config, run.federation
        role = "another training seed" if config.repeats_local else "each client trains by itself"
        title = f"{run.title} (baseline: {role})" if config.is_local else run.title
        if run.server.round:
            self.console.print(f"Resuming after round {run.server.round}.")
        self.console.print(
            f"[bold]{escape(title)}[/] [dim]· {escape(federation.name)}, {len(federation)} clients, "
            f"{escape(federation.partition)} · {escape(str(config.model))}, {run.site.model().size():,} parameters · "
            f"{config.last_round} rounds, seed {config.seed}[/]"
        )
        if not config.is_local:
            label = DECIDING[run.site.metric].label
            uneven = federation.uneven and run.site.metric == BALANCED
            why = f" Classes are imbalanced: {federation.imbalance}." if uneven else ""
            self.console.print(f"[dim]Clients are compared by {label} (--metric chooses another).{why}[/]")
        for note in () if config.is_local else federation.notes:
            self.console.print(f"[dim]{escape(note)}[/]")
        for warning in () if config.is_local else federation.warnings:
            self.console.print(f"[yellow]{escape(warning)}[/]")
        if self.console.is_terminal:
            columns = (MofNCompleteColumn(), BarColumn(bar_width=30), "{task.fields[numbers]} ·", TimeRemainingColumn())
            self.bars = Bars("round", *columns, "left", console=self.console, transient=True)
            self.bars.start()
            self.task = self.bars.add_task("", total=config.last_round, completed=run.server.round, numbers="")
        self.accuracy = ""

    def on_round(self, run: Run, record: RoundRecord) -> None:
        left_out = [f"client {cid} left out: {why}" for cid, why in record.failed.items()]
        for words in (*left_out, *record.warnings):
            self.console.print(f"[yellow]round {record.round}: {escape(words)}[/]")
        if OWN.key in record.metrics:
            self.accuracy = f"mean test accuracy {_percent(record.metrics[OWN.key].mean)} · "
        seconds = sum(asdict(record.seconds).values())
        numbers = f"{self.accuracy}training loss {record.train_loss:.3f} · {seconds:.2f} s per round"
        if record.epsilon is not None:
            numbers += f" · ε {record.epsilon:.3g}"
        if self.bars is not None:
            self.bars.update(self.task, completed=record.round, numbers=numbers)
        elif record.round % max(1, run.config.last_round // 10) == 0 or run.done:
            self.console.print(f"round {record.round}/{run.config.last_round} · {numbers}")

    def on_end(self, run: Run) -> None:
        if self.bars is not None:
            self.bars.stop()
            self.bars = None
        if run.done and (unstable := run.result.unstable):
            count = f"{len(unstable)} clients" if len(unstable) > 1 else "a client"
            self.console.print(
                f"[yellow]Unstable training: the accuracy of {count} ({', '.join(map(str, unstable))}) fell by more "
                f"than {100 * FALL:.0f} points between evaluations; a smaller --lr or a --clip may help.[/]"
            )


def summary(console: Console, run: Run) -> None:
    """Print the verdict, one row per client, the metrics, and the folder."""
    result = run.result
    console.print()
    if run.folder is not None and result.transfer is not None:
        show_title(console, LoadedStudy(run.folder.path).verdict)
    clients, caveat = run.federation.client_names, run.federation.caveat
    if (rows := ClientTable.of_result("", result, clients)) is not None:
        console.print(rows)
        console.print()
    title = f"{run.title}, round {result.last.round}, models {EVALUATED[run.site.eval_point]}"
    console.print(_table(result, escape(title)))
    if caveat:
        console.print(f"[yellow]{escape(caveat)}[/]")
    if result.newcomers is not None:
        console.print(_newcomers(result.newcomers), markup=False)
    for line in _details(result):
        console.print(f"[dim]{line}[/]")
    if run.folder is not None:
        console.print(f"Run folder: [bold]{escape(str(run.folder.path))}[/]")
    for note in (extension.note for extension in run.site.extensions if extension.note):
        console.print(note, markup=False)


def _table(result: Result, title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for column in ("mean", "std over clients", "worst tenth", "samples pooled"):
        table.add_column(column, justify="right")
    deciding = DECIDING[result.transfer.metric] if result.transfer is not None else OWN
    for metric in (metric for metric in SHOWN if metric.better == "higher" or metric is deciding):
        if (measured := result.last.metrics.get(metric.key)) is not None:
            words = metric.label
            if metric.undefined and (left_out := sum(map(math.isnan, result.clients[metric.key]))):
                words += f", without {left_out} of one class"
            numbers = (measured.mean, measured.std, measured.worst10, measured.samples)
            table.add_row(words, *(_number(metric, number) for number in numbers))
    if (transfer := result.transfer) is not None:
        table.add_row(f"{deciding.label}, local training", _number(deciding, transfer.local), "", "", "")
    return table


def _details(result: Result) -> Iterator[str]:
    best, cost, last = result.best, result.bytes_per_round, result.last.metrics
    chosen = (
        "on validation samples"
        if best.chosen_by == "validation"
        else "on test samples, so it is optimistic: do not report it"
    )
    deciding = DECIDING[result.transfer.metric] if result.transfer is not None else OWN
    deciding = deciding if deciding.key in best.metrics else OWN
    reached = _number(deciding, best.metrics[deciding.key].mean)
    yield f"Best round: {best.round} with {deciding.label} {reached} (chosen {chosen})."
    others = [metric for metric in SHOWN if metric.better != "higher" and metric.key in last]
    numbers = ", ".join(f"{each.label} {_number(each, last[each.key].mean)}" for each in others)
    yield f"On each client's own tests: {numbers}."
    if BALANCED_ACCURACY in last:
        yield "Balanced accuracy gives every class the same weight, also in the model's decisions."
    if any(each.key in last for each in (SOME, ALL)):
        yield "S-acc: accuracy on the tests of the client and of some others. G-acc: on the tests of all clients."
    if result.rule_against is not None and result.mean_against is not None:
        mean = "" if result.mean_against == result.rule_against else f", the plain mean {_percent(result.mean_against)}"
        yield (
            f"To first order, the server's step increases the loss of {_percent(result.rule_against)} of clients "
            f"(mean over rounds{mean})."
        )
    if result.conflict_rate is not None:
        off = f" ± {100 * result.conflict_error:.1f}" if result.conflict_error else ""
        yield f"Conflict (negative cosine): {100 * result.conflict_rate:.0f}{off} % of client pairs, mean over layers."
    seconds = ", ".join(f"{part} {value:.1f}" for part, value in asdict(result.seconds).items())
    yield f"Per round: {cost.down / 1e6:.2f} MB down, {cost.up / 1e6:.2f} MB up. Seconds in total: {seconds}."
    if result.failures:
        yield f"[yellow]{result.failures} times a client was left out of a round; see rounds.jsonl.[/]"


def _newcomers(late: Newcomers) -> str:
    """“Newcomers: 83.1 %, with local training 80.2 %; 1 of 5 is worse.”"""
    mean = late.metrics.get(OWN.key)
    words = "Newcomers: no newcomer got a model" if mean is None else f"Newcomers: {_percent(mean.mean)}"
    if (transfer := late.transfer) is not None:
        local = _number(DECIDING[transfer.metric], transfer.local)
        words += f", {DECIDING[transfer.metric].label} of local training {local}; "
        undecided = sum(each.state == "undecided" for each in transfer.clients.values())
        worse = len(transfer.worse) or "none"
        words += f"of {len(transfer.clients)}, {worse} significantly worse, {undecided} undecided"
    return f"{words}." + "".join(f" Client {cid} was not served: {why}." for cid, why in late.failed.items())


def _number(metric: Metric, value: float) -> str:
    return _percent(value) if metric.unit == "%" else f"{value:.{metric.digits}f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
