"""The columns of a study's table: what each number is, where it comes from, and how it is written."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

from comity import metrics
from comity._words import number
from comity.compare.cells import Cell
from comity.compare.harm import Balance
from comity.compare.statistics import Difference, Spread
from comity.config import MEAN
from comity.metrics import Metric
from comity.results import LoadedRun, Result

T = TypeVar("T")
Shown = Literal["always", "page", "asked"]
Mark = Literal["", "gain", "loss", "noise", "one seed", "best"]


@dataclass(frozen=True)
class Entry:
    """One number of the table: as people see it, as programs read it, and what it says of itself on hovering."""

    text: str = "–"
    small: str = ""
    """What qualifies the text: its spread, its interval, or what it is a part of."""
    value: float | None = None
    parts: tuple[float | str | None, ...] = ()
    """What CSV has beside the value, in the order of the column's parts."""
    mark: Mark = ""
    title: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.small}".rstrip()


NOTHING = Entry()


@dataclass(frozen=True)
class Column(Generic[T]):
    name: str
    """In CSV, and for choosing columns."""
    heading: str
    unit: str
    digits: int
    meaning: str
    of: Callable[[Cell], T | None]
    """What it shows of a cell; ``None`` where that is not known."""
    shown: Shown = "always"
    """CSV has every column. The page also has those that would make a terminal too narrow."""
    parts: ClassVar[tuple[str, ...]]
    """What CSV has of it beside the value."""

    def entry(self, cell: Cell) -> Entry:
        found = self.of(cell)
        return NOTHING if found is None else self.show(found)

    def show(self, found: T) -> Entry:
        raise NotImplementedError

    def number(self, value: float, *, sign: bool = False) -> str:
        """A value in this column's digits, for sentences that speak of it."""
        return number(value, self.digits, sign=sign)


@dataclass(frozen=True)
class SpreadColumn(Column[Spread]):
    """A number of each finished run: its mean over seeds, with the standard deviation."""

    with_std: bool = True
    """Whether people see the standard deviation too."""
    parts: ClassVar[tuple[str, ...]] = ("std",)

    def show(self, found: Spread) -> Entry:
        small = f"± {self.number(found.std)}" if self.with_std and found.std is not None else ""
        return Entry(self.number(found.mean), small, found.mean, (found.std,))


class ConflictColumn(SpreadColumn):
    """A number that sketches may have estimated; then with their error."""

    def error(self, cell: Cell) -> float:
        """The largest of its runs, in percent."""
        return max((100 * run.result.conflict_error for run in cell.finished if run.result), default=0.0)

    def entry(self, cell: Cell) -> Entry:
        entry, error = super().entry(cell), self.error(cell)
        return replace(entry, small=f"± {self.number(error)}") if error else entry


class DifferenceColumn(Column[Difference]):
    """A difference that is paired by seed, with its 95 % confidence interval."""

    parts: ClassVar[tuple[str, ...]] = ("low", "high", "verdict")

    def show(self, found: Difference) -> Entry:
        mean, verdict = found.mean, found.verdict
        parts = (found.low, found.high, verdict)
        if found.low is None or found.high is None:
            title = "One seed cannot tell a difference from noise"
            return Entry(self.number(mean, sign=True), "(one seed)", mean, parts, verdict, title)
        arrow = {"gain": "↑", "loss": "↓"}.get(verdict)
        text = f"{arrow} {self.number(abs(mean))}" if arrow else f"≈ {self.number(mean)}"
        low, high = self.number(found.low), self.number(found.high)
        title = f"95 % interval from {low} to {high} points, {found.seeds} paired seeds"
        title += ": inside the noise" if verdict == "noise" else ""
        return Entry(text, f"[{low}, {high}]", mean, parts, verdict, title)


class GainingColumn(Column[Balance]):
    """How many of the clients gain."""

    parts: ClassVar[tuple[str, ...]] = ("of",)

    def show(self, found: Balance) -> Entry:
        return Entry(str(found.gaining), f"of {found.clients}", found.gaining, (found.clients,))


class HarmedColumn(Column[Balance]):
    """How many of the clients do worse than alone, and how many of these by more than chance."""

    parts: ClassVar[tuple[str, ...]] = ("of", "beyond chance")

    def show(self, found: Balance) -> Entry:
        count, sure = len(found.harmed), len(found.beyond_chance) if found.counted else None
        small = f"of {found.clients}" + (f", {sure} beyond chance" if count and sure is not None else "")
        mark: Mark = "" if not count else "noise" if sure == 0 else "loss"
        return Entry(str(count), small, count, (found.clients, sure), mark, found.named)


Numbers = Callable[[Cell], Spread | None]


def _metric(metric: Metric, how: str = "mean") -> Numbers:
    scale = 100 if metric.unit == "%" else 1
    return lambda cell: cell.spread(lambda run: scale * run.metric(metric.key, how))


def _result(of: Callable[[Result], float | None], scale: float = 100) -> Numbers:
    """A number of each run's result, in percent; ``None`` where it was not measured."""

    def number(run: LoadedRun) -> float:
        value = of(run.result) if run.result is not None else None
        return math.nan if value is None else scale * value

    return lambda cell: cell.spread(number)


def metric_column(metric: Metric, name: str = "", shown: Shown = "page") -> SpreadColumn:
    """The mean over clients of a metric in the last round; ``name``: in CSV, by default the metric's key."""
    return SpreadColumn(
        name or metric.key, metric.label, metric.unit, metric.digits, metric.meaning, _metric(metric), shown
    )


