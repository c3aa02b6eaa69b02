"""What a rule that chooses among others chose in each round, and what clients had said of it."""

from dataclasses import dataclass

import numpy as np

from comity.report._series import Floats
from comity.results import LoadedRun
from comity.results.schema import Verdict
from comity.results.words import counted, number

MOST_TOLD = 4
"""Stretches of rounds that the sentence names one by one."""


@dataclass(frozen=True)
class Choices:
    """A rule's choices over the rounds."""

    names: list[str]
    rounds: list[int]
    weights: Floats
    """Choices × rounds; the heaviest one made the step."""
    verdicts: dict[int, dict[str, Verdict]]
    """By the round in which clients were asked."""

    @classmethod
    def of(cls, run: LoadedRun) -> "Choices | None":
        noted = {record.round: record.rule for record in run.records if record.rule and record.rule.choice}
        if not noted:
            return None
        names = list(dict.fromkeys(name for note in noted.values() for name in note.choice))
        weights = [[note.choice.get(name, 0.0) for name in names] for note in noted.values()]
        verdicts = {round: note.verdicts for round, note in noted.items() if note.verdicts}
        return cls(names, list(noted), np.nan_to_num(np.array(weights, dtype=np.float64)).T, verdicts)

    @property
    def taken(self) -> list[int]:
        """The place of what made the step, for each round."""
        return [int(place) for place in self.weights.argmax(0)]

    @property
    def spans(self) -> list[tuple[str, int, int]]:
        """What was taken from which round to which."""
        found: list[tuple[str, int, int]] = []
        for place, round in zip(self.taken, self.rounds, strict=True):
            if found and found[-1][0] == self.names[place]:
                found[-1] = (*found[-1][:2], round)
            else:
                found.append((self.names[place], round, round))
        return found

    @property
    def sentence(self) -> str:
        return f"It took {self._spans_in_words()}. {self._last_verdict()}".strip()

    def _spans_in_words(self) -> str:
        spans = self.spans
        if len(spans) == 1:
            return f"{spans[0][0]} in every round"
        if len(spans) <= MOST_TOLD:
            return ", then ".join(
                f"{name} in round{f' {first}' if first == last else f's {first} to {last}'}"
                for name, first, last in spans
            )
        taken = self.taken
        most = max(taken, key=taken.count)
        part = number(100 * taken.count(most) / len(taken), 0)
        changes, end = counted(len(spans) - 1, "time"), spans[-1][0]
        return f"{self.names[most]} in {part} % of the rounds, changed {changes} and ended with {end}"

    def _last_verdict(self) -> str:
        """Why it is what it is now, as far as clients were asked."""
        asked = max(self.verdicts, default=None)
        if asked is None:
            return ""
        verdicts, chosen = self.verdicts[asked], self.names[self.taken[self.rounds.index(asked)]]
        best = min(verdicts, key=lambda name: verdicts[name].change)
        if chosen not in verdicts:
            return ""
        mine, lowest = _effect(verdicts[chosen]), _effect(verdicts[best])
        other = f"; {best} would have {lowest}" if lowest != mine else ""
        return f"When clients were last asked, in round {asked}, {chosen} would have {mine}{other}."


def _effect(verdict: Verdict) -> str:
    way = "lowered" if verdict.change <= 0 else "raised"
    return f"{way} their mean loss by {abs(verdict.change):.2g} and harmed {counted(verdict.harmed, 'client')}"
