"""The answer in words: who gains, who is harmed, and whether a difference is more than noise.

Its numbers are those of the table, in the table's digits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from comity.results import Cell, Difference, LoadedStudy, Table
from comity.results.columns import ACCURACY, DIFFERENCE, GAIN, DifferenceColumn
from comity.results.schema import OWN
from comity.results.statistics import Verdict
from comity.results.words import counted, listed


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
    cell: Cell
    """What the lead speaks of."""


def answer(study: LoadedStudy, table: Table) -> Answer:
    compared = [cell for cell in study.cells if cell.difference is not None]
    notes = _notes(study, table, compared)
    finished = [cell for cell in study.cells if cell.accuracy is not None and not cell.local]
    if not finished:
        lead, cell = _waiting(study)
        return Answer(lead, "", [], notes, cell)
    best = max(finished, key=_accuracy)
    several = len(study.settings) > 1
    if not compared:
        lead, more = _reaches(best, several, alone=len(finished) == 1)
        transfer, remarks = _transfer(best)
        return Answer(f"{lead}; {transfer}.", " ".join([*more, *remarks]), _behind_the_best(study), notes, best)
    chosen = _most_telling(compared)
    lead, more = _compared(chosen, compared, several)
    cell, named = chosen, ""
    if _verdict(chosen) == "noise":
        cell = chosen if len(compared) == 1 else best
        named = f"{'the best, ' if cell is not chosen else ''}{cell.label}{_where(cell, several)}, "
    transfer, remarks = _transfer(cell, named)
    details = [f"{_sentence(c, several, brief=True)[0]}." for c in compared] if len(compared) > 1 else []
    return Answer(f"{lead}; {transfer}.", " ".join([*more, *remarks, *_tally(compared)]), details, notes, cell)


def _accuracy(cell: Cell) -> float:
    assert cell.accuracy is not None
    return cell.accuracy.mean


def _difference(cell: Cell) -> Difference:
    assert cell.difference is not None
    return cell.difference


def _verdict(cell: Cell) -> Verdict:
    return _difference(cell).verdict


def _where(cell: Cell, several: bool) -> str:
    return f" at {cell.setting.label}" if several and cell.setting.label else ""


# Comparisons with the base.


def _most_telling(compared: Sequence[Cell]) -> Cell:
    """The largest gain outside the noise, else the largest loss outside it, else the largest difference."""
    for verdict in ("gain", "loss", "noise", "one seed"):
        if judged := [cell for cell in compared if _verdict(cell) == verdict]:
            return max(judged, key=lambda cell: abs(_difference(cell).mean))
    raise AssertionError("every difference has a verdict")


def _compared(chosen: Cell, compared: Sequence[Cell], several: bool) -> tuple[str, list[str]]:
    if _verdict(chosen) != "noise" or len(compared) == 1:
        return _sentence(chosen, several)
    difference = _difference(chosen)
    largest = f"{chosen.label}{_where(chosen, several)} by {_signed(DIFFERENCE, difference)} points"
    lead = f"No rule changes a method by more than the noise of {_seeds(compared)}"
    return lead, [f"The largest difference to {_base(chosen)} is that of {largest}.", _meaning(difference)]


def _base(cell: Cell) -> str:
    assert cell.base is not None
    return cell.base.rule_label


def _sentence(cell: Cell, several: bool, *, brief: bool = False) -> tuple[str, list[str]]:
    """What a rule does to a method, and how sure that is."""
    difference, rule = _difference(cell), cell.rule_label
    method = cell.method_label + _where(cell, several)
    size = DIFFERENCE.number(abs(difference.mean))
    if difference.half is None:
        side = "above" if difference.mean >= 0 else "below"
        lead = f"{rule} ends {size} points {side} {_base(cell)} with {method} in the one seed that both have"
        return lead, ["One seed cannot tell a difference from noise."]
    over = f", {difference.seeds} paired seeds" if brief else ""
    if difference.verdict == "noise":
        lead = f"{rule} changes {method} by {_signed(DIFFERENCE, difference)} points, which is inside the noise{over}"
    else:
        verb = "lifts" if difference.verdict == "gain" else "lowers"
        lead = f"{rule} {verb} {method} by {size} ± {DIFFERENCE.number(difference.half)} points{over}"
    return lead, [_meaning(difference)]


def _meaning(difference: Difference) -> str:
    return f"± is a 95 % interval from {difference.seeds} seeds, each paired with itself."


def _signed(column: DifferenceColumn, difference: Difference) -> str:
    value = column.number(difference.mean, sign=True)
    return value if difference.half is None else f"{value} ± {column.number(difference.half)}"


def _seeds(compared: Sequence[Cell]) -> str:
    numbers = sorted({_difference(cell).seeds for cell in compared})
    return counted(numbers[0], "seed") if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]} seeds"


def _tally(compared: Sequence[Cell]) -> list[str]:
    if len(compared) < 2:
        return []
    verdicts = [_verdict(cell) for cell in compared]
    parts = [
        (verdicts.count("gain"), "a gain", "are gains"),
        (verdicts.count("loss"), "a loss", "are losses"),
        (verdicts.count("noise"), "inside the noise", "are inside the noise"),
        (verdicts.count("one seed"), "of one seed only", "are of one seed only"),
    ]
    clauses = [f"{count} {'is ' + one if count == 1 else many}" for count, one, many in parts if count]
    bases = listed(dict.fromkeys(map(_base, compared)))
    if len(clauses) == 1:
        count, _, verdict = clauses[0].partition(" ")
        return [f"{'Both' if count == '2' else f'All {count}'} comparisons with {bases} {verdict}."]
    return [f"Of {len(compared)} comparisons with {bases} {listed(clauses)}."]


# Without a base.


def _reaches(cell: Cell, several: bool, *, alone: bool) -> tuple[str, list[str]]:
    verb = "reaches" if alone else "is best with"
    accuracy = ACCURACY.number(_accuracy(cell))
    lead = f"{cell.label}{_where(cell, several)} {verb} {accuracy} % accuracy on average over clients"
    gain = cell.gain
    if gain is None:
        return lead, []
    side = "above" if gain.mean >= 0 else "below"
    half = "" if gain.half is None else f" ± {GAIN.number(gain.half)}"
    lead += f", {GAIN.number(abs(gain.mean))}{half} points {side} training alone"
    lead += " (inside the noise)" if gain.verdict == "noise" else ""
    return lead, [] if gain.half is None else [_meaning(gain)]


def _behind_the_best(study: LoadedStudy) -> list[str]:
    """How far each method is from the best one in its setting."""
    sentences = []
    several = len(study.settings) > 1
    for setting in study.settings:
        cells = [cell for cell in setting.cells if cell.accuracy is not None and not cell.local]
        best = max(cells, key=_accuracy, default=None)
        for other in sorted(cells, key=_accuracy, reverse=True):
            if best is None or other is best:
                continue
            difference = Difference.between(best.accuracy, other.accuracy)
            if difference is not None:
                size = DIFFERENCE.number(difference.mean)
                half = "" if difference.half is None else f" ± {DIFFERENCE.number(difference.half)}"
                doubts = {"noise": ", which is inside the noise", "one seed": ", in one seed"}
                where = f"{_where(other, several)}{doubts.get(difference.verdict, '')}"
                sentences.append(f"{best.label} is {size}{half} points above {other.label}{where}.")
    return sentences


def _waiting(study: LoadedStudy) -> tuple[str, Cell]:
    cells = [cell for cell in study.cells if not cell.local]
    if not cells:
        return "Only Local was run: there is nothing yet to compare it with.", study.cells[0]
    cell = max(cells, key=lambda cell: max(run.rounds_done for run in cell.runs.values()))
    furthest = max(cell.runs.values(), key=lambda run: run.rounds_done)
    start = "No run is finished yet" if sum(len(cell.runs) for cell in cells) > 1 else "The run is not finished yet"
    evaluated = [record.metrics[OWN].mean for record in furthest.records if OWN in record.metrics]
    so_far = f": {ACCURACY.number(100 * evaluated[-1])} % accuracy so far" if evaluated else ""
    rounds = furthest.options["rounds"]
    return f"{start}; {cell.label} has done {furthest.rounds_done} of {rounds} rounds{so_far}.", cell


# Clients, and notes.


def _transfer(cell: Cell, named: str = "") -> tuple[str, list[str]]:
    """Who gains and who loses, and what to keep in mind."""
    if cell.balance is None:
        return "how the clients would do alone is not known", ["Without a Local run nobody can be called harmed."]
    return f"{f'with {named}' if named else ''}{cell.balance.sentence}", cell.balance.remarks


def _notes(study: LoadedStudy, table: Table, compared: Sequence[Cell]) -> list[str]:
    notes = list(table.remarks)
    if len(compared) >= 10:
        notes.append(
            f"With {len(compared)} comparisons at 95 %, about {max(1, round(0.05 * len(compared)))} would leave "
            "the noise by chance alone."
        )
    if any(_difference(cell).seeds == 2 for cell in compared):
        notes.append("Two seeds make very wide intervals; a third one narrows them to about a third.")
    if failures := sum(len(record.failed) for run in study.runs for record in run.records):
        notes.append(
            f"{failures} times a client's answer failed or was not finite and was left out; see the runs below."
        )
    attackers = {len(run.result.malicious) for run in study.runs if run.result and run.result.malicious}
    if attackers:
        counts = listed(str(count) for count in sorted(attackers))
        notes.append(f"{counts} clients are malicious; their own accuracy counts nowhere.")
    notes += [f"{title} failed: {error}" for title, error in study.failed.items()]
    if study.doubles:
        notes.append(f"{study.doubles} run folders hold the same run as another one and are counted once.")
    return notes
