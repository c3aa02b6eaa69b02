"""The columns of a study's table: meaning, source and format of each number."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from comity import metrics
from comity._words import MOST_LISTED, counted, listed, number
from comity.compare.cells import Cell
from comity.compare.harm import STATES, ClientRow
from comity.compare.statistics import Difference, Spread
from comity.config import MEAN
from comity.metrics import Metric
from comity.results import LoadedRun, Result

T = TypeVar("T")
Shown = Literal["always", "page", "asked"]
Mark = Literal["", "gain", "loss", "noise", "unknown", "best"]


@dataclass(frozen=True)
class Entry:
    """One number of the table: for people, for programs, and as a tooltip."""

    text: str = "–"
    small: str = ""  # its spread or interval, or the whole that it is a part of
    value: float | None = None
    parts: tuple[float | str | None, ...] = ()  # further CSV values, in the order of the column's parts
    mark: Mark = ""
    title: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.small}".rstrip()


NOTHING = Entry()


@dataclass(frozen=True)
class Column(Generic[T]):
    name: str  # in CSV, and for choosing columns
    heading: str
    unit: str
    digits: int
    meaning: str
    of: Callable[[Cell], T | None]  # the shown value of a cell; None if unknown
    shown: Shown = "always"  # CSV has every column; "page" columns are too wide for a terminal
    deciding: bool = field(default=False, kw_only=True)  # whether it is in the unit of the metric that decides
    parts: ClassVar[tuple[str, ...]]  # further CSV columns beside the value

    def entry(self, cell: Cell) -> Entry:
        found = self.of(cell)
        return NOTHING if found is None else self.by(cell.setting.metric).show(found)

    def by(self, metric: Metric) -> Self:
        """The column for this deciding metric, whose digits it takes if the metric is not a share."""
        return replace(self, digits=metric.digits) if self.deciding and metric.unit != "%" else self

    def show(self, found: T) -> Entry:
        raise NotImplementedError

    def number(self, value: float, *, sign: bool = False) -> str:
        """A value in this column's digits, for use in sentences."""
        return number(value, self.digits, sign=sign)


@dataclass(frozen=True)
class SpreadColumn(Column[Spread]):
    """A number of each finished run: mean over seeds with standard deviation."""

    with_std: bool = True  # whether people see the standard deviation too
    parts: ClassVar[tuple[str, ...]] = ("std",)

    def show(self, found: Spread) -> Entry:
        small = f"± {self.number(found.std)}" if self.with_std and found.std is not None else ""
        return Entry(self.number(found.mean), small, found.mean, (found.std,))


class ConflictColumn(SpreadColumn):
    """A number that sketches may have estimated, shown with their error."""

    def error(self, cell: Cell) -> float:
        """The largest error over the runs, in percent."""
        return max((100 * run.result.conflict_error for run in cell.finished if run.result), default=0.0)

    def entry(self, cell: Cell) -> Entry:
        entry, error = super().entry(cell), self.error(cell)
        return replace(entry, small=f"± {self.number(error)}") if error else entry


class DifferenceColumn(Column[Difference]):
    """A mean difference with its 95 % confidence interval."""

    parts: ClassVar[tuple[str, ...]] = ("low", "high", "verdict")

    def show(self, found: Difference) -> Entry:
        mean, direction = found.mean, found.direction
        parts = (found.low, found.high, direction)
        if found.low is None or found.high is None:
            title = "One seed has no interval: the difference may be noise"
            return Entry(self.number(mean, sign=True), "(no interval)", mean, parts, direction, title)
        low, high = self.number(found.low), self.number(found.high)
        title = f"95 % CI from {low} to {high}, {counted(found.seeds, 'seed')}"
        title += ": not significant" if direction == "noise" else ""
        return Entry(self.number(mean, sign=True), f"[{low}, {high}]", mean, parts, direction, title)


