"""The table: one row for each method and rule, with the difference to the plain mean paired by seed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from comity.report._cells import Cell, Setting, Study, accuracy
from comity.report._read import Run
from comity.report._statistics import Difference, Spread
from comity.report._words import Transfer, minus


@dataclass(frozen=True)
class Entry:
    """What a cell of the table shows, what it is sorted by, and what it says of itself on hovering."""

    text: str
    value: float | None = None
    small: str = ""
    kind: str = ""
    title: str = ""


@dataclass(frozen=True)
class Row:
    setting: int
    cell: Cell
    again: bool
    """Whether the row above is of the same method."""
    entries: list[Entry] = field(default_factory=list)


COLUMNS = {
    "accuracy, %": "Mean over clients of the accuracy on their own tests, last round, ± standard deviation over seeds",
    "difference to Mean": "Points more than the same method with the plain mean, paired by seed, with a 95 % interval; "
    "grey when the interval holds zero",
    "worst tenth, %": "Mean accuracy of the tenth of the clients that do worst",
    "gain over Local": "Points more than when each client trains alone, mean over clients, with a 95 % interval",
    "relative, %": "Relative accuracy: mean over clients of (accuracy − alone) / alone",
    "clients that gain": "Clients that do better than alone, of all clients of all seeds",
    "harmed": "Clients that do worse than alone",
    "conflict, %": "Share of pairs of clients whose updates have a negative cosine, mean over layers and rounds",
    "MB a round": "Sent and received by all clients of a round together",
    "s a round": "Training and aggregation on this machine",
    "best round, %": "Accuracy in the best round, chosen by validation where there is a validation split; without one "
    "it is chosen by test accuracy, and methods must not be compared by it",
    "seeds": "Finished runs; those not finished in brackets",
}
"""Headings, and what they mean."""

NONE = Entry("–")


def rows(study: Study) -> list[Row]:
    found = []
    for number, setting in enumerate(study.settings):
        accuracies = {id(cell): cell.spread(accuracy).mean for cell in setting.cells if not cell.reference}
        best = max((value for value in accuracies.values() if not math.isnan(value)), default=math.nan)
        above = ""
        if setting.local is None and (local := setting.local_accuracy()):
            found.append(_noted_local(number, local))
        for cell in setting.cells:
            entries = _entries(cell, setting, best=accuracies.get(id(cell)) == best)
            found.append(Row(number, cell, cell.method_label == above, entries))
            above = cell.method_label
    return found


def _entries(cell: Cell, setting: Setting, *, best: bool) -> list[Entry]:
    base = setting.base(cell)
    mine = cell.by_seed(accuracy, True)
    difference = None if base is None else Difference.of(mine, base.by_seed(accuracy, True))
    gain = None if cell.reference else Difference.of(mine, setting.local_accuracy())
    transfer = None if cell.reference else Transfer.of(cell)
    waiting = len(cell.runs) - len(cell.finished)
    seconds = cell.spread(lambda run: run.mean("seconds/train") + run.mean("seconds/aggregate"))
    megabytes = cell.spread(lambda run: (run.mean("bytes/down") + run.mean("bytes/up")) / 1e6)
    return [
        _percent(cell.spread(accuracy), "best" if best else ""),
        _difference(difference),
        _percent(cell.spread(lambda run: run.metric("L-acc", "worst10"))),
        _difference(gain, arrow=False),
        _percent(cell.spread(lambda run: _noted(run, "relative-accuracy")), signed=True),
        NONE if transfer is None else _count(transfer.gaining, transfer.clients),
        NONE if transfer is None else _harmed(transfer),
        _percent(cell.spread(lambda run: run.mean("conflict"))),
        _number(megabytes),
        _number(seconds),
        _best_round(cell),
        Entry(f"{len(cell.finished)}" + (f" ({waiting})" if waiting else ""), float(len(cell.finished))),
    ]


def _noted_local(number: int, known: dict[int, float]) -> Row:
    """Local as the other runs noted it, where its own runs are not at hand."""
    cell = Cell("Local", "", {"method": "Local"}, method_label="Local")
    entries = [NONE] * len(COLUMNS)
    entries[0] = _percent(Spread.of(known.values()))
    entries[-1] = Entry(str(len(known)), float(len(known)))
    return Row(number, cell, False, entries)


def _noted(run: Run, name: str) -> float:
    value = None if run.transfer is None else run.transfer.get(name)
    return math.nan if value is None else float(value)


def _percent(spread: Spread, kind: str = "", *, signed: bool = False) -> Entry:
    if not spread.n:
        return NONE
    small = "" if spread.std is None else f"± {100 * spread.std:.1f}"
    return Entry(minus(100 * spread.mean, 1, plus=signed), spread.mean, small, kind)


def _difference(difference: Difference | None, *, arrow: bool = True) -> Entry:
    if difference is None:
        return NONE
    sign = ("↑ " if difference.mean > 0 else "↓ ") if arrow else ""
    told = f"{abs(100 * difference.mean):.1f}" if arrow else minus(100 * difference.mean, 1, plus=True)
    if difference.half is None:
        return Entry(sign + told, difference.mean, "one seed", "doubt", "One seed cannot tell a difference from noise")
    low, high = (minus(100 * (difference.mean + side * difference.half), 1) for side in (-1, 1))
    kind = {"gain": "gain", "loss": "loss"}.get(difference.verdict, "doubt")
    title = f"95 % interval from {low} to {high} points, {difference.n} paired seeds"
    if difference.verdict == "noise":
        title += ": inside the noise"
    return Entry(sign + told, difference.mean, f"[{low}, {high}]", kind, title)


def _count(part: int, whole: int) -> Entry:
    return Entry(f"{part}", part / whole if whole else None, f"of {whole}")


def _harmed(transfer: Transfer, most: int = 12) -> Entry:
    names = [
        f"{harm.client}{f' of seed {harm.seed}' if transfer.pooled else ''} ({minus(100 * harm.gain, 1)})"
        for harm in transfer.harmed
    ]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    title = f"Clients {', '.join(names[:most])}{more}" if names else "Nobody"
    return Entry(str(len(names)), len(names) / transfer.clients, "", "loss" if names else "", title)


def _number(spread: Spread) -> Entry:
    if not spread.n:
        return NONE
    value = spread.mean
    return Entry(f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}", value)


def _best_round(cell: Cell) -> Entry:
    known = [run.result["best"] for run in cell.finished if run.result is not None and "best" in run.result]
    if not known:
        return NONE

    def of(name: str) -> Callable[[dict[str, float]], float]:
        return lambda best: float(best.get(name) or math.nan)

    value = Spread.of(map(of("eval/L-acc/mean"), known))
    by_test = any(str(best.get("chosen by", "")).startswith("test") for best in known)
    told = "by test" if by_test else "by validation"
    title = (
        "Chosen by test accuracy: do not compare methods by it" if by_test else "Chosen by validation accuracy"
    ) + (f"; round {', '.join(str(best.get('round')) for best in known)}")
    return Entry(minus(100 * value.mean, 1), value.mean, told, "doubt" if by_test else "", title)
