"""The answer in words: whether joining pays, who should not join, what guards and rules change, and what to do.

Its numbers are those of the table, in the table's digits and signs: brackets are 95 % intervals, ≈ is inside the noise.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from comity.results import Cell, Difference, LoadedStudy, Table
from comity.results.columns import ACCURACY, DIFFERENCE, GAIN, DifferenceColumn
from comity.results.harm import MOST_NAMED, HarmedClient
from comity.results.schema import ALL, OWN
from comity.results.statistics import MOST_SEEDS, holm
from comity.results.words import counted, listed

FAR = 5.0
"""Points between a client's own tests and everybody's from which on a model is no use elsewhere without a warning."""


class Advice(NamedTuple):
    what: str
    """In a word or two."""
    why: str


@dataclass(frozen=True)
class Answer:
    lead: str
    """One sentence: the best line against training alone, and who gains and loses by it."""
    notes: list[str]
    """What a reader has to know to trust or doubt the numbers."""
    cell: Cell
    """What the lead speaks of."""
    more: str = ""
    """What qualifies it."""
    effects: list[str] = field(default_factory=list)
    """What guards and rules change."""
    advice: list[Advice] = field(default_factory=list)
    """What this suggests."""
    details: list[str] = field(default_factory=list)
    """Each comparison in a sentence of its own."""

    @property
    def worst(self) -> HarmedClient | None:
        """Who loses most, beyond chance if anybody does."""
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
    details = [f"{words}." for words in (*guards.values(), *(_rule_sentence(cell, several) for cell in compared))]
    return Answer(
        _lead(best, several),
        notes,
        best,
        " ".join(
            [*_doubts(best), *_over_settings(bests), *(best.balance.remarks if best.balance else []), *_abroad(best)]
        ),
        [*(f"{words}." for words in of_best[:1]), *_rules(compared, several)],
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
    """“1.30 points [0.88, 1.72]”, without its sign where words or arrows say it."""
    sided = difference.verdict != "noise"
    size = column.number(abs(difference.mean) if sided else difference.mean)
    if difference.low is None or difference.high is None:
        return f"{size} points"
    return f"{'' if sided else '≈ '}{size} points [{column.number(difference.low)}, {column.number(difference.high)}]"


def _real(cells: Sequence[Cell], difference: Callable[[Cell], Difference | None]) -> list[Cell]:
    """Whose difference stands when it is corrected for the number of all of them."""
    tested = [(cell, d.p_value) for cell in cells if (d := difference(cell)) is not None and d.p_value is not None]
    return [cell for (cell, _), real in zip(tested, holm([p for _, p in tested]), strict=True) if real]


# Against training alone.


def _lead(best: Cell, several: bool) -> str:
    gain, rivals, name = best.gain, _finished(best.setting.cells), f"{best.label}{_where(best, several)}"
    if gain is None or best.balance is None:
        reached = f"{'reaches' if len(rivals) == 1 else 'is best with'} {ACCURACY.number(_accuracy(best))} % accuracy"
        return f"{name} {reached} on average over clients; how the clients would do alone is not known."
    line = name if len(rivals) == 1 else f"the best line ({name})"
    lead = {
        "gain": f"Joining {'pays' if _stands(best) else 'may pay'}: {line} ends {_points(GAIN, gain)} above Local",
        "loss": f"Training alone wins: {line} ends {_points(GAIN, gain)} below Local",
        "noise": f"Joining and training alone cannot be told apart: {line} ends {_points(GAIN, gain)} from Local",
        "one seed": f"In one seed {line} ends {_points(GAIN, gain)} {'above' if gain.mean >= 0 else 'below'} Local",
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


def _abroad(best: Cell) -> list[str]:
    """How far its models fall on other clients' data, where that is far."""
    everybody = best.spread(lambda run: 100 * run.metric(ALL))
    if everybody is None or _accuracy(best) - everybody.mean < FAR:
        return []
    reached = f"{ACCURACY.number(everybody.mean)} % on everybody's tests"
    return [f"Each model is for its own client: it has {ACCURACY.number(_accuracy(best))} % at home and {reached}."]


def _stands(best: Cell) -> bool:
    """Whether the best line's difference to Local is more than noise, corrected for all lines that were tried."""
    return best in _real(_finished(best.setting.cells), _gain)


def _gain(cell: Cell) -> Difference | None:
    return cell.gain


def _over_settings(bests: Sequence[Cell]) -> list[str]:
    verdicts = [cell.gain.verdict for cell in bests if cell.gain is not None]
    words = {"gain": "joining pays", "loss": "training alone wins", "noise": "nobody can tell", "one seed": "one seed"}
    clauses = [f"{word} in {verdicts.count(verdict)}" for verdict, word in words.items() if verdict in verdicts]
    return [f"Of {len(verdicts)} settings {listed(clauses)}."] if len(verdicts) > 1 else []


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
    what = _change(f"The guard {cell.options['guard']}", f"{plain.label}{_where(cell, several)}", difference)
    return f"{what}; {_harm(plain)} look worse than alone without it, {_harm(cell)} with it"


