"""The answer in words: whether joining pays, who should not join, what guards and rules change, and what to do.

Its numbers are those of the table, in the table's digits and signs: brackets are 95 % intervals, ≈ is inside the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal, NamedTuple

from comity._words import MOST_NAMED, counted, listed
from comity.compare import (
    ACCURACY,
    DIFFERENCE,
    GAIN,
    MOST_SEEDS,
    Cell,
    Difference,
    DifferenceColumn,
    HarmedClient,
    LoadedStudy,
    Table,
    holm,
)
from comity.metrics import ALL, OWN

FAR = 5.0
"""Points between accuracy on own tests and on all clients' tests from which on a model is called personal."""


class Advice(NamedTuple):
    what: str
    """In a word or two."""
    why: str


@dataclass(frozen=True)
class Answer:
    lead: str
    """One sentence: the best configuration against local training, and who gains and loses by it."""
    notes: list[str]
    """What a reader has to know to trust or doubt the numbers."""
    cell: Cell
    """What the lead is about."""
    more: str = ""
    """What qualifies it."""
    effects: list[str] = field(default_factory=list)
    """What guards and rules change."""
    advice: list[Advice] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    """Each comparison in a sentence of its own."""

    @property
    def worst(self) -> HarmedClient | None:
        """The client that loses most, among the significant losses if there are any."""
        balance = self.cell.balance
        return None if balance is None else next(iter(balance.beyond_chance or balance.harmed), None)

    @property
    def seed(self) -> int | None:
        """The seed in which that client loses most."""
        worst = self.worst
        if worst is None or worst.seed is not None:
            return None if worst is None else worst.seed
        return min(self.cell.transfers.items(), key=lambda known: known[1].gain.get(worst.client, 0.0))[0]


def answer(study: LoadedStudy, table: Table) -> Answer:
    notes = _notes(study, table)
    bests = [max(cells, key=_accuracy) for setting in study.settings if (cells := _finished(setting.cells))]
    if not bests:
        lead, cell = _waiting(study)
        return Answer(lead, notes, cell)
    best = max(bests, key=lambda cell: (cell.gain is not None, cell.gain.mean if cell.gain else _accuracy(cell)))
    several = len(study.settings) > 1
    compared = [cell for cell in study.cells if cell.difference is not None]
    guards = {cell: words for cell in _finished(study.cells) if (words := _guard_sentence(cell, several))}
    of_best = [words for cell, words in guards.items() if best in (cell, cell.without_guard)] or list(guards.values())
    details = [*guards.values(), *(f"{_rule_effect(cell, several)}." for cell in compared)]
    remarks = best.balance.remarks if best.balance else []
    return Answer(
        _lead(best, several),
        notes,
        best,
        " ".join([*_doubts(best), *_over_settings(bests), *remarks, *_elsewhere(best)]),
        [*of_best[:1], *_rules(compared, several)],
        _advice(best, [cell for cell in compared if cell.setting is best.setting]),
        details if len(details) > 1 else [] if details else _behind(bests, several),
    )


def _finished(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.accuracy is not None and not cell.local]


def _accuracy(cell: Cell) -> float:
    assert cell.accuracy is not None
    return cell.accuracy.mean


def _where(cell: Cell, several: bool) -> str:
    return f" at {cell.setting.label}" if several and cell.setting.label else ""


def _points(column: DifferenceColumn, difference: Difference) -> str:
    """“1.30 points [0.88, 1.72]”, without its sign where words or arrows give it."""
    sided = difference.verdict != "noise"
    size = column.number(abs(difference.mean) if sided else difference.mean)
    if difference.low is None or difference.high is None:
        return f"{size} points"
    return f"{'' if sided else '≈ '}{size} points [{column.number(difference.low)}, {column.number(difference.high)}]"


def _significant(cells: Sequence[Cell], kind: Literal["gain", "difference"]) -> list[Cell]:
    """The cells whose difference is significant after correction for the number of all of them."""
    tested = [(cell, d.p_value) for cell in cells if (d := attrgetter(kind)(cell)) and d.p_value is not None]
    return [cell for (cell, _), real in zip(tested, holm([p for _, p in tested]), strict=True) if real]