class StatesColumn(Column[list[ClientRow]]):
    """Number of clients that are worse, undecided and not worse."""

    parts: ClassVar[tuple[str, ...]] = ("undecided", "not worse", "of")

    def show(self, found: list[ClientRow]) -> Entry:
        counts = Counter(row.state for row in found)
        worse, undecided, fine = (counts[state] for state in STATES)
        title = f"worse: {listed(map(str, _worse(found)))}" if worse else "no client is significantly worse"
        mark: Mark = "loss" if worse else ""
        return Entry(f"{worse} / {undecided} / {fine}", "", worse, (undecided, fine, len(found)), mark, title)


def _worse(rows: list[ClientRow]) -> list[str]:
    names = [str(row) for row in rows if row.state == "worse"]
    return [*names[:MOST_LISTED], "…"] if len(names) > MOST_LISTED else names


Numbers = Callable[[Cell], Spread | None]


def _metric(metric: Metric, how: str = "mean") -> Numbers:
    scale = 100 if metric.unit == "%" else 1
    return lambda cell: cell.spread(lambda run: scale * run.metric(metric.key, how))


def _result(of: Callable[[Result], float | None], scale: float = 100) -> Numbers:
    """A number of each run's result, in percent; ``None`` if it was not measured."""

    def number(run: LoadedRun) -> float:
        value = of(run.result) if run.result is not None else None
        return math.nan if value is None else scale * value

    return lambda cell: cell.spread(number)


def metric_column(metric: Metric, name: str = "", shown: Shown = "page") -> SpreadColumn:
    """Mean over clients of a metric in the last round; ``name`` in CSV is the metric's key by default."""
    return SpreadColumn(
        name or metric.key, metric.label, metric.unit, metric.digits, metric.meaning, _metric(metric), shown
    )


def _deciding(how: str) -> Numbers:
    """A summary of the metric that decides."""

    def numbers(cell: Cell) -> Spread | None:
        metric = cell.setting.metric
        return cell.spread(lambda run: metric.points * run.metric(metric.key, how))

    return numbers


def _best(result: Result) -> float | None:
    """Accuracy of the best round, only if validation chose it: chosen on test samples it must not be compared."""
    return result.best.metrics[metrics.OWN.key].mean if result.best.chosen_by == "validation" else None


def _peak(run: LoadedRun) -> float:
    """Largest mean accuracy over clients of all evaluations, in percent."""
    judged = [record.metrics[metrics.OWN.key].mean for record in run.records if metrics.OWN.key in record.metrics]
    return 100 * max(judged, default=math.nan)


def _newcomers(result: Result) -> float | None:
    own = result.newcomers.metrics.get(metrics.OWN.key) if result.newcomers is not None else None
    return None if own is None else own.mean


def _newcomers_gain(result: Result) -> float | None:
    late = result.newcomers.transfer if result.newcomers is not None else None
    return None if late is None else metrics.DECIDING[late.metric].points * late.mean.gain


