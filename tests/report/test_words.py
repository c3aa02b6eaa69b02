"""The answer in words: for a gain, a loss, noise, one seed, and runs that are not finished."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from comity.report._words import Answer
from comity.report._words import answer as answer_of
from comity.results import LoadedStudy
from run_folders import make

ALONE = [0.5] * 20


def answer(*paths: Path) -> Answer:
    study = LoadedStudy(*paths)
    return answer_of(study, study.table())


def shifted(by: float) -> list[float]:
    """Every client this much better than alone."""
    return [value + by for value in ALONE]


def compare(folder: Path, gains: Sequence[float], rule: str = "ConFREE", **more: Any) -> Answer:
    """FedRep with the plain mean at 0.6, and with a rule ``gains`` above it, one entry a seed."""
    for seed, gain in enumerate(gains):
        make(folder / f"mean-{seed}", shifted(0.1), alone=ALONE, seed=seed, **more)
        make(folder / f"rule-{seed}", shifted(0.1 + gain), alone=ALONE, seed=seed, rule=rule, **more)
    return answer(folder)


def test_gain(tmp_path: Path) -> None:
    # differences 1.2, 1.3, 1.4: mean 1.3, deviation 0.1, half width 4.3027 * 0.1 / sqrt(3) = 0.25
    told = compare(tmp_path, [0.012, 0.013, 0.014], same_partition=True)
    assert told.lead == (
        "ConFREE lifts FedRep by 1.30 ± 0.25 points; 20 of 20 clients gain over training alone, nobody loses."
    )
    assert told.more == "± is a 95 % interval from 3 seeds, each paired with itself."
    assert told.cell.label == "FedRep + ConFREE"


def test_loss(tmp_path: Path) -> None:
    told = compare(tmp_path, [-0.020, -0.021, -0.022], same_partition=True)
    assert told.lead.startswith("ConFREE lowers FedRep by 2.10 ± 0.25 points; 20 of 20 clients gain")


def test_inside_the_noise(tmp_path: Path) -> None:
    told = compare(tmp_path, [0.02, -0.01, 0.0], same_partition=True)
    assert told.lead.startswith(
        "ConFREE changes FedRep by +0.33 ± 3.79 points, which is inside the noise; with FedRep + ConFREE, 20 of"
    )


def test_all_inside_the_noise(tmp_path: Path) -> None:
    for seed in (0, 1):
        for rule, by in (("Mean", 0.0), ("ConFREE", 0.01 - 0.03 * seed), ("CALM", -0.05 * seed)):
            accuracy = shifted(0.1 + by)
            make(tmp_path / f"{rule}{seed}", accuracy, alone=ALONE, rule=rule, seed=seed, same_partition=True)
    told = answer(tmp_path)
    assert told.lead == (
        "No rule changes a method by more than the noise of 2 seeds; with the best, FedRep + Mean, 20 of 20 clients "
        "gain over training alone, nobody loses."
    )
    assert "The largest difference to Mean is that of FedRep + CALM by −2.50 ± 31.77 points." in told.more
    assert "Both comparisons with Mean are inside the noise." in told.more


def test_one_seed(tmp_path: Path) -> None:
    told = compare(tmp_path, [0.013])
    assert told.lead.startswith("ConFREE ends 1.30 points above Mean with FedRep in the one seed that both have;")
    assert "One seed cannot tell a difference from noise." in told.more
    assert "±" not in told.lead


def test_two_seeds_are_said_to_be_few(tmp_path: Path) -> None:
    told = compare(tmp_path, [0.012, 0.014], same_partition=True)
    assert any("Two seeds" in note for note in told.notes)


def test_only_shared_seeds_are_compared(tmp_path: Path) -> None:
    make(tmp_path / "a", shifted(0.1), alone=ALONE, seed=0)
    make(tmp_path / "b", shifted(0.4), alone=ALONE, seed=1)
    make(tmp_path / "c", shifted(0.15), alone=ALONE, seed=0, rule="CALM")
    assert answer(tmp_path).lead.startswith("CALM ends 5.00 points above Mean")


def test_the_harmed_are_named(tmp_path: Path) -> None:
    accuracy = shifted(0.1)
    accuracy[11], accuracy[3] = 0.25, 0.45  # 5 of 20 test samples, and a single one
    make(tmp_path / "a", accuracy, alone=ALONE)
    told = answer(tmp_path)
    assert told.lead == (
        "FedRep + Mean reaches 57.50 % accuracy on average over clients, 7.50 points above training alone; "
        "18 of 20 clients gain over training alone, clients 3 and 11 lose."
    )
    assert "1 of the 2 loses no more than one test sample, which may be chance." in told.more


def test_clients_of_several_seeds_are_pooled_unless_they_are_the_same(tmp_path: Path) -> None:
    for same in (False, True):
        for seed in (0, 1):
            accuracy = shifted(0.1)
            accuracy[7] = 0.2 if seed else 0.4
            make(tmp_path / str(same) / str(seed), accuracy, alone=ALONE, seed=seed, same_partition=same)
    pooled = answer(tmp_path / "False")
    assert "38 of 40 clients gain over training alone, 2 lose." in pooled.lead
    assert "those of 2 seeds, each with its own partition" in pooled.more
    assert "Most is lost by client 7 of seed 1: 30.0 points." in pooled.more
    same_ = answer(tmp_path / "True")
    assert "19 of 20 clients gain over training alone, client 7 loses." in same_.lead


def test_many_rules_and_methods(tmp_path: Path) -> None:
    for seed in range(3):
        for method in ("FedRep", "Ditto"):
            base = 0.1 + 0.01 * seed
            for rule, gain in (("Mean", 0.0), ("ConFREE", 0.03), ("CALM", 0.02 * (seed - 1))):
                name = f"{method}-{rule}-{seed}"
                make(tmp_path / name, shifted(base + gain), alone=ALONE, method=method, rule=rule, seed=seed)
    told = answer(tmp_path)
    assert told.lead.startswith("ConFREE lifts")
    assert "Of 4 comparisons with Mean 2 are gains and 2 are inside the noise." in told.more
    assert len(told.details) == 4
    assert all("3 paired seeds" in sentence for sentence in told.details)


def test_methods_without_rules_are_compared_with_the_best(tmp_path: Path) -> None:
    for seed in range(2):
        make(tmp_path / f"a{seed}", shifted(0.10), alone=ALONE, seed=seed)
        make(tmp_path / f"b{seed}", shifted(0.12), alone=ALONE, seed=seed, method="Ditto")
    told = answer(tmp_path)
    assert told.lead.startswith("Ditto + Mean is best with 62.00 % accuracy")
    assert told.details == ["Ditto + Mean is 2.00 ± 0.00 points above FedRep + Mean."]


def test_without_local_nobody_is_called_harmed(tmp_path: Path) -> None:
    make(tmp_path / "a", shifted(0.1))
    told = answer(tmp_path)
    assert told.lead.endswith("how the clients would do alone is not known.")


def test_unfinished(tmp_path: Path) -> None:
    make(tmp_path / "a", shifted(0.1), rounds=50, done=12)
    make(tmp_path / "b", shifted(0.1), rounds=50, done=3, rule="CALM")
    told = answer(tmp_path)
    assert told.lead == "No run is finished yet; FedRep + Mean has done 12 of 50 rounds: 60.00 % accuracy so far."


def test_an_unfinished_run_counts_in_no_difference(tmp_path: Path) -> None:
    compare(tmp_path, [0.012, 0.013, 0.014], same_partition=True)
    make(tmp_path / "rule-3", shifted(0.3), seed=3, rule="ConFREE", done=2)
    told = answer(tmp_path)
    assert told.lead.startswith("ConFREE lifts FedRep by 1.30 ± 0.25 points")
    assert told.notes[0].startswith("1 of 7 runs is not finished and not in the table.")


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    make(tmp_path, shifted(0.1), done=0)
    assert answer(tmp_path).lead == "The run is not finished yet; FedRep + Mean has done 0 of 5 rounds."


@pytest.mark.parametrize("number", [10, 12])
def test_many_comparisons_are_warned_of(tmp_path: Path, number: int) -> None:
    for i in range(number):
        options = {"rule.c": i / 20}
        make(tmp_path / f"r{i}", shifted(0.12), alone=ALONE, rule="ConFREE", options=options, thorough=False)
    make(tmp_path / "mean", shifted(0.1), alone=ALONE, thorough=False)
    assert any("by chance alone" in note for note in answer(tmp_path).notes)