# Against the local baseline.


def _lead(best: Cell, several: bool) -> str:
    gain, rivals, name = best.gain, _finished(best.setting.cells), f"{best.label}{_where(best, several)}"
    if gain is None or best.balance is None:
        reached = f"{'reaches' if len(rivals) == 1 else 'is best with'} {ACCURACY.number(_accuracy(best))} % accuracy"
        return f"{name} {reached} on average over clients; how the clients would do alone is not known."
    line, size = name if len(rivals) == 1 else f"the best line ({name})", _points(GAIN, gain)
    lead = {
        "gain": f"Joining {'pays' if _stands(best) else 'may pay'}: {line} ends {size} above Local",
        "loss": f"Training alone wins: {line} ends {size} below Local",
        "noise": f"Joining and training alone cannot be told apart: {line} ends {size} from Local",
        "one seed": f"In one seed {line} ends {size} {'above' if gain.mean >= 0 else 'below'} Local",
    }[gain.verdict]
    return f"{lead}; {best.balance.sentence}."


def _doubts(best: Cell) -> list[str]:
    gain, rivals = best.gain, _finished(best.setting.cells)
    if gain is None:
        return ["Without a Local run nobody can be called harmed."]
    if gain.half is None:
        return ["One seed cannot tell a difference from noise."]
    doubts = [f"Brackets are 95 % intervals from {gain.seeds} seeds, each paired with itself."]
    if len(rivals) > 1 and gain.verdict == "gain":
        stands = "still stands" if _stands(best) else "no longer stands"
        doubts.append(f"Corrected for the {len(rivals)} lines that it is the best of (Holm) it {stands}.")
    return doubts


def _elsewhere(best: Cell) -> list[str]:
    """How much accuracy drops on other clients' data, where it drops a lot."""
    everybody = best.spread(lambda run: 100 * run.metric(ALL.key))
    if everybody is None or _accuracy(best) - everybody.mean < FAR:
        return []
    reached = f"{ACCURACY.number(everybody.mean)} % on everybody's tests"
    return [f"Each model is for its own client: it has {ACCURACY.number(_accuracy(best))} % at home and {reached}."]


def _stands(best: Cell) -> bool:
    """Whether the best configuration's gain is significant, corrected for all configurations that were tried."""
    return best in _significant(_finished(best.setting.cells), "gain")


def _over_settings(bests: Sequence[Cell]) -> list[str]:
    verdicts = [cell.gain.verdict for cell in bests if cell.gain is not None]
    if len(verdicts) < 2:
        return []
    single = verdicts.count("one seed")
    if single == len(verdicts):
        return [f"{_all(single)} settings have only one seed, so no conclusion can be drawn."]
    words = {"gain": "joining pays", "loss": "training alone wins", "noise": "there is no clear difference"}
    clauses = [f"{word} in {verdicts.count(verdict)}" for verdict, word in words.items() if verdict in verdicts]
    clauses += [f"{single} {'has' if single == 1 else 'have'} only one seed"] if single else []
    return [f"Of {len(verdicts)} settings, {listed(clauses)}."]


def _all(count: int) -> str:
    return "Both" if count == 2 else f"All {count}"


def _behind(bests: Sequence[Cell], several: bool) -> list[str]:
    """How far each method is from the best one in its setting."""
    sentences = []
    for best in bests:
        for other in sorted(_finished(best.setting.cells), key=_accuracy, reverse=True):
            difference = None if other is best else Difference.between(best.accuracy, other.accuracy)
            if difference is not None:
                doubt = {"noise": ", inside the noise", "one seed": ", in one seed"}.get(difference.verdict, "")
                above = f"{_points(DIFFERENCE, difference)} above {other.label}{_where(other, several)}{doubt}"
                sentences.append(f"{best.label} is {above}.")
    return sentences


# What guards and rules change.


