"""The verdict: join, join with the guard, train locally, or undecided. Advice follows from it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from comity._words import counted, listed, number
from comity.compare.cells import Cell, Setting
from comity.compare.harm import named
from comity.compare.statistics import Difference, holm
from comity.results import State

Title = Literal["Join", "Join with the guard", "Train locally", "Undecided"]


class Advice(NamedTuple):
    what: str  # in a few words
    why: str


@dataclass(frozen=True)
class Verdict:
    """The answer to "should we join?", for the conditions of one setting."""

    title: Title
    evidence: str
    """The evidence in one sentence."""
    cell: Cell | None
    """The recommended configuration, or the closest one; ``None`` if no run is finished."""
    advice: list[Advice]

    def __str__(self) -> str:
        return f"{self.title}. {self.evidence}"


def verdict_of(setting: Setting) -> Verdict:
    """Judge the finished configurations of one setting.

    *Join*: a configuration gains on average, significantly after correction for the number of configurations, and none
    of its clients is worse when compared one by one. *Join with the guard*: only a guarded configuration does. *Train
    locally*: harm is significant or a gain of the margin is excluded, and no gain is significant. *Undecided*:
    otherwise.
    """
    cells = [cell for cell in setting.cells if not cell.local and cell.finished and cell.value]
    p_values = {cell: gain.p_value for cell in cells if (gain := cell.mean_gain) and gain.p_value is not None}
    if not p_values:
        return _without_evidence(cells)
    known = list(p_values)
    real = {cell for cell, is_real in zip(known, holm(list(p_values.values())), strict=True) if is_real}
    gaining = [cell for cell in known if cell in real and _gain(cell) > 0]
    safe = [cell for cell in gaining if cell.clients and not cell.with_state("worse")]
    best = max([cell for cell in safe if not cell.guarded] or safe or gaining or known, key=_gain)
    title: Title = "Undecided"
    if safe:
        title = "Join with the guard" if best.guarded else "Join"
    elif not gaining and all(_harms(cell) for cell in known):
        title = "Train locally"
    return Verdict(title, _evidence(best, len(known)), best, _advice(title, best, gaining, known))


def _without_evidence(cells: Sequence[Cell]) -> Verdict:
    if not cells:
        return Verdict("Undecided", "No run is finished yet.", None, [])
    best = max(cells, key=_better)
    reason = "Without a local baseline, the runs do not show whether joining helps."
    advice = [Advice("Train the local baseline too", "Leave out --reference none.")]
    if any(cell.mean_gain for cell in cells):
        reason = "One seed without the scores of single tests cannot show whether joining helps."
        advice = [Advice("Run more seeds", "Their spread shows which differences are more than noise.")]
    return Verdict("Undecided", f"{reason} {best.label} is the best of {len(cells)}.", best, advice)


def _better(cell: Cell) -> float:
    return cell.setting.metric.sign * (cell.value.mean if cell.value else math.nan)


def _gain(cell: Cell) -> float:
    gain = cell.mean_gain
    return -math.inf if gain is None else gain.mean


def _harms(cell: Cell) -> bool:
    """Whether a configuration harms: the mean or a client is worse, or a gain of the margin is excluded."""
    gain, setting = cell.mean_gain, cell.setting
    too_small = gain is not None and gain.high is not None and gain.high < setting.metric.points * setting.margin
    return cell.state == "worse" or bool(cell.with_state("worse")) or too_small


# Texts.


def points(cell: Cell, value: float, digits: int = 1) -> str:
    """“3.1 points”; metrics other than shares have no points."""
    metric = cell.setting.metric
    return f"{number(value, digits)} points" if metric.unit == "%" else number(value, metric.digits)


def interval(difference: Difference, digits: int) -> str:
    """“ (95 % CI of the gain −1.2 to +3.4)”."""
    if difference.low is None or difference.high is None:
        return ""
    low, high = (number(limit, digits, sign=True) for limit in (difference.low, difference.high))
    return f" (95 % CI of the gain {low} to {high})"


def _evidence(cell: Cell, tried: int) -> str:
    gain, metric, setting = cell.mean_gain, cell.setting.metric, cell.setting
    assert gain is not None
    digits = 1 if metric.unit == "%" else metric.digits
    what = f"{cell.label}{f' at {setting.label}' if setting.label else ''}"
    who = f"The best of {tried} configurations, {what}," if tried > 1 else what
    size = f"{points(cell, abs(gain.mean))} {'better' if gain.mean >= 0 else 'worse'} than local training"
    size = size if round(gain.mean, digits) else "as good as local training"
    return f"{who} is {size} in {metric.label}{interval(gain, digits)}; {_tally(cell)}."


def _tally(cell: Cell) -> str:
    """“of 12 clients, 1 is worse (Basel), 3 are undecided and 8 are not worse”."""
    rows = cell.clients
    states: tuple[State, ...] = ("worse", "undecided", "not worse")
    worse, undecided, fine = map(cell.with_state, states)
    clauses = [f"{len(worse)} {_is(worse)} worse{named(worse)}" if worse else "none is significantly worse"]
    clauses += [f"{len(undecided)} {_is(undecided)} undecided"] if undecided else []
    clauses += [f"{len(fine)} {_is(fine)} not worse"] if fine else []
    return f"of {counted(len(rows), 'client')}, {listed(clauses)}" if rows else "no client was compared"


def _is(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"


def _advice(title: Title, best: Cell, gaining: Sequence[Cell], known: Sequence[Cell]) -> list[Advice]:
    worse, guards = best.with_state("worse"), [cell for cell in known if cell.guarded]
    advice = []
    if title in ("Join", "Join with the guard"):
        advice.append(Advice(f"Use {best.label}", "It gains on average, and no client is significantly worse."))
    elif title == "Train locally":
        harmful = [cell for cell in known if cell.with_state("worse")]
        rows = {str(row): row for cell in harmful for row in cell.with_state("worse")}
        shown = named(rows[name] for name in sorted(rows))
        if len(known) == 1:
            harm = f"it harms {counted(len(rows), 'client')}{shown}" if harmful else "its gain is below the margin"
            reason = f"{best.label} is not shown to gain on average, and {harm}."
        else:
            harm = f"{len(harmful)} of {len(known)} harm clients{shown}" if harmful else "gains are below the margin"
            reason = f"No configuration is shown to gain on average; {harm}."
        advice.append(Advice("Keep local models", reason))
    elif gaining and not best.clients:
        reason = f"{best.label} gains on average, but no client was compared: leave out --reference none."
        advice.append(Advice("Compare each client too", reason))
    elif gaining:
        harmed = f"{counted(len(worse), 'client')} {_is(worse)} worse{named(worse)}"
        if guards:
            advice.append(Advice("Leave harmed clients out", f"{best.label} gains on average, but {harmed}."))
        else:
            advice.append(Advice("Try --guard mixture", f"{best.label} gains on average, but {harmed}."))
    if worse and title == "Train locally" and not guards:
        advice.append(Advice("Try --guard mixture", "It keeps each client's own model in the mixture."))
    advice += _advice_on_power(best) if best.with_state("undecided") or title == "Undecided" else []
    constant = [row for row in best.clients if row.constant]
    if constant:
        which = f"{counted(len(constant), 'client')} {'has' if len(constant) == 1 else 'have'} a constant model"
        advice.append(Advice("Look at constant models", f"{which}{named(constant)}: one class for every sample."))
    return advice


def _advice_on_power(cell: Cell) -> list[Advice]:
    """Advice on what would decide: more samples, or more seeds if training luck is most of the noise."""
    undecided, setting = cell.with_state("undecided"), cell.setting
    finite = [row.detectable for row in undecided if math.isfinite(row.detectable)]
    if not undecided:
        return [_more_data(cell, "the mean gain")]
    if not finite:
        return [Advice("Collect more samples", "Undecided clients have too few tests to show any loss.")]
    scale = setting.metric.points
    sizes = [points(cell, scale * size, 0) for size in (min(finite), max(finite))]
    range_ = sizes[0] if sizes[0] == sizes[1] else f"{sizes[0].removesuffix(' points')} to {sizes[1]}"
    more = _more_data(cell, "a smaller loss")
    return [Advice(more.what, f"For undecided clients, the tests detect only losses of {range_} or more. {more.why}")]


def _more_data(cell: Cell, what: str) -> Advice:
    if len(cell.compared) < cell.setting.folds:
        folds = cell.setting.folds
        return Advice(
            "Run more seeds",
            f"One seed tests a part of the samples; {folds} seeds (comity study --seeds {folds}) test all of them.",
        )
    luck = sum(each.training_luck(cell.luck) / each.pairs**2 for each in cell.evidence.values())
    tests = sum(each.test_luck(each.gain) / each.pairs**2 for each in cell.evidence.values())
    if luck > tests or not cell.evidence:
        return Advice("Run more seeds", f"Random variation of training hides {what}; more seeds average it out.")
    reason = f"The tests are too few to show {what}; more seeds would test the same samples again."
    return Advice("Collect more samples", reason)
