"""The answer in words: who gains, who is harmed, and whether a difference is more than noise."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from comity.report._cells import Cell, Comparison, Setting, Study, accuracy
from comity.report._statistics import Difference, Spread

MOST_NAMED = 4  # harmed clients that the lead names one by one


@dataclass(frozen=True)
class Answer:
    lead: str
    """One sentence."""
    more: str
    """What qualifies it."""
    details: list[str]
    """Each comparison in a sentence of its own."""
    notes: list[str]
    """What a reader has to know to trust or doubt the numbers."""
    setting: Setting
    cell: Cell
    """What the lead speaks of."""


@dataclass(frozen=True)
class Harm:
    """A client that does worse than alone. ``seed`` is None where client 3 is the same client in every seed."""

    client: int
    seed: int | None
    gain: float
    samples: float
    """Test samples that the loss amounts to; NaN where it is a mean over seeds."""


@dataclass(frozen=True)
class Transfer:
    """What joining does for the clients of a cell, over its seeds."""

    clients: int
    gaining: int
    harmed: list[Harm]
    """Worst first."""
    seeds: int
    pooled: bool
    """Whether each seed has clients of its own, so that they are counted side by side rather than averaged."""

    @classmethod
    def of(cls, cell: Cell) -> "Transfer | None":
        tables = [(run.seed, cell.clients(run)) for run in cell.finished]
        tables = [(seed, table) for seed, table in tables if len(table.ids) and not np.isnan(table.gain).all()]
        if not tables:
            return None
        gains: dict[tuple[int, int | None], list[float]] = {}
        samples: dict[tuple[int, int | None], float] = {}
        for seed, table in tables:
            for client, gain, lost in zip(table.ids, table.gain.tolist(), table.samples.tolist(), strict=True):
                if not math.isnan(gain):
                    key = (client, None if cell.same_clients else seed)
                    gains.setdefault(key, []).append(gain)
                    samples[key] = lost if len(tables) == 1 or not cell.same_clients else math.nan
        means = {key: sum(values) / len(values) for key, values in gains.items()}
        harmed = [Harm(*key, gain, samples[key]) for key, gain in means.items() if gain < -1e-9]
        return cls(
            clients=len(means),
            gaining=sum(gain > 1e-9 for gain in means.values()),
            harmed=sorted(harmed, key=lambda harm: harm.gain),
            seeds=len(tables),
            pooled=not cell.same_clients and len(tables) > 1,
        )


def answer(study: Study) -> Answer:
    comparisons = study.comparisons()
    several = len(study.settings) > 1
    details = [_sentence(c, several, brief=True)[0] + "." for c in comparisons]
    if len(comparisons) == 1:
        details = []  # the lead has said it
    if not comparisons:
        details = _methods(study)
    notes = _notes(study, comparisons)
    if not any(cell.finished for cell in study.cells if not cell.reference):
        lead, setting, cell = _waiting(study)
        return Answer(lead, "", details, notes, setting, cell)
    setting, cell = _best(study)
    named = ""
    if not comparisons:
        lead, more = _reaches(setting, cell, study)
    else:
        chosen = _chosen(comparisons)
        lead, more = _compared(chosen, comparisons, several)
        if chosen.difference.verdict != "noise" or len(comparisons) == 1:
            setting, cell = chosen.setting, chosen.cell
        if chosen.difference.verdict == "noise":
            best = "the best, " if cell is not chosen.cell else ""
            named = f"{best}{cell.label}{_where(setting, several)}, "
    told, doubts = told_transfer(cell, named)
    return Answer(f"{lead}; {told}.", " ".join([*more, *doubts, *_tally(comparisons)]), details, notes, setting, cell)


def _chosen(comparisons: list[Comparison]) -> Comparison:
    """The one to speak of: the largest gain outside the noise, else the largest loss, else the largest difference."""
    order = {"gain": 3, "loss": 2, "noise": 1, "one seed": 0}
    best = max(order[c.difference.verdict] for c in comparisons)
    judged = [c for c in comparisons if order[c.difference.verdict] == best]
    return max(judged, key=lambda c: c.difference.mean if best == order["gain"] else abs(c.difference.mean))


def _compared(chosen: Comparison, comparisons: list[Comparison], several: bool) -> tuple[str, list[str]]:
    if chosen.difference.verdict == "noise" and len(comparisons) > 1:
        largest = f"{chosen.cell.label}{_where(chosen.setting, several)} by {signed(chosen.difference)} points"
        lead = f"No rule changes a method by more than the noise of {_seeds(comparisons)}"
        return lead, [f"The largest difference to Mean is that of {largest}.", _meaning(chosen.difference)]
    return _sentence(chosen, several)


def _sentence(comparison: Comparison, several: bool, *, brief: bool = False) -> tuple[str, list[str]]:
    """What a rule does to a method, and how sure that is."""
    difference, rule = comparison.difference, comparison.cell.rule_label
    method = comparison.cell.method_label + _where(comparison.setting, several)
    size = f"{abs(difference.mean) * 100:.1f}"
    if difference.half is None:
        side = "above" if difference.mean >= 0 else "below"
        lead = f"{rule} ends {size} points {side} Mean with {method} in the one seed that both have"
        return lead, ["One seed cannot tell a difference from noise."]
    over = f", {difference.n} paired seeds" if brief else ""
    if difference.verdict == "noise":
        lead = f"{rule} changes {method} by {signed(difference)} points, which is inside the noise{over}"
    else:
        verb = "lifts" if difference.verdict == "gain" else "lowers"
        lead = f"{rule} {verb} {method} by {size} ± {100 * difference.half:.1f} points{over}"
    return lead, [_meaning(difference)]


def _meaning(difference: Difference) -> str:
    return f"± is a 95 % interval from {difference.n} seeds, each paired with itself."


def signed(difference: Difference) -> str:
    value = f"{minus(100 * difference.mean, 1, plus=True)}"
    return value if difference.half is None else f"{value} ± {100 * difference.half:.1f}"


def minus(value: float, digits: int, *, plus: bool = False) -> str:
    """A number with a true minus sign; ``-0.0`` is zero."""
    told = f"{value:{'+' if plus else ''}.{digits}f}"
    if float(told) == 0:
        told = f"{0:.{digits}f}"
    return told.replace("-", "−")


def told_transfer(cell: Cell, named: str = "") -> tuple[str, list[str]]:
    """“17 of 20 clients gain over training alone, clients 3 and 11 lose”, and what to keep in mind."""
    transfer = Transfer.of(cell)
    if transfer is None:
        return "how the clients would do alone is not known", ["Without a Local run nobody can be called harmed."]
    start = f"with {named}" if named else ""
    verb = "gains" if transfer.gaining == 1 else "gain"
    told = f"{start}{transfer.gaining} of {transfer.clients} clients {verb} over training alone, "
    harmed, doubts = transfer.harmed, []
    if transfer.pooled:
        doubts.append(
            f"The {transfer.clients} clients are those of {transfer.seeds} seeds, each with its own partition."
        )
    if not harmed:
        return told + "nobody loses", doubts
    if len(harmed) <= MOST_NAMED and not transfer.pooled:
        names = listed(map(str, sorted(harm.client for harm in harmed)))
        told += f"client {names} loses" if len(harmed) == 1 else f"clients {names} lose"
    else:
        told += f"{len(harmed)} lose{'s' if len(harmed) == 1 else ''}"
        worst = harmed[0]
        of_seed = f" of seed {worst.seed}" if transfer.pooled else ""
        doubts.append(f"Most is lost by client {worst.client}{of_seed}: {abs(100 * worst.gain):.1f} points.")
    slight = sum(harm.samples >= -1 for harm in harmed)
    if slight:
        some = f"{slight} of the {len(harmed)} lose{'s' if slight == 1 else ''}" if slight < len(harmed) else "All lose"
        who = "It loses" if len(harmed) == 1 else some
        doubts.append(f"{who} no more than one test sample, which may be chance.")
    return told, doubts


def _reaches(setting: Setting, cell: Cell, study: Study) -> tuple[str, list[str]]:
    spread = cell.spread(accuracy)
    where = _where(setting, len(study.settings) > 1)
    verb = "is best with" if len([c for c in study.cells if not c.reference]) > 1 else "reaches"
    told = f"{cell.label}{where} {verb} {100 * spread.mean:.1f} % accuracy on average over clients"
    difference = Difference.of(cell.by_seed(accuracy, True), setting.local_accuracy())
    if difference is None:
        return told, []
    side = "above" if difference.mean >= 0 else "below"
    half = "" if difference.half is None else f" ± {100 * difference.half:.1f}"
    told += f", {abs(100 * difference.mean):.1f}{half} points {side} training alone"
    if difference.verdict == "noise":
        told += " (inside the noise)"
    return told, [] if difference.half is None else [_meaning(difference)]


def _best(study: Study) -> tuple[Setting, Cell]:
    cells = [(s, c) for s in study.settings for c in s.cells if c.finished and not c.reference]
    return max(cells, key=lambda pair: pair[1].spread(accuracy).mean)


def _methods(study: Study) -> list[str]:
    """Without rules to compare: how far each method is from the best one in its setting."""
    told = []
    several = len(study.settings) > 1
    for setting in study.settings:
        cells = [c for c in setting.cells if c.finished and not c.reference]
        if len(cells) < 2:
            continue
        best, *others = sorted(cells, key=lambda c: -c.spread(accuracy).mean)
        for other in others:
            difference = Difference.of(best.by_seed(accuracy, True), other.by_seed(accuracy, True))
            if difference is None:
                continue
            size = f"{minus(100 * difference.mean, 1)}"
            half = "" if difference.half is None else f" ± {100 * difference.half:.1f}"
            doubt = {"noise": ", which is inside the noise", "one seed": ", in one seed"}.get(difference.verdict, "")
            told.append(f"{best.label} is {size}{half} points above {other.label}{_where(setting, several)}{doubt}.")
    return told


def _waiting(study: Study) -> tuple[str, Setting, Cell]:
    cells = [(setting, cell) for setting in study.settings for cell in setting.cells if not cell.reference]
    if not cells:
        setting = study.settings[0]
        return "Only Local was run: there is nothing yet to compare it with.", setting, setting.cells[0]
    furthest = max(study.runs, key=lambda run: run.round)
    setting, cell = next(pair for pair in cells if furthest in pair[1].runs.values())
    told = "No run is finished yet" if len(study.runs) > 1 else "The run is not finished yet"
    value = accuracy(furthest)
    so_far = "" if math.isnan(value) else f": {100 * value:.1f} % accuracy so far"
    return f"{told}; {cell.label} has done {furthest.round} of {furthest.planned} rounds{so_far}.", setting, cell


def _tally(comparisons: Sequence[Comparison]) -> list[str]:
    if len(comparisons) < 2:
        return []
    verdicts = [c.difference.verdict for c in comparisons]
    parts = [
        (verdicts.count("gain"), "a gain", "are gains"),
        (verdicts.count("loss"), "a loss", "are losses"),
        (verdicts.count("noise"), "inside the noise", "are inside the noise"),
        (verdicts.count("one seed"), "of one seed only", "are of one seed only"),
    ]
    told = [f"{count} {'is ' + one if count == 1 else many}" for count, one, many in parts if count]
    if len(told) == 1:
        count, _, verdict = told[0].partition(" ")
        return [f"{'Both' if count == '2' else f'All {count}'} comparisons with Mean {verdict}."]
    return [f"Of {len(comparisons)} comparisons with Mean {listed(told)}."]


def _notes(study: Study, comparisons: Sequence[Comparison]) -> list[str]:
    notes = []
    waiting = [run for run in study.runs if not run.finished]
    if waiting:
        notes.append(
            f"{len(waiting)} of {len(study.runs)} runs {'is' if len(waiting) == 1 else 'are'} not finished. Unfinished "
            "runs count in no difference, and in a mean only where no run of the same kind is finished."
        )
    if len(comparisons) >= 10:
        notes.append(
            f"With {len(comparisons)} comparisons at 95 %, about {max(1, round(0.05 * len(comparisons)))} would leave "
            "the noise by chance alone."
        )
    if any(0 < c.difference.n < 3 and c.difference.half is not None for c in comparisons):
        notes.append("Two seeds make very wide intervals; a third one narrows them to about a third.")
    failures = sum(int(run.series["failed"].sum()) for run in study.runs if "failed" in run.series)
    if failures:
        notes.append(
            f"{failures} times a client's answer failed or was not finite and was left out; see the runs below."
        )
    attacked = {len(run.result["malicious"]) for run in study.runs if run.result and run.result.get("malicious")}
    if attacked:
        told = listed(str(count) for count in sorted(attacked))
        notes.append(f"{told} clients are malicious; their own accuracy counts nowhere.")
    for title, error in study.plan.failed.items():
        notes.append(f"{title} failed: {error}")
    if study.doubles:
        notes.append(f"{study.doubles} run folders hold the same run as another one and are counted once.")
    return notes


def _where(setting: Setting, several: bool) -> str:
    return f" at {setting.label}" if several and setting.label else ""


def _seeds(comparisons: Sequence[Comparison]) -> str:
    numbers = sorted({c.difference.n for c in comparisons})
    told = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{told} seed{'s' if numbers[-1] > 1 else ''}"


def percent(spread: Spread, digits: int = 1) -> str:
    half = "" if spread.std is None else f" ± {100 * spread.std:.{digits}f}"
    return f"{100 * spread.mean:.{digits}f}{half} %"


def listed(parts: Iterable[str]) -> str:
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last