def _guard_sentence(cell: Cell, several: bool) -> str:
    plain = cell.without_guard
    difference = None if plain is None else Difference.between(cell.accuracy, plain.accuracy)
    if plain is None or difference is None:
        return ""
    what = _effect(f"The guard {cell.options['guard']}", f"{plain.label}{_where(cell, several)}", difference)
    return f"{what}; {_harm(plain)} look worse than alone without it, {_harm(cell)} with it."


def _harm(cell: Cell) -> str:
    if cell.balance is None:
        return "nobody knows how many"
    sure = f" ({len(cell.balance.beyond_chance)} beyond chance)" if cell.balance.counted and cell.balance.harmed else ""
    return f"{len(cell.balance.harmed)} of {cell.balance.clients} clients{sure}"


def _effect(who: str, what: str, difference: Difference) -> str:
    size = _points(DIFFERENCE, difference)
    return {
        "gain": f"{who} lifts {what} by {size}",
        "loss": f"{who} lowers {what} by {size}",
        "noise": f"{who} changes {what} by {size}, inside the noise",
        "one seed": f"{who} ends {size} {'above' if difference.mean >= 0 else 'below'} the same without it, {what}, "
        "in one seed",
    }[difference.verdict]


def _rule_effect(cell: Cell, several: bool) -> str:
    assert cell.difference is not None
    assert cell.base is not None
    what = cell.base.label if cell.difference.half is None else cell.method_label
    return _effect(cell.rule_label, f"{what}{_where(cell, several)}", cell.difference)


def _rules(compared: Sequence[Cell], several: bool) -> list[str]:
    """The largest effect, and how many are significant after correction for their number."""
    known = {cell: cell.difference for cell in compared if cell.difference is not None}
    if not known:
        return []
    words = {"gain": "above", "loss": "below", "noise": "inside the noise", "one seed": "of one seed only"}
    by_verdict = {
        verdict: [cell for cell, difference in known.items() if difference.verdict == verdict] for verdict in words
    }
    by_verdict = {verdict: cells for verdict, cells in by_verdict.items() if cells}
    verdict, cells = next(iter(by_verdict.items()))  # the clearest one
    largest = f"{_rule_effect(max(cells, key=lambda cell: abs(known[cell].mean)), several)}."
    if len(known) == 1:
        return [largest]
    clauses = [f"{len(c)} {'is' if len(c) == 1 else 'are'} {words[v]}" for v, c in by_verdict.items()]
    bases = listed(dict.fromkeys(cell.base.rule_label for cell in known if cell.base is not None))
    tally = f"Of {len(known)} comparisons with {bases} {listed(clauses)}"
    if len(by_verdict) == 1:
        tally = f"{_all(len(known))} comparisons with {bases} are {words[verdict]}"
    if verdict in ("gain", "loss"):
        stand = len(_significant(compared, "difference"))
        tally += f"; corrected for their number (Holm) {stand or 'none'} {'stands' if stand == 1 else 'stand'}"
    return [largest, f"{tally}."]


# What this suggests.


def _advice(best: Cell, compared: Sequence[Cell]) -> list[Advice]:
    """Simple rules for whoever has to decide, in the setting of the best configuration."""
    gain, balance = best.gain, best.balance
    if gain is None or balance is None:
        return [Advice("Run Local too", "Without it nobody knows whether joining pays, or who is harmed by it.")]
    sure, stands = balance.beyond_chance, gain.verdict == "loss" or _stands(best)
    some = f"{counted(len(sure), 'client')} would be better off alone"
    advice = []
    if gain.verdict == "gain" and stands:
        if not sure:
            advice.append(Advice("Join", f"{best.label} helps on average, and nobody is worse off beyond chance."))
        elif best.guarded:
            advice.append(Advice("Join", f"{best.label} helps on average; {some} all the same."))
        else:
            advice.append(Advice("Join guarded", f"{best.label} helps on average, but {some}: add --guard mixture."))
    elif gain.half is not None:
        better = "Training alone is better" if gain.verdict == "loss" else "Nothing yet shows that joining is better"
        advice.append(Advice("Stay alone", f"{better} on average."))
        if not best.guarded:
            keeps = "With --guard mixture each client keeps its own model where that is better."
            advice.append(Advice("Or join guarded", keeps))
        elif not sure:
            advice.append(Advice("Or join guarded", f"With {best.label} nobody is worse off beyond chance."))
    if sure and gain.verdict != "loss" and not balance.pooled and not best.guarded:
        names = listed(map(str, sorted(sure, key=lambda harm: harm.client)))
        out = f"client{'' if len(sure) == 1 else 's'} {names}" if len(sure) <= MOST_NAMED else f"{len(sure)} clients"
        lose = f"It loses {sure[0].loss}" if len(sure) == 1 else f"They lose up to {sure[0].loss}"
        advice.append(Advice(f"Leave {out} out", f"{lose} points, beyond chance, unless guarded."))
    tried = len(_finished(best.setting.cells))
    return [*advice, *_about_rules(compared), *([] if stands else [_about_seeds(gain, tried)])]


