"""The answer in words: for a gain, a loss, noise, one seed, and runs that are not finished."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def test_joining_pays(tmp_path: Path) -> None:
    # ConFREE is 11.2, 11.3 and 11.4 points above Local: mean 11.3, deviation 0.1, half width 4.3027 * 0.1 / sqrt(3)
    told = compare(tmp_path, [0.012, 0.013, 0.014], same_partition=True)
    assert told.lead == (
        "Joining pays: the best line (FedRep + ConFREE) ends 11.30 points [11.05, 11.55] above Local; 20 of 20 clients "
        "gain over training alone, nobody looks worse."
    )
    assert told.more == (
        "Brackets are 95 % intervals from 3 seeds, each paired with itself. Corrected for the 2 lines that it is the "
        "best of (Holm) it still stands. Each model is for its own client: it has 61.30 % at home and 36.78 % on "
        "everybody's tests."
    )
    assert told.effects == ["ConFREE lifts FedRep by 1.30 points [1.05, 1.55]."]
    assert told.cell.label == "FedRep + ConFREE"
    assert told.advice == [
        ("Join", "FedRep + ConFREE helps on average, and nobody is worse off beyond chance."),
        ("Use ConFREE", "ConFREE lifts FedRep by 1.30 points [1.05, 1.55], corrected too."),
    ]
    assert (told.worst, told.seed) == (None, None)


def test_training_alone_wins(tmp_path: Path) -> None:
    for seed, by in enumerate((0.02, 0.03, 0.04)):
        make(tmp_path / f"a{seed}", shifted(-by), alone=ALONE, seed=seed, same_partition=True)
    told = answer(tmp_path)
    assert told.lead == (
        "Training alone wins: FedRep + Mean ends 3.00 points [−5.48, −0.52] below Local; 0 of 20 clients gain over "
        "training alone, 20 look worse."
    )
    assert [what for what, _ in told.advice] == ["Stay alone", "Or join guarded"]


def test_a_rule_that_lowers(tmp_path: Path) -> None:
    told = compare(tmp_path, [-0.020, -0.021, -0.022], same_partition=True)
    assert told.effects == ["ConFREE lowers FedRep by 2.10 points [−2.35, −1.85]."]
    assert told.cell.label == "FedRep + Mean"  # the best line, whatever was compared


def test_inside_the_noise(tmp_path: Path) -> None:
    for seed, by in enumerate((0.02, -0.01, 0.0)):
        make(tmp_path / f"a{seed}", shifted(by), alone=ALONE, seed=seed, same_partition=True)
    told = answer(tmp_path)
    assert told.lead.startswith(
        "Joining and training alone cannot be told apart: FedRep + Mean ends ≈ 0.33 points [−3.46, 4.13] from Local; 20"
    )
    # an effect of 0.33 / 1.53: the power of the paired test wants 168 seeds
    assert told.advice[-1] == ("No more seeds", "Not even 100 would tell 0.33 points from nothing.")


def test_how_many_seeds_would_tell(tmp_path: Path) -> None:
    for seed, by in enumerate((0.03, 0.0, 0.015)):
        make(tmp_path / f"a{seed}", shifted(by), alone=ALONE, seed=seed, same_partition=True)
    # mean 1.5 and deviation 1.5, an effect of 1: ten seeds
    why = "About 10 would tell 1.50 points from nothing, four times out of five."
    assert answer(tmp_path).advice[-1] == ("More seeds", why)


def test_the_best_of_many_lines_may_be_best_by_chance(tmp_path: Path) -> None:
    for seed, by in enumerate((0.01, 0.02, 0.03, 0.012)):  # p = 0.034, alone below 0.05 and among four not
        for i, method in enumerate(("FedRep", "Ditto", "FedAvg", "APFL")):
            accuracy = shifted(by - 0.02 * i)
            make(tmp_path / f"{method}{seed}", accuracy, alone=ALONE, method=method, seed=seed, same_partition=True)
    told = answer(tmp_path)
    assert told.lead.startswith("Joining may pay: the best line (FedRep + Mean) ends 1.80 points [0.")
    assert "Corrected for the 4 lines that it is the best of (Holm) it no longer stands." in told.more
    assert told.advice[0] == ("Stay alone", "Nothing yet shows that joining is better on average.")
    assert told.advice[-1].what == "More seeds"
    assert "with 4 lines to choose from" in told.advice[-1].why


def test_all_rules_inside_the_noise(tmp_path: Path) -> None:
    for seed in (0, 1):
        for rule, by in (("Mean", 0.0), ("ConFREE", 0.01 - 0.03 * seed), ("CALM", -0.05 * seed)):
            accuracy = shifted(0.1 + by)
            make(tmp_path / f"{rule}{seed}", accuracy, alone=ALONE, rule=rule, seed=seed, same_partition=True)
    told = answer(tmp_path)
    assert told.effects == [
        "CALM changes FedRep by ≈ −2.50 points [−34.27, 29.27], inside the noise.",
        "Both comparisons with Mean are inside the noise.",
    ]
    assert ("Keep the plain mean", "No rule changes a method beyond noise, of 2 tried.") in told.advice


def test_one_seed(tmp_path: Path) -> None:
    told = compare(tmp_path, [0.013])
    assert told.lead.startswith("In one seed the best line (FedRep + ConFREE) ends 11.30 points above Local;")
    assert "One seed cannot tell a difference from noise." in told.more
    assert told.effects == ["ConFREE ends 1.30 points above the same without it, FedRep + Mean, in one seed."]
    assert [what for what, _ in told.advice] == ["More seeds"]


def test_who_should_not_join(tmp_path: Path) -> None:
    accuracy = shifted(0.2)
    accuracy[7], accuracy[9] = 0.1, 0.45
    only_local = [0] * 20
    only_local[7], only_local[9] = 40, 5  # of 100 tests each
    for seed in range(3):
        only = only_local, [0] * 20
        make(tmp_path / f"a{seed}", accuracy, alone=ALONE, seed=seed, same_partition=True, only=only, tests=100)
    told = answer(tmp_path)
    assert told.lead.endswith("2 look worse, 1 beyond chance (client 7).")
    assert told.advice == [
        (
            "Join guarded",
            "FedRep + Mean helps on average, but 1 client would be better off alone: add --guard mixture.",
        ),
        ("Leave client 7 out", "It loses 40.0 points, beyond chance, unless guarded."),
    ]
    assert told.worst is not None
    assert told.worst.client == 7


def test_what_a_guard_changes(tmp_path: Path) -> None:
    harmed = shifted(0.1)
    harmed[3] = 0.1
    guard = {"guard": {"name": "mixture"}, "local_on": "all", "val_share": 0.2, "refit": 1}
    for seed in range(3):
        common = {"alone": ALONE, "seed": seed, "same_partition": True}
        only = [0, 0, 0, 10, *[0] * 16], [0] * 20
        make(tmp_path / f"a{seed}", harmed, only=only, options={"local_on": "all"}, **common)
        make(tmp_path / f"b{seed}", shifted(0.1), only=([0] * 20, [1] * 20), options=guard, **common)
    told = answer(tmp_path)
    assert told.cell.label == "FedRep, guarded + Mean"
    assert told.effects[0] == (
        "The guard mixture lifts FedRep + Mean by 2.50 points [2.50, 2.50]; 1 of 20 clients (1 beyond chance) look "
        "worse than alone without it, 0 of 20 clients with it."
    )


def test_two_seeds_are_said_to_be_few(tmp_path: Path) -> None:
    told = compare(tmp_path, [0.012, 0.014], same_partition=True)
    assert any("Two seeds" in note for note in told.notes)


def test_only_shared_seeds_are_compared(tmp_path: Path) -> None:
    make(tmp_path / "a", shifted(0.1), alone=ALONE, seed=0)
    make(tmp_path / "b", shifted(0.4), alone=ALONE, seed=1)
    make(tmp_path / "c", shifted(0.15), alone=ALONE, seed=0, rule="CALM")
    (effect,) = answer(tmp_path).effects
    assert effect == "CALM ends 5.00 points above the same without it, FedRep + Mean, in one seed."


def test_the_harmed_are_named(tmp_path: Path) -> None:
    accuracy = shifted(0.1)
    accuracy[11], accuracy[3] = 0.25, 0.45  # 5 of 20 test samples, and a single one
    make(tmp_path / "a", accuracy, alone=ALONE)
    told = answer(tmp_path)
    assert told.lead == (
        "In one seed FedRep + Mean ends 7.50 points above Local; 18 of 20 clients gain over training alone, 2 look "
        "worse (clients 3 and 11)."
    )
    assert "Whether that is more than the chance of a few test samples was not counted." in told.more
    assert told.worst is not None
    assert (told.worst.client, told.seed) == (11, 0)


def test_clients_of_several_seeds_are_pooled_unless_they_are_the_same(tmp_path: Path) -> None:
    for same in (False, True):
        for seed in (0, 1):
            accuracy = shifted(0.1)
            accuracy[7] = 0.2 if seed else 0.4
            make(tmp_path / str(same) / str(seed), accuracy, alone=ALONE, seed=seed, same_partition=same)
    pooled = answer(tmp_path / "False")
    assert (
        "38 of 40 clients gain over training alone, 2 look worse (clients 7 of seed 0 and 7 of seed 1)." in pooled.lead
    )
    assert "those of 2 seeds, each with its own partition" in pooled.more
    assert "Most is lost by client 7 of seed 1: 30.0 points." in pooled.more
    assert pooled.seed == 1  # where the page opens
    same_ = answer(tmp_path / "True")
    assert same_.seed == 1
    assert "19 of 20 clients gain over training alone, 1 looks worse (client 7)." in same_.lead


def test_many_rules_and_methods(tmp_path: Path) -> None:
    for seed in range(3):
        for method in ("FedRep", "Ditto"):
            base = 0.1 + 0.01 * seed
            for rule, gain in (("Mean", 0.0), ("ConFREE", 0.03), ("CALM", 0.02 * (seed - 1))):
                name = f"{method}-{rule}-{seed}"
                make(tmp_path / name, shifted(base + gain), alone=ALONE, method=method, rule=rule, seed=seed)
    told = answer(tmp_path)
    assert told.effects[0].startswith("ConFREE lifts")
    assert told.effects[1] == (
        "Of 4 comparisons with Mean 2 are above and 2 are inside the noise; corrected for their number (Holm) 2 stand."
    )
    assert len(told.details) == 4


def test_methods_without_rules_are_compared_with_the_best(tmp_path: Path) -> None:
    for seed in range(2):
        make(tmp_path / f"a{seed}", shifted(0.10), alone=ALONE, seed=seed)
        make(tmp_path / f"b{seed}", shifted(0.12), alone=ALONE, seed=seed, method="Ditto")
    told = answer(tmp_path)
    assert told.lead.startswith("Joining pays: the best line (Ditto + Mean) ends 12.00 points [12.00, 12.00] above")
    assert told.details == ["Ditto + Mean is 2.00 points [2.00, 2.00] above FedRep + Mean."]


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
    assert told.effects == ["ConFREE lifts FedRep by 1.30 points [1.05, 1.55]."]
    assert told.notes[0].startswith("1 of 7 runs is not finished and not in the table.")


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    make(tmp_path, shifted(0.1), done=0)
    assert answer(tmp_path).lead == "The run is not finished yet; FedRep + Mean has done 0 of 5 rounds."