def _best(result: Result) -> float | None:
    """Only where validation chose it: chosen by test it compares nothing."""
    return result.best.metrics[metrics.OWN.key].mean if result.best.chosen_by == "validation" else None


def _newcomers(result: Result) -> float | None:
    own = result.newcomers.metrics.get(metrics.OWN.key) if result.newcomers is not None else None
    return None if own is None else own.mean


def _newcomers_gain(result: Result) -> float | None:
    own, late = _newcomers(result), result.newcomers
    return 100 * own - 100 * late.transfer.local if own is not None and late and late.transfer else None


def _relative(cell: Cell) -> Spread | None:
    return Spread.of({seed: 100 * each.relative_accuracy for seed, each in cell.transfers.items()})


_POOLED = "of the clients of all seeds where each seed has a partition of its own"

ACCURACY = SpreadColumn(
    *("accuracy", "accuracy", "%", 2),
    "Mean over clients of the accuracy on their own tests in the last round, ± standard deviation over seeds",
    _metric(metrics.OWN),
)
DIFFERENCE = DifferenceColumn(
    *("difference", f"difference to {MEAN}", "points", 2),
    "Points of accuracy more than the same method with the plain mean, or the rule that was asked for, paired by seed, "
    "with a 95 % interval; ≈ and grey where the interval holds zero",
    lambda cell: cell.difference,
)
WORST = SpreadColumn(
    *("worst10", "worst tenth", "%", 1),
    "Mean accuracy of the tenth of the clients that do worst",
    _metric(metrics.OWN, "worst10"),
)
GAIN = DifferenceColumn(
    *("gain", "gain over Local", "points", 2),
    "Points of accuracy more than when each client trains alone, mean over clients, with a 95 % interval",
    *(lambda cell: cell.gain, "page"),
)
HARMED = HarmedColumn(
    *("harmed", "clients harmed", "", 0),
    f"Clients that do worse than alone; {_POOLED}; beyond chance: by more than the luck of their test samples (exact "
    "McNemar test by client, Benjamini–Hochberg over clients at 5 %)",
    lambda cell: cell.balance,
)
BY_CLASS = (
    metric_column(metrics.BALANCED, "balanced", "asked"),
    metric_column(metrics.AUC, shown="asked"),
)
"""Shown unasked where accuracy leaves much open: of two classes, and of classes of very different size."""
CONFLICT = ConflictColumn(
    *("conflict", "conflict", "%", 0),
    "Share of pairs of clients whose updates have a negative cosine, mean over layers and rounds; ± the share that "
    "sketches are expected to judge wrongly",
    _result(lambda result: result.conflict_rate),
    with_std=False,
)
COLUMNS: tuple[Column[Any], ...] = (
    *(ACCURACY, DIFFERENCE, GAIN),
    GainingColumn(
        *("gaining", "clients that gain", "", 0),
        f"Clients that do better than alone (positive transfer); {_POOLED}",
        lambda cell: cell.balance,
    ),
    HARMED,
    metric_column(metrics.UNGUARDED, shown="always"),
    SpreadColumn(
        *("best", "best round", "%", 2), "Accuracy in the best round, where validation chose that round", _result(_best)
    ),
    SpreadColumn(
        *("samples", "over samples", "%", 2),
        "Share of all clients' tests that are answered right: each test counts the same, not each client",
        *(_metric(metrics.OWN, "samples"), "page"),
    ),
    WORST,
    SpreadColumn(
        *("relative", "relative to Local", "%", 1),
        "Relative accuracy: mean over clients of (accuracy − alone) / alone",
        _relative,
    ),
    *BY_CLASS,
    SpreadColumn(
        *("newcomers", "newcomers", "%", 2),
        "Mean accuracy of clients that joined after training, on their own tests, ± standard deviation over seeds",
        _result(_newcomers),
    ),
    SpreadColumn(
        *("newcomers_gain", "newcomers over Local", "points", 2),
        "Points of accuracy that newcomers have more than when they train alone for as many rounds as the others did",
        *(_result(_newcomers_gain, 1), "page"),
    ),
    metric_column(metrics.LOSS, "log-loss"),
    metric_column(metrics.CALIBRATION),
    SpreadColumn(
        *("against", "step against", "%", 0),
        "Share of the clients whose own update the aggregated step points against, mean over rounds",
        *(_result(lambda result: result.rule_against), "page", False),
    ),
    CONFLICT,
    SpreadColumn(
        *("MB", "MB a round", "", 2),
        "Megabytes sent and received by all clients of a round together",
        _result(lambda result: (result.bytes_per_round.down + result.bytes_per_round.up) / 1e6, 1),
        with_std=False,
    ),
    SpreadColumn(
        *("seconds", "s a round", "", 2),
        "Seconds of training and aggregation on the machine that it ran on",
        _result(lambda result: (result.seconds.train + result.seconds.aggregate) / result.last.round, 1),
        with_std=False,
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
    """All columns: those of every table, then metrics of extensions that these runs have."""
    own = {each.key: each.metric for run in runs for each in run.info.metrics}
    taken = {column.name for column in COLUMNS}
    return (*COLUMNS, *(metric_column(each, f"metric {key}" if key in taken else key) for key, each in own.items()))