ACCURACY = metric_column(metrics.OWN, "accuracy", "always")
VALUES = {
    "accuracy": ACCURACY,
    "balanced": metric_column(metrics.BALANCED, "balanced", "asked"),
    "log-loss": metric_column(metrics.LOSS, "log-loss", "asked"),
    "brier": metric_column(metrics.BRIER, "Brier", "asked"),
    "auc": metric_column(metrics.AUC, "AUC", "asked"),
}
"""Columns of the metrics that may decide, by their ``--metric`` name."""
DIFFERENCE = DifferenceColumn(
    *("difference", f"difference to {MEAN}", "points", 2),
    "Gain over the same method with the plain mean, or with the rule of --base, by the metric that decides, with a "
    "95 % confidence interval; grey if the interval contains zero",
    lambda cell: cell.difference,
    deciding=True,
)
WORST = SpreadColumn(
    *("worst10", "worst tenth", "%", 1),
    "Mean over the worst tenth of the clients, by the metric that decides",
    _deciding("worst10"),
    deciding=True,
)
GAIN = DifferenceColumn(
    *("gain", "gain over local training", "points", 2),
    "Gain over local training by the metric that decides, mean over clients, with a 95 % confidence interval that "
    "accounts for overlapping test sets",
    lambda cell: cell.mean_gain,
    deciding=True,
)
CLIENTS = StatesColumn(
    *("worse", "worse / undecided / not worse", "", 0),
    "Number of clients with a significant loss (Benjamini–Hochberg at 5 %), of undecided clients, and of clients "
    "for which a loss above the margin is ruled out; if each seed has its own partition, clients of all seeds count",
    lambda cell: cell.clients or None,
)
CONFLICT = ConflictColumn(
    *("conflict", "conflict", "%", 0),
    "Share of pairs of clients whose updates have a negative cosine, mean over layers and rounds; ± the share whose "
    "sign is expected to be wrong because of sketches",
    *(_result(lambda result: result.conflict_rate), "asked", False),
)
COLUMNS: tuple[Column[Any], ...] = (
    *VALUES.values(),
    *(GAIN, CLIENTS, DIFFERENCE, WORST),
    SpreadColumn(
        *("gaining", "clients that gain", "%", 0),
        "Share of the clients whose metric is above that of local training (positive transfer), significant or not",
        *(_result(lambda result: result.transfer.positive_transfer if result.transfer else None), "asked", False),
    ),
    metric_column(metrics.UNGUARDED, shown="asked"),
    SpreadColumn(
        *("best", "best round", "%", 2),
        "Accuracy in the best round, as chosen by validation",
        *(_result(_best), "asked"),
    ),
    SpreadColumn(
        *("peak", "largest over rounds (optimistic)", "%", 2),
        "The largest accuracy of all evaluations. The round is chosen by test samples, so the number is optimistic; it "
        "is here because some papers report it",
        *(lambda cell: cell.spread(_peak), "asked"),
    ),
    SpreadColumn(
        *("samples", "all samples pooled", "%", 2),
        "Accuracy over the tests of all clients: each test counts the same, not each client",
        *(_metric(metrics.OWN, "samples"), "asked"),
    ),
    SpreadColumn(
        *("relative", "relative to local", "%", 1),
        "Relative gain: mean over clients of gain / local metric",
        *(_result(lambda result: result.transfer.relative_accuracy if result.transfer else None), "asked"),
    ),
    SpreadColumn(
        *("newcomers", "newcomers", "%", 2),
        "Mean accuracy of clients that joined after training, on their own tests, ± standard deviation over seeds",
        _result(_newcomers),
    ),
    SpreadColumn(
        *("newcomers_gain", "newcomers' gain", "points", 2),
        "Gain of newcomers over local training for the same number of rounds as the other clients",
        *(_result(_newcomers_gain, 1), "asked"),
    ),
    metric_column(metrics.CALIBRATION, shown="asked"),
    metric_column(metrics.CONSTANT, shown="asked"),
    SpreadColumn(
        *("against", "clients harmed by the step", "%", 0),
        "Share of the clients whose loss the aggregated step increases to first order, mean over rounds",
        *(_result(lambda result: result.rule_against), "asked", False),
    ),
    CONFLICT,
    SpreadColumn(
        *("MB", "MB per round", "", 2),
        "Megabytes sent and received by all clients together in a round",
        *(_result(lambda result: (result.bytes_per_round.down + result.bytes_per_round.up) / 1e6, 1), "asked", False),
    ),
    SpreadColumn(
        *("seconds", "s per round", "", 2),
        "Seconds of training and aggregation per round, on the machine that ran them",
        _result(lambda result: (result.seconds.train + result.seconds.aggregate) / result.last.round, 1),
        *("asked", False),
    ),
    SpreadColumn(
        *("std", "std over clients", "points", 1),
        "Standard deviation over clients of the accuracy on their own tests",
        *(_metric(metrics.OWN, "std"), "asked"),
    ),
    metric_column(metrics.SOME),
    metric_column(metrics.ALL),
    metric_column(metrics.COMMON, "global", "asked"),
)


def columns_of(runs: Iterable[LoadedRun]) -> tuple[Column[Any], ...]:
    """All columns: those of every table, then the metrics of extensions in these runs."""
    own = {each.key: each.metric for run in runs for each in run.info.metrics}
    taken = {column.name for column in COLUMNS}
    return (*COLUMNS, *(metric_column(each, f"metric {key}" if key in taken else key) for key, each in own.items()))
