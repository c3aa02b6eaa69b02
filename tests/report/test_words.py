"""What the page says beside the verdict: what guards and rules change, how far runs are, and notes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from comity.compare import LoadedStudy
from comity.report._words import effects, notes, opened_at, progress
from run_folders import make

LOCAL = [0.5] * 20


def study(folder: Path, gains: Mapping[str, Sequence[float]], **more: Any) -> LoadedStudy:
    """Method + rule with what every client gains over local training, one entry per seed."""
    for label, by_seed in gains.items():
        method, _, rule = label.partition(" + ")
        for seed, gain in enumerate(by_seed):
            options = {"method": method, "rule": rule, "seed": seed, "same_partition": True} | more
            make(folder / f"{label}-{seed}", [0.5 + gain] * 20, alone=LOCAL, **options)
    return LoadedStudy(folder)


@pytest.mark.parametrize(
    ("gains", "sentence"),
    [
        # mean 1.3, deviation 0.1, half width 4.3027 * 0.1 / sqrt(3)
        ([0.012, 0.013, 0.014], "ConFREE improves FedRep by 1.30 points (95 % CI of the gain +1.05 to +1.55)."),
        ([-0.020, -0.021, -0.022], "ConFREE worsens FedRep by 2.10 points (95 % CI of the gain −2.35 to −1.85)."),
        (
            [0.02, -0.01, 0.0],
            "ConFREE improves FedRep by 0.33 points (95 % CI of the gain −3.46 to +4.13), not significantly.",
        ),
        ([0.013], "ConFREE improves FedRep by 1.30 points in one seed."),
    ],
)
def test_what_a_rule_changes(tmp_path: Path, gains: list[float], sentence: str) -> None:
    rules = {"FedRep + Mean": [0.1] * len(gains), "FedRep + ConFREE": [0.1 + gain for gain in gains]}
    assert effects(study(tmp_path, rules)) == [sentence]


def test_several_rules_are_counted_after_correction(tmp_path: Path) -> None:
    rules = {"Mean": (0.1, 0.11, 0.12), "ConFREE": (0.13, 0.14, 0.15), "CALM": (0.08, 0.11, 0.14)}
    lines = {f"{method} + {rule}": gains for method in ("FedRep", "Ditto") for rule, gains in rules.items()}
    first, *each = effects(study(tmp_path, lines))
    assert first == "Of 4 comparisons with Mean, 2 are significant after Holm correction."
    assert len(each) == 4


def test_what_a_guard_changes(tmp_path: Path) -> None:
    guard = {"guard": {"name": "mixture"}, "local_on": "all", "val_share": 0.2, "refit": 1}
    for seed in range(3):
        common = {"alone": LOCAL, "seed": seed, "same_partition": True, "tests": 100}
        make(tmp_path / f"a{seed}", [0.6] * 3 + [0.1] + [0.6] * 16, options={"local_on": "all"}, **common)
        make(tmp_path / f"b{seed}", [0.6] * 20, options=guard, **common)
    assert effects(LoadedStudy(tmp_path)) == [
        "The guard mixture improves FedRep + Mean by 2.50 points (95 % CI of the gain +2.50 to +2.50); 1 of 20 clients "
        "are worse without it, 0 with it."
    ]


def test_how_far_runs_are(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=50, done=12)
    make(tmp_path / "b", [0.6] * 4, rounds=50, done=3, rule="CALM")
    begun = LoadedStudy(tmp_path)
    assert progress(begun) == "No run is finished yet; FedRep + Mean has done 12 of 50 rounds."
    assert opened_at(begun).label == "FedRep + Mean"
    make(tmp_path / "b", [0.6] * 4, rounds=50, rule="CALM")
    finished = LoadedStudy(tmp_path)
    assert progress(finished) == ""
    assert opened_at(finished) is finished.verdict.cell
    make(tmp_path / "local" / "a", [0.6] * 4, method="Local")
    assert progress(LoadedStudy(tmp_path / "local")).startswith("Only local training was run")


def test_notes_say_what_is_missing(tmp_path: Path) -> None:
    make(tmp_path / "unfinished", [0.6] * 20, seed=3, done=2)
    told = study(tmp_path, {"FedRep + Mean": [0.1, 0.1]})
    assert notes(told, told.table())[0].startswith("1 of 3 runs is not finished and not in the table.")
