"""What a rule that chooses among others (Auto) chose in each round, and what the clients reported about it."""

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from comity.report._series import Floats
from comity.results import LoadedRun
from comity.results.schema import Verdict
from comity.results.words import counted, number

MOST_TOLD = 4
"""Spans of rounds that the sentence lists one by one."""


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
        """The index of the choice that made the step, for each round."""
        return [int(place) for place in self.weights.argmax(0)]

    @property
    def sentence(self) -> str:
        return f"It took {self._spans()}. {self._last_verdict()}".strip()

    def _spans(self) -> str:
        """Which choice from which round to which, or how often where there are many changes."""
        taken = self.taken
        spans = [
            (self.names[place], [round for _, round in group])
            for place, group in groupby(zip(taken, self.rounds, strict=True), key=lambda pair: pair[0])
        ]
        if len(spans) == 1:
            return f"{spans[0][0]} in every round"
        if len(spans) <= MOST_TOLD:
            return ", then ".join(
                f"{name} in rounds {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"{name} in round {rounds[0]}"
                for name, rounds in spans
            )
        most = max(taken, key=taken.count)
        part, changes = number(100 * taken.count(most) / len(taken), 0), counted(len(spans) - 1, "time")
        return f"{self.names[most]} in {part} % of the rounds, changed {changes} and ended with {spans[-1][0]}"

    def _last_verdict(self) -> str:
        """What the clients reported when they were last asked."""
        asked = max(self.verdicts, default=None)
        if asked is None:
            return ""
        verdicts, chosen = self.verdicts[asked], self.names[self.taken[self.rounds.index(asked)]]
        if chosen not in verdicts:
            return ""
        best = min(verdicts, key=lambda name: verdicts[name].change)
        mine, lowest = _effect(verdicts[chosen]), _effect(verdicts[best])
        other = f"; {best} would have {lowest}" if lowest != mine else ""
        return f"When clients were last asked, in round {asked}, {chosen} would have {mine}{other}."


def _effect(verdict: Verdict) -> str:
    way = "lowered" if verdict.change <= 0 else "raised"
    return f"{way} their mean loss by {abs(verdict.change):.2g} and harmed {counted(verdict.harmed, 'client')}"
