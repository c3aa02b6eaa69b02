"""The choices of a rule that chooses among others (Auto) by round, and the clients' reports on them."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from comity._words import counted, number
from comity.report._maps import COLUMNS, digits, pack
from comity.report._series import thin
from comity.results import LoadedRun, Verdict

MOST_LISTED_SPANS = 4
"""Maximum spans of rounds that the sentence lists individually."""


def choices(run: LoadedRun) -> dict[str, Any] | None:
    """The weight of each choice by round (0 to 250 for 0 to 1), the choice that made the step, and a sentence."""
    noted = {record.round: record.rule for record in run.records if record.rule and record.rule.choice}
    if not noted:
        return None
    names = list(dict.fromkeys(name for note in noted.values() for name in note.choice))
    weights = np.nan_to_num([[note.choice.get(name, 0.0) for name in names] for note in noted.values()])
    taken = dict(zip(noted, weights.argmax(1).tolist(), strict=True))
    verdicts = {round: note.verdicts for round, note in noted.items() if note.verdicts}
    rounds, asked = thin(list(noted), COLUMNS), thin(sorted(verdicts), COLUMNS)
    columns = [list(noted).index(round) for round in rounds]
    by_name = {round: names[place] for round, place in taken.items()}
    return {
        "names": names,
        "rounds": rounds,
        "taken": [taken[round] for round in rounds],
        "weights": pack(np.round(250 * np.clip(weights[columns].T, 0, 1))),
        "asked": asked,
        "verdicts": [
            {name: [digits(verdict.change, 5), verdict.harmed] for name, verdict in verdicts[round].items()}
            for round in asked
        ],
        "words": f"It took {_spans(by_name)}. {_last_verdict(by_name, verdicts)}".strip(),
    }


def _spans(taken: Mapping[int, str]) -> str:
    """The choices with their spans of rounds, or their frequency if there are many changes."""
    spans = [(name, list(rounds)) for name, rounds in groupby(taken, key=lambda round: taken[round])]
    if len(spans) == 1:
        return f"{spans[0][0]} in every round"
    if len(spans) <= MOST_LISTED_SPANS:
        return ", then ".join(f"{name} in {_rounds(rounds)}" for name, rounds in spans)
    names = list(taken.values())
    most = max(names, key=names.count)
    part, changes = number(100 * names.count(most) / len(names), 0), counted(len(spans) - 1, "time")
    return f"{most} in {part} % of the rounds, changed {changes} and ended with {names[-1]}"


def _rounds(rounds: Sequence[int]) -> str:
    return f"rounds {rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else f"round {rounds[0]}"


def _last_verdict(taken: Mapping[int, str], verdicts: Mapping[int, Mapping[str, Verdict]]) -> str:
    """The clients' reports when they were last asked."""
    asked = max(verdicts, default=0)
    effects, chosen = verdicts.get(asked, {}), taken.get(asked, "")
    if chosen not in effects:
        return ""
    best = min(effects, key=lambda name: effects[name].change)
    mine, lowest = _effect(effects[chosen]), _effect(effects[best])
    other = f"; {best} would have {lowest}" if lowest != mine else ""
    return f"When clients were last asked, in round {asked}, {chosen} would have {mine}{other}."


def _effect(verdict: Verdict) -> str:
    way = "lowered" if verdict.change <= 0 else "raised"
    return f"{way} their mean loss by {abs(verdict.change):.2g} and raised it for {counted(verdict.harmed, 'client')}"
