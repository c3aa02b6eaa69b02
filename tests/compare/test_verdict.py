"""Whether to join: each title from the smallest study that yields it, and advice that never contradicts it."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import comity
from comity.compare import LoadedStudy, Verdict
from comity.compare.verdict import verdict_of
from run_folders import make

TESTS = 400
STAY = ("Keep local models", "Train locally")
GO = ("Use ", "Join")
GUARD = {"guard": {"name": "mixture"}}


def run(folder: Path, gains: Sequence[float], **more: Any) -> Path:
    """A run in which each client's model gains so much over a local model with an accuracy of 50 %."""
    joined = [0.5 + gain for gain in gains]
    return make(folder, joined, alone=[0.5] * len(gains), tests=TESTS, **{"thorough": False, "rounds": 2} | more)


def verdict(folder: Path) -> Verdict:
    return LoadedStudy(folder).verdict


GAIN, LOSS, HARM, SMALL = [0.3] * 6, [-0.3] * 6, [*[0.4] * 5, -0.4], [0.0] * 6


def test_join_where_a_configuration_gains_and_no_client_is_worse(tmp_path: Path) -> None:
    run(tmp_path / "a", GAIN)
    found = verdict(tmp_path)
    assert found.title == "Join"
    assert found.cell.label == "FedRep + Mean"
    begins = "FedRep + Mean is 30.0 points better than local training in accuracy (95 % CI of the gain "
    assert found.evidence.startswith(begins)
    assert found.evidence.endswith("of 6 clients, none is significantly worse and 6 are not worse.")
    assert [advice.what for advice in found.advice] == ["Use FedRep + Mean"]
    assert str(found) == f"Join. {found.evidence}"


def test_join_with_the_guard_where_only_that_harms_nobody(tmp_path: Path) -> None:
    run(tmp_path / "a", HARM)
    run(tmp_path / "b", [0.2] * 6, options=GUARD)
    found = verdict(tmp_path)
    assert (found.title, found.cell and found.cell.label) == ("Join with the guard", "FedRep, guarded + Mean")
    run(tmp_path / "c", [0.1] * 6, rule="ConFREE")  # no guard is needed, though it gains less
    found = verdict(tmp_path)
    assert (found.title, found.cell and found.cell.label) == ("Join", "FedRep + ConFREE")


@pytest.mark.parametrize("gains", [LOSS, [*SMALL[1:], -0.4]])
def test_train_locally_where_harm_is_shown_and_no_gain(tmp_path: Path, gains: list[float]) -> None:
    run(tmp_path / "a", gains)
    found = verdict(tmp_path)
    assert found.title == "Train locally"
    assert " points worse than local training in accuracy (95 % CI of the gain " in found.evidence
    assert [advice.what for advice in found.advice][:2] == ["Keep local models", "Try --guard mixture"]
    run(tmp_path / "b", SMALL, rule="ConFREE", options=GUARD, only=([100] * 6, [100] * 6))  # which may gain, or not
    assert verdict(tmp_path).title == "Undecided"


def test_train_locally_where_a_gain_of_the_margin_is_excluded(tmp_path: Path) -> None:
    run(tmp_path / "a", SMALL, options={"margin": 0.1})
    assert verdict(tmp_path).title == "Train locally"
    run(tmp_path / "a", SMALL, options={"margin": 0.0001})
    assert verdict(tmp_path).title == "Undecided"


def test_undecided_where_neither_is_shown(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6, 0.4], alone=[0.5, 0.5], tests=10)
    found = verdict(tmp_path)
    assert found.title == "Undecided"
    assert [advice.what for advice in found.advice] in (["Run more seeds"], ["Collect more samples"])
    assert "none is significantly worse and 2 are undecided" in found.evidence


def test_undecided_where_the_gain_of_many_is_the_harm_of_one(tmp_path: Path) -> None:
    run(tmp_path / "a", HARM, names=([*"ABCDE", "Basel"], []), thorough=True)
    found = verdict(tmp_path)
    assert found.title == "Undecided"
    assert "1 is worse (Basel)" in found.evidence
    assert found.advice[0] == ("Try --guard mixture", "FedRep + Mean gains on average, but 1 client is worse (Basel).")
    run(tmp_path / "b", HARM, options=GUARD)
    assert "Try --guard mixture" not in [advice.what for advice in verdict(tmp_path).advice]


def test_clients_without_names_are_called_clients(tmp_path: Path) -> None:
    run(tmp_path / "a", [*[0.4] * 4, -0.4, -0.4])
    assert "2 are worse (clients 4 and 5) and 4 are not worse" in verdict(tmp_path).evidence
    run(tmp_path / "b/a", LOSS[:1])
    assert "1 is worse (client 0)" in verdict(tmp_path / "b").evidence
    assert verdict(tmp_path / "b").advice[0].why.endswith("and it harms 1 client (client 0).")


