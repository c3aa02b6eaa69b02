"""The columns of a study's table: what each number is, where it comes from, and how it is written."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from comity import metrics
from comity._words import number
from comity.compare.cells import Cell
from comity.compare.statistics import Difference, Spread
from comity.config import MEAN
from comity.metrics import Metric
from comity.results import LoadedRun, Result

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
class Column:
    name: str
    """In CSV, and for choosing columns."""
    heading: str
    unit: str
    digits: int
    meaning: str
    shown: Shown = "always"
    """CSV has every column. The page also has those that would make a terminal too narrow."""
    parts: ClassVar[tuple[str, ...]]
    """What CSV has of it beside the value."""

    def entry(self, cell: Cell) -> Entry:
        raise NotImplementedError

    def number(self, value: float, *, sign: bool = False) -> str:
        """A value in this column's digits, for sentences that speak of it."""
        return number(value, self.digits, sign=sign)


@dataclass(frozen=True, kw_only=True)
class SpreadColumn(Column):
    """A number of each finished run: its mean over seeds, with the standard deviation."""

    of: Callable[[LoadedRun, Cell], float]
    """NaN where a run has no such number."""
    with_std: bool = True
    """Whether people see the standard deviation too."""
    parts: ClassVar[tuple[str, ...]] = ("std",)

    def spread(self, cell: Cell) -> Spread | None:
        return cell.spread(lambda run: self.of(run, cell))

    def entry(self, cell: Cell) -> Entry:
        return self.entry_of(self.spread(cell))

    def entry_of(self, spread: Spread | None) -> Entry:
        if spread is None:
            return NOTHING
        small = f"± {self.number(spread.std)}" if self.with_std and spread.std is not None else ""
        return Entry(self.number(spread.mean), small, spread.mean, (spread.std,))


@dataclass(frozen=True, kw_only=True)
class ConflictColumn(SpreadColumn):
    """A number that sketches may have estimated; then with their error."""

    def error(self, cell: Cell) -> float:
        """The largest of its runs, in percent."""
        return max((100 * run.result.conflict_error for run in cell.finished if run.result), default=0.0)

    def entry(self, cell: Cell) -> Entry:
        entry, error = super().entry(cell), self.error(cell)
        return replace(entry, small=f"± {self.number(error)}") if error else entry


@dataclass(frozen=True, kw_only=True)
class DifferenceColumn(Column):
    """A difference that is paired by seed, with its 95 % confidence interval."""

    of: Callable[[Cell], Difference | None]
    parts: ClassVar[tuple[str, ...]] = ("low", "high", "verdict")

    def entry(self, cell: Cell) -> Entry:
        difference = self.of(cell)
        if difference is None:
            return NOTHING
        mean, verdict = difference.mean, difference.verdict
        parts = (difference.low, difference.high, verdict)
        if difference.low is None or difference.high is None:
            title = "One seed cannot tell a difference from noise"
            return Entry(self.number(mean, sign=True), "(one seed)", mean, parts, verdict, title)
        arrow = {"gain": "↑", "loss": "↓"}.get(verdict)
        text = f"{arrow} {self.number(abs(mean))}" if arrow else f"≈ {self.number(mean)}"
        low, high = self.number(difference.low), self.number(difference.high)
        title = f"95 % interval from {low} to {high} points, {difference.seeds} paired seeds"
        title += ": inside the noise" if verdict == "noise" else ""
        return Entry(text, f"[{low}, {high}]", mean, parts, verdict, title)


class GainingColumn(Column):
    """How many of the clients gain."""

    parts: ClassVar[tuple[str, ...]] = ("of",)

    def entry(self, cell: Cell) -> Entry:
        balance = cell.balance
        if balance is None:
            return NOTHING
        return Entry(str(balance.gaining), f"of {balance.clients}", balance.gaining, (balance.clients,))


class HarmedColumn(Column):
    """How many of the clients do worse than alone, and how many of these by more than chance."""

    parts: ClassVar[tuple[str, ...]] = ("of", "beyond chance")

    def entry(self, cell: Cell) -> Entry:
        balance = cell.balance
        if balance is None:
            return NOTHING
        count, sure = len(balance.harmed), len(balance.beyond_chance) if balance.counted else None
        small = f"of {balance.clients}" + (f", {sure} beyond chance" if count and sure is not None else "")
        mark: Mark = "" if not count else "noise" if sure == 0 else "loss"
        return Entry(str(count), small, count, (balance.clients, sure), mark, balance.named)


def _number(metric: Metric, how: str = "mean") -> Callable[[LoadedRun, Cell], float]:
    scale = 100 if metric.unit == "%" else 1
    return lambda run, _: scale * run.metric(metric.key, how)


def metric_column(metric: Metric, name: str = "", shown: Shown = "page") -> SpreadColumn:
    """The mean over clients of a metric in the last round; ``name``: in CSV, by default the metric's key."""
    return SpreadColumn(
        name or metric.key, metric.label, metric.unit, metric.digits, metric.meaning, shown, of=_number(metric)
    )


def _best(run: LoadedRun, _: Cell) -> float:
    """Only where validation chose it: chosen by test it compares nothing."""
    best = run.result.best if run.result else None
    return 100 * best.metrics[metrics.OWN.key].mean if best and best.chosen_by == "validation" else math.nan


def _relative(run: LoadedRun, cell: Cell) -> float:
    return 100 * cell.transfers[run.seed].relative_accuracy if run.seed in cell.transfers else math.nan


