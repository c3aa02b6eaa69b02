"""What a rule that chooses among others chose, in words."""

from pathlib import Path

import pytest

from comity.compare import LoadedStudy
from comity.report._choice import choices
from comity.report._payload import payload
from comity.results import LoadedRun, RoundRecord, RuleNote
from run_folders import make


def test_what_was_taken_when_and_why(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.5] * 4, rule="Auto")
    (run,) = payload(LoadedStudy(tmp_path))["runs"]
    assert run["choice"]["taken"] == [0, 0, 2, 2, 2]
    assert run["choice"]["asked"] == [1, 3, 5]
    assert run["choice"]["verdicts"][0] == {"Mean × 1": [-0.25, 0], "ConFREE × 2": [-0.5, 1]}
    assert run["choice"]["words"] == (
        "It took Mean × 1 in rounds 1 to 2, then ConFREE × 2 in rounds 3 to 5. When clients were last asked, in round "
        "5, ConFREE × 2 would have lowered their mean loss by 0.25 and raised it for 0 clients; Mean × 1 would have "
        "lowered their mean loss by 0.5 and raised it for 1 client."
    )


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ("aaa", "It took a in every round."),
        ("ab", "It took a in round 1, then b in round 2."),
        ("aabaaba", "It took a in 71 % of the rounds, changed 4 times and ended with a."),
        ("", None),  # another rule
    ],
)
def test_few_and_many_changes(taken: str, words: str | None) -> None:
    run = LoadedRun.__new__(LoadedRun)
    notes = [RuleNote(certificate="", choice={"a": 1.0 - (name == "b"), "b": 0.5}) for name in taken]
    vars(run)["records"] = [RoundRecord(round=i + 1, rule=note) for i, note in enumerate(notes)]
    found = choices(run)
    assert (found and found["words"]) == words