def _about_rules(compared: Sequence[Cell]) -> list[Advice]:
    if not (real := _significant(compared, "difference")):
        if not any(cell.difference and cell.difference.half is not None for cell in compared):
            return []
        return [Advice("Keep the plain mean", f"No rule changes a method beyond noise, of {len(compared)} tried.")]
    gains = [cell for cell in real if cell.difference and cell.difference.verdict == "gain"]
    gains = [
        cell for cell in gains if cell.gain is None or cell.gain.verdict != "loss"
    ]  # else local training is better
    best = max(gains, key=_accuracy, default=None)
    return [] if best is None else [Advice(f"Use {best.rule_label}", f"{_rule_effect(best, False)}, corrected too.")]


def _about_seeds(gain: Difference, tried: int) -> Advice:
    if gain.half is None:
        return Advice("More seeds", "One cannot tell a difference from noise; begin with three.")
    seeds, size = gain.seeds_needed(tried), f"a {GAIN.number(abs(gain.mean))}-point difference significant"
    across = f" across {tried} comparisons" if tried > 1 else ""
    if seeds is None:
        return Advice("No more seeds", f"Even {MOST_SEEDS} seeds would not make {size}{across}.")
    return Advice("More seeds", f"About {max(seeds, gain.seeds + 1)} seeds would make {size}{across} (power 80 %).")


# Before anything is finished, and notes.


def _waiting(study: LoadedStudy) -> tuple[str, Cell]:
    runs = [(run, cell) for cell in study.cells if not cell.local for run in cell.runs.values()]
    if not runs:
        return "Only Local was run: there is nothing yet to compare it with.", study.cells[0]
    furthest, cell = max(runs, key=lambda pair: pair[0].rounds_done)
    start = "No run is finished yet" if len(runs) > 1 else "The run is not finished yet"
    evaluated = [record.metrics[OWN.key].mean for record in furthest.records if OWN.key in record.metrics]
    so_far = f": {ACCURACY.number(100 * evaluated[-1])} % accuracy so far" if evaluated else ""
    rounds = furthest.options["rounds"]
    return f"{start}; {cell.label} has done {furthest.rounds_done} of {rounds} rounds{so_far}.", cell


def _notes(study: LoadedStudy, table: Table) -> list[str]:
    notes = list(table.remarks)
    if any(cell.gain is not None and cell.gain.seeds == 2 for cell in study.cells):
        notes.append("Two seeds make very wide intervals; a third one narrows them to about a third.")
    if failures := sum(len(record.failed) for run in study.runs for record in run.records):
        notes.append(
            f"{failures} times a client's answer failed or was not finite and was left out; see the runs below."
        )
    attackers = {len(run.result.malicious) for run in study.runs if run.result and run.result.malicious}
    if attackers:
        notes.append(f"{listed(map(str, sorted(attackers)))} clients are malicious; their own accuracy counts nowhere.")
    notes += [f"{title} failed: {error}" for title, error in study.failed.items()]
    if study.doubles:
        notes.append(f"{study.doubles} run folders hold the same run as another one and are counted once.")
    return notes