def _harm(cell: Cell) -> str:
    if cell.balance is None:
        return "nobody knows how many"
    sure = f" ({len(cell.balance.beyond_chance)} beyond chance)" if cell.balance.counted and cell.balance.harmed else ""
    return f"{len(cell.balance.harmed)} of {cell.balance.clients} clients{sure}"


def _change(who: str, what: str, difference: Difference) -> str:
    if difference.verdict in ("gain", "loss"):
        verb = "lifts" if difference.verdict == "gain" else "lowers"
        return f"{who} {verb} {what} by {_points(DIFFERENCE, difference)}"
    if difference.verdict == "noise":
        return f"{who} changes {what} by {_points(DIFFERENCE, difference)}, inside the noise"
    side = "above" if difference.mean >= 0 else "below"
    return f"{who} ends {_points(DIFFERENCE, difference)} {side} the same without it, {what}, in one seed"


def _rule_sentence(cell: Cell, several: bool) -> str:
    assert cell.difference is not None
    assert cell.base is not None
    one = cell.difference.half is None
    what = cell.base.label if one else cell.method_label
    return _change(cell.rule_label, f"{what}{_where(cell, several)}", cell.difference)


def _rules(compared: Sequence[Cell], several: bool) -> list[str]:
    """The largest effect, and how many are more than noise, corrected for their number."""
    known = {cell: cell.difference for cell in compared if cell.difference is not None}
    if not known:
        return []
    by_size = sorted(known, key=lambda cell: -abs(known[cell].mean))
    verdicts = [difference.verdict for difference in known.values()]
    most_telling = next(v for v in ("gain", "loss", "noise", "one seed") if v in verdicts)
    largest = next(cell for cell in by_size if known[cell].verdict == most_telling)
    sentences = [f"{_rule_sentence(largest, several)}."]
    if len(known) > 1:
        words = {"gain": "above", "loss": "below", "noise": "inside the noise", "one seed": "of one seed only"}
        counts = {word: verdicts.count(verdict) for verdict, word in words.items() if verdict in verdicts}
        clauses = [f"{count} {'is' if count == 1 else 'are'} {word}" for word, count in counts.items()]
        bases = dict.fromkeys(cell.base.rule_label for cell in known if cell.base is not None)
        tally = f"Of {len(known)} comparisons with {listed(bases)} {listed(clauses)}"
        if len(counts) == 1:
            each = "Both" if len(known) == 2 else f"All {len(known)}"
            tally = f"{each} comparisons with {listed(bases)} are {next(iter(counts))}"
        if most_telling in ("gain", "loss"):
            stand = len(_real(compared, _difference))
            tally += f"; corrected for their number (Holm) {stand or 'none'} {'stands' if stand == 1 else 'stand'}"
        sentences.append(f"{tally}.")
    return sentences


def _difference(cell: Cell) -> Difference | None:
    return cell.difference


# What this suggests.


def _advice(best: Cell, compared: Sequence[Cell]) -> list[Advice]:
    """A few plain rules for who has to decide, in the setting of the best line."""
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
    lines = len(_finished(best.setting.cells))
    return [*advice, *_about_rules(compared), *([] if stands else _about_seeds(gain, lines))]


def _about_rules(compared: Sequence[Cell]) -> list[Advice]:
    if not (real := _real(compared, _difference)):
        if not any(cell.difference and cell.difference.half is not None for cell in compared):
            return []
        return [Advice("Keep the plain mean", f"No rule changes a method beyond noise, of {len(compared)} tried.")]
    gains = [cell for cell in real if cell.difference and cell.difference.verdict == "gain"]
    gains = [cell for cell in gains if cell.gain is None or cell.gain.verdict != "loss"]  # alone would be better still
    best = max(gains, key=_accuracy, default=None)
    return [] if best is None else [Advice(f"Use {best.rule_label}", f"{_rule_sentence(best, False)}, corrected too.")]


def _about_seeds(gain: Difference, lines: int) -> list[Advice]:
    if gain.half is None:
        return [Advice("More seeds", "One cannot tell a difference from noise; begin with three.")]
    seeds, size = gain.seeds_needed(lines), f"{GAIN.number(abs(gain.mean))} points"
    of_lines = f" with {lines} lines to choose from" if lines > 1 else ""
    if seeds is None:
        return [Advice("No more seeds", f"Not even {MOST_SEEDS} would tell {size} from nothing{of_lines}.")]
    more = f"About {max(seeds, gain.seeds + 1)} would tell {size} from nothing{of_lines}, four times out of five."
    return [Advice("More seeds", more)]


# Before anything is finished, and notes.


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
        counts = listed(str(count) for count in sorted(attackers))
        notes.append(f"{counts} clients are malicious; their own accuracy counts nowhere.")
    notes += [f"{title} failed: {error}" for title, error in study.failed.items()]
    if study.doubles:
        notes.append(f"{study.doubles} run folders hold the same run as another one and are counted once.")
    return notes