def _share(name: str) -> Callable[[LoadedRun, Cell], float]:
    """A share of the result that is not measured in every run, in percent."""

    def of(run: LoadedRun, _: Cell) -> float:
        share = getattr(run.result, name, None)
        return math.nan if share is None else 100 * share

    return of


def _cost(of: Callable[[Result], float]) -> Callable[[LoadedRun, Cell], float]:
    return lambda run, _: of(run.result) if run.result else math.nan


def _newcomers(run: LoadedRun, _: Cell) -> float:
    late = run.result.newcomers if run.result else None
    own = late.metrics.get(metrics.OWN.key) if late else None
    return 100 * own.mean if own else math.nan


def _newcomers_gain(run: LoadedRun, cell: Cell) -> float:
    late = run.result.newcomers if run.result else None
    return _newcomers(run, cell) - 100 * late.transfer.local if late and late.transfer else math.nan


_POOLED = "of the clients of all seeds where each seed has a partition of its own"

ACCURACY = SpreadColumn(
    *("accuracy", "accuracy", "%", 2),
    "Mean over clients of the accuracy on their own tests in the last round, ± standard deviation over seeds",
    of=_number(metrics.OWN),
)
DIFFERENCE = DifferenceColumn(
    *("difference", f"difference to {MEAN}", "points", 2),
    "Points of accuracy more than the same method with the plain mean, or the rule that was asked for, paired by seed, "
    "with a 95 % interval; ≈ and grey where the interval holds zero",
    of=lambda cell: cell.difference,
)
WORST = SpreadColumn(
    *("worst10", "worst tenth", "%", 1),
    "Mean accuracy of the tenth of the clients that do worst",
    of=_number(metrics.OWN, "worst10"),
)
GAIN = DifferenceColumn(
    *("gain", "gain over Local", "points", 2),
    "Points of accuracy more than when each client trains alone, mean over clients, with a 95 % interval",
    shown="page",
    of=lambda cell: cell.gain,
)
GAINING = GainingColumn(
    *("gaining", "clients that gain", "", 0), f"Clients that do better than alone (positive transfer); {_POOLED}"
)
HARMED = HarmedColumn(
    *("harmed", "clients harmed", "", 0),
    f"Clients that do worse than alone; {_POOLED}; beyond chance: by more than the luck of their test samples (exact "
    "McNemar test by client, Benjamini–Hochberg over clients at 5 %)",
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
    with_std=False,
    of=_share("conflict_rate"),
)
AGAINST = SpreadColumn(
    *("against", "step against", "%", 0),
    "Share of the clients whose own update the aggregated step points against, mean over rounds",
    with_std=False,
    shown="page",
    of=_share("rule_against"),
)
COLUMNS: tuple[Column, ...] = (
    ACCURACY,
    DIFFERENCE,
    GAIN,
    GAINING,
    HARMED,
    metric_column(metrics.UNGUARDED, shown="always"),
    SpreadColumn(
        *("best", "best round", "%", 2), "Accuracy in the best round, where validation chose that round", of=_best
    ),
    SpreadColumn(
        *("samples", "over samples", "%", 2),
        "Share of all clients' tests that are answered right: each test counts the same, not each client",
        shown="page",
        of=_number(metrics.OWN, "samples"),
    ),
    WORST,
    SpreadColumn(
        *("relative", "relative to Local", "%", 1),
        "Relative accuracy: mean over clients of (accuracy − alone) / alone",
        of=_relative,
    ),
    *BY_CLASS,
    SpreadColumn(
        *("newcomers", "newcomers", "%", 2),
        "Mean accuracy of clients that joined after training, on their own tests, ± standard deviation over seeds",
        of=_newcomers,
    ),
    SpreadColumn(
        *("newcomers_gain", "newcomers over Local", "points", 2),
        "Points of accuracy that newcomers have more than when they train alone for as many rounds as the others did",
        shown="page",
        of=_newcomers_gain,
    ),
    metric_column(metrics.LOSS, "log-loss"),
    metric_column(metrics.CALIBRATION),
    AGAINST,
    CONFLICT,
    SpreadColumn(
        *("MB", "MB a round", "", 2),
        "Megabytes sent and received by all clients of a round together",
        with_std=False,
        of=_cost(lambda result: (result.bytes_per_round.down + result.bytes_per_round.up) / 1e6),
    ),
    SpreadColumn(
        *("seconds", "s a round", "", 2),
        "Seconds of training and aggregation on the machine that it ran on",
        with_std=False,
        of=_cost(lambda result: (result.seconds.train + result.seconds.aggregate) / result.last.round),
    ),
    SpreadColumn(
        *("std", "std over clients", "points", 1),
        "Standard deviation over clients of the accuracy on their own tests",
        shown="asked",
        of=_number(metrics.OWN, "std"),
    ),
    metric_column(metrics.SOME),
    metric_column(metrics.ALL),
    metric_column(metrics.COMMON, "global", "asked"),
)


def columns_of(runs: Iterable[LoadedRun]) -> tuple[Column, ...]:
    """All columns: those of every table, then metrics of extensions that these runs have."""
    own = {each.key: each.metric for run in runs for each in run.info.metrics}
    taken = {column.name for column in COLUMNS}
    return (*COLUMNS, *(metric_column(each, f"metric {key}" if key in taken else key) for key, each in own.items()))