def test_undecided_without_a_local_baseline_or_an_interval(tmp_path: Path) -> None:
    make(tmp_path / "x" / "a", [0.6] * 4)
    make(tmp_path / "x" / "b", [0.7] * 4, rule="ConFREE")
    found = verdict(tmp_path / "x")
    assert found.title == "Undecided"
    assert found.evidence.endswith("FedRep + ConFREE is the best of 2.")
    assert [advice.what for advice in found.advice] == ["Train the local baseline too"]
    make(tmp_path / "x" / "local", [0.5] * 4, method="Local")  # without the scores of single tests
    assert [advice.what for advice in verdict(tmp_path / "x").advice] == ["Run more seeds"]
    make(tmp_path / "y" / "a", [0.6] * 4, done=2)
    assert verdict(tmp_path / "y") == Verdict("Undecided", "No run is finished yet.", None, [])


def test_undecided_where_a_mean_gains_and_no_client_was_compared(tmp_path: Path) -> None:
    """Less of a loss is a gain; but over seeds only the mean is known."""
    for seed in range(4):  # losses are 1 - accuracy here
        options = {"metric": "log-loss"}
        make(tmp_path / f"l{seed}", [0.5] * 4, method="Local", seed=seed, options=options, same_partition=True)
        make(tmp_path / f"a{seed}", [0.8 + seed / 1000] * 4, seed=seed, options=options, same_partition=True)
    found = verdict(tmp_path)
    assert found.evidence == (
        "FedRep + Mean is 0.302 better than local training in log-loss (95 % CI of the gain +0.299 to +0.304); "
        "no client was compared."
    )
    assert (found.title, found.advice[0].what) == ("Undecided", "Compare each client too")


# Any study.

gains = st.lists(st.sampled_from([-0.4, -0.1, -0.02, 0.0, 0.02, 0.1, 0.4]), min_size=4, max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    cells=st.lists(st.tuples(gains, st.booleans(), st.sampled_from([10, 100, 1000])), min_size=1, max_size=4),
    others=st.lists(gains, min_size=1, max_size=2),
)
def test_advice_never_contradicts_the_title_and_settings_are_judged_apart(
    cells: list[tuple[list[float], bool, int]], others: list[list[float]]
) -> None:
    with tempfile.TemporaryDirectory() as name, patch("os.fsync"):
        folder = Path(name)
        for i, (changes, guarded, tests) in enumerate(cells):
            options = {"rule.c": i / 10} | (GUARD if guarded else {})
            run(folder / "one" / f"{i}", changes, rule="ConFREE", options=options, only=only(changes, tests))
        alone = LoadedStudy(folder / "one")
        for i, changes in enumerate(others):
            run(folder / "other" / f"{i}", changes, options={"partition.alpha": 1.0, "rule.by": ("size", "uniform")[i]})
        both = LoadedStudy(folder / "one", folder / "other")
        for study in (alone, both):
            for setting in study.settings:
                check(verdict_of(setting))
            check(study.verdict)
        (right,), first = alone.settings, both.settings[0]
        assert first.options["partition.alpha"] == right.options["partition.alpha"]
        mine, same = verdict_of(right), verdict_of(first)
        assert (mine.title, [each.what for each in mine.advice]) == (same.title, [each.what for each in same.advice])
        assert mine.cell.clients == same.cell.clients
        assert mine.cell.mean_gain == same.cell.mean_gain


def only(changes: Sequence[float], noise: int) -> tuple[list[int], list[int]]:
    """Tests that only one of the two models gets right: the gain, and ``noise`` of 1000 in either direction."""
    more = TESTS * noise // 4000
    lost, won = ([max(0, round(sign * TESTS * change)) + more for change in changes] for sign in (-1, 1))
    return lost, won


def check(found: Verdict) -> None:
    what = [advice.what for advice in found.advice]
    assert len(what) == len(set(what))
    stays, goes = ([each for each in what if each.startswith(words)] for words in (STAY, GO))
    cell = found.cell
    worse = cell.with_state("worse")
    if found.title in ("Join", "Join with the guard"):
        assert (stays, goes) == ([], [f"Use {cell.label}"])
        assert cell.guarded == (found.title == "Join with the guard")
        assert not worse
        assert cell.mean_gain.direction == "gain"
    elif found.title == "Train locally":
        assert (stays, goes) == (["Keep local models"], [])
    else:
        assert (stays, goes) == ([], [])
        assert what  # what would decide
    assert ("none is significantly worse" in found.evidence) == (not worse)
    assert f"of {len(cell.clients)} clients" in found.evidence


def test_more_seeds_are_advised_until_all_folds_are_tested(tmp_path: Path) -> None:
    """One run tests a third of the samples of natural clients: other seeds then test other samples."""
    for seed in range(3):
        comity.run(data="heart", rounds=1, seed=seed, workers=1, out=tmp_path / str(seed))
    whole = "more seeds would test the same samples again"
    few, every = (LoadedStudy(*(tmp_path / str(seed) for seed in range(count))).verdict for count in (1, 3))
    assert few.advice[0].what == "Run more seeds"
    assert "(comity study --seeds 3) test all of them" in few.advice[0].why
    assert whole not in few.advice[0].why
    assert not any("--seeds 3" in advice.why for advice in every.advice)
