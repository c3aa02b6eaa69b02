"""The answer in words: for a gain, a loss, noise, one seed, and runs that are not finished."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from comity.compare import LoadedStudy
from comity.report._words import Answer
from comity.report._words import answer as answer_of
from run_folders import make

ALONE = [0.5] * 20


def answer(*paths: Path) -> Answer:
    study = LoadedStudy(*paths)
    return answer_of(study, study.table())


def shifted(by: float, **others: float) -> list[float]:
    """Every client this much better than alone; ``_7=0.1`` is client 7's own accuracy."""
    return [others.get(f"_{client}", value + by) for client, value in enumerate(ALONE)]


def study(folder: Path, gains: Mapping[str, Sequence[float]], *, same: bool = True, **more: Any) -> Answer:
    """Method + rule with what clients gain over training alone, one entry per seed."""
    for label, by_seed in gains.items():
        method, _, rule = label.partition(" + ")
        for seed, gain in enumerate(by_seed):
            options = {"method": method, "rule": rule, "seed": seed, "same_partition": same} | more
            make(folder / f"{label}-{seed}", shifted(gain), alone=ALONE, **options)
    return answer(folder)


def compare(folder: Path, gains: Sequence[float]) -> Answer:
    """FedRep with the plain mean at 0.6, and with ConFREE ``gains`` above it."""
    return study(folder, {"FedRep + Mean": [0.1] * len(gains), "FedRep + ConFREE": [0.1 + gain for gain in gains]})


def test_joining_pays(tmp_path: Path) -> None:
    # ConFREE is 11.2, 11.3 and 11.4 points above Local: mean 11.3, deviation 0.1, half width 4.3027 * 0.1 / sqrt(3)
    told = compare(tmp_path, [0.012, 0.013, 0.014])
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
    assert told.advice == [
        ("Join", "FedRep + ConFREE helps on average, and nobody is worse off beyond chance."),
        ("Use ConFREE", "ConFREE lifts FedRep by 1.30 points [1.05, 1.55], corrected too."),
    ]
    assert (told.cell.label, told.worst, told.seed) == ("FedRep + ConFREE", None, None)


def test_joining_does_not_pay(tmp_path: Path) -> None:
    told = study(tmp_path / "alone", {"FedRep + Mean": [-0.02, -0.03, -0.04]})
    assert told.lead == (
        "Training alone wins: FedRep + Mean ends 3.00 points [−5.48, −0.52] below Local; 0 of 20 clients gain over "
        "training alone, 20 look worse."
    )
    assert [what for what, _ in told.advice] == ["Stay alone", "Or join guarded"]
    told = compare(tmp_path / "rule", [-0.020, -0.021, -0.022])
    assert told.effects == ["ConFREE lowers FedRep by 2.10 points [−2.35, −1.85]."]
    assert told.cell.label == "FedRep + Mean"  # the best line, whatever was compared


@pytest.mark.parametrize(
    ("gains", "size", "advice"),
    [
        # an effect of 0.33 / 1.53: the power of the paired test wants 168 seeds
        ((0.02, -0.01, 0.0), "0.33 points [−3.46, 4.13]", "Even 100 seeds would not make a 0.33-point difference"),
        # mean 1.5 and deviation 1.5, an effect of 1: ten seeds
        ((0.03, 0.0, 0.015), "1.50 points [−2.23, 5.23]", "About 10 seeds would make a 1.50-point difference"),
    ],
)
def test_inside_the_noise(tmp_path: Path, gains: Sequence[float], size: str, advice: str) -> None:
    told = study(tmp_path, {"FedRep + Mean": gains})
    noise = f"Joining and training alone cannot be told apart: FedRep + Mean ends ≈ {size} from Local; 20"
    assert told.lead.startswith(noise)
    assert told.advice[-1].what == ("No more seeds" if "not" in advice else "More seeds")
    assert told.advice[-1].why.startswith(f"{advice} significant")


def test_the_best_of_many_lines_may_be_best_by_chance(tmp_path: Path) -> None:
    gains = (0.01, 0.02, 0.03, 0.012)  # p = 0.034, alone below 0.05 and among four not
    methods = ("FedRep", "Ditto", "FedAvg", "APFL")
    told = study(tmp_path, {f"{method} + Mean": [by - 0.02 * i for by in gains] for i, method in enumerate(methods)})
    assert told.lead.startswith("Joining may pay: the best line (FedRep + Mean) ends 1.80 points [0.")
    assert "Corrected for the 4 lines that it is the best of (Holm) it no longer stands." in told.more
    assert told.advice[0] == ("Stay alone", "Nothing yet shows that joining is better on average.")
    more = "About 7 seeds would make a 1.80-point difference significant across 4 comparisons (power 80 %)."
    assert told.advice[-1] == ("More seeds", more)


def test_two_seeds_with_all_rules_inside_the_noise(tmp_path: Path) -> None:
    rules = {"Mean": [0.1, 0.1], "ConFREE": [0.11, 0.08], "CALM": [0.1, 0.05]}
    told = study(tmp_path, {f"FedRep + {rule}": gains for rule, gains in rules.items()})
    assert told.effects == [
        "CALM changes FedRep by ≈ −2.50 points [−34.27, 29.27], inside the noise.",
        "Both comparisons with Mean are inside the noise.",
    ]
    assert ("Keep the plain mean", "No rule changes a method beyond noise, of 2 tried.") in told.advice
    assert any("Two seeds" in note for note in told.notes)


def test_one_seed(tmp_path: Path) -> None:
    told = compare(tmp_path, [0.013])
    assert told.lead.startswith("In one seed the best line (FedRep + ConFREE) ends 11.30 points above Local;")
    assert "One seed cannot tell a difference from noise." in told.more
    assert told.effects == ["ConFREE ends 1.30 points above the same without it, FedRep + Mean, in one seed."]
    assert [what for what, _ in told.advice] == ["More seeds"]


@pytest.mark.parametrize(
    ("gains", "sentence"),
    [
        ([[0.1], [0.1]], "Both settings have only one seed, so no conclusion can be drawn."),
        ([[0.1], [0.1], [0.2]], "All 3 settings have only one seed, so no conclusion can be drawn."),
        ([[0.1, 0.11], [-0.1, -0.11]], "Of 2 settings, joining pays in 1 and training alone wins in 1."),
        (
            [[0.1, 0.11], [0.1, -0.1], [0.1], [0.1]],
            "Of 4 settings, joining pays in 1, there is no clear difference in 1 and 2 have only one seed.",
        ),
    ],
)
def test_several_settings(tmp_path: Path, gains: list[list[float]], sentence: str) -> None:
    for i, by_seed in enumerate(gains):
        study(tmp_path / str(i), {"FedRep + Mean": by_seed}, options={"partition.alpha": 0.1 + i})
    assert sentence in answer(tmp_path).more


def test_who_should_not_join(tmp_path: Path) -> None:
    only_local = [{7: 40, 9: 5}.get(client, 0) for client in range(20)]  # of 100 tests each
    for seed in range(3):
        more = {"seed": seed, "same_partition": True, "only": (only_local, [0] * 20), "tests": 100}
        make(tmp_path / f"a{seed}", shifted(0.2, _7=0.1, _9=0.45), alone=ALONE, **more)
    told = answer(tmp_path)
    assert told.lead.endswith("2 look worse, 1 beyond chance (client 7).")
    join = "FedRep + Mean helps on average, but 1 client would be better off alone: add --guard mixture."
    leave = "It loses 40.0 points, beyond chance, unless guarded."
    assert told.advice == [("Join guarded", join), ("Leave client 7 out", leave)]
    assert told.worst is not None
    assert told.worst.client == 7


def test_what_a_guard_changes(tmp_path: Path) -> None:
    guard = {"guard": {"name": "mixture"}, "local_on": "all", "val_share": 0.2, "refit": 1}
    for seed in range(3):
        common = {"alone": ALONE, "seed": seed, "same_partition": True}
        only = [0, 0, 0, 10, *[0] * 16], [0] * 20
        make(tmp_path / f"a{seed}", shifted(0.1, _3=0.1), only=only, options={"local_on": "all"}, **common)
        make(tmp_path / f"b{seed}", shifted(0.1), only=([0] * 20, [1] * 20), options=guard, **common)
    told = answer(tmp_path)
    assert told.cell.label == "FedRep, guarded + Mean"
    assert told.effects[0] == (
        "The guard mixture lifts FedRep + Mean by 2.50 points [2.50, 2.50]; 1 of 20 clients (1 beyond chance) look "
        "worse than alone without it, 0 of 20 clients with it."
    )


@pytest.mark.parametrize(
    ("seventh", "same", "lead", "more"),
    [
        (
            [0.25],  # 5 of 20 test samples; client 3 loses a single one
            True,
            "18 of 20 clients gain over training alone, 2 look worse (clients 3 and 7).",
            "client 7: 25.0 points. Whether that is more than the chance of a few test samples was not counted.",
        ),
        ([0.4, 0.2], True, "18 of 20 clients gain over training alone, 2 look worse", "client 7: 20.0 points."),
        (
            [0.4, 0.2],
            False,
            "36 of 40 clients gain over training alone, 4 look worse",
            "those of 2 seeds, each with its own partition. Most is lost by client 7 of seed 1: 30.0 points.",
        ),
    ],
)
def test_the_harmed_are_named_and_pooled_unless_all_seeds_have_the_same_clients(
    tmp_path: Path, seventh: list[float], same: bool, lead: str, more: str
) -> None:
    for seed, accuracy in enumerate(seventh):
        make(tmp_path / str(seed), shifted(0.1, _3=0.45, _7=accuracy), alone=ALONE, seed=seed, same_partition=same)
    told = answer(tmp_path)
    assert lead in told.lead
    assert more in told.more
    assert told.worst is not None
    assert (told.worst.client, told.seed) == (7, len(seventh) - 1)  # where the page opens


def test_comparisons_of_rules_and_of_methods(tmp_path: Path) -> None:
    rules = {"Mean": (0.1, 0.11, 0.12), "ConFREE": (0.13, 0.14, 0.15), "CALM": (0.08, 0.11, 0.14)}
    lines = {f"{method} + {rule}": gains for method in ("FedRep", "Ditto") for rule, gains in rules.items()}
    told = study(tmp_path / "rules", lines, same=False)
    assert told.effects[0].startswith("ConFREE lifts")
    assert told.effects[1] == (
        "Of 4 comparisons with Mean 2 are above and 2 are inside the noise; corrected for their number (Holm) 2 stand."
    )
    assert len(told.details) == 4
    told = study(tmp_path / "methods", {"FedRep + Mean": [0.10] * 2, "Ditto + Mean": [0.12] * 2}, same=False)
    assert told.lead.startswith("Joining pays: the best line (Ditto + Mean) ends 12.00 points [12.00, 12.00] above")
    assert told.details == ["Ditto + Mean is 2.00 points [2.00, 2.00] above FedRep + Mean."]
    told = study(tmp_path / "seeds", {"FedRep + Mean": [0.1, 0.4], "FedRep + CALM": [0.15]}, same=False)
    assert told.effects == ["CALM ends 5.00 points above the same without it, FedRep + Mean, in one seed."]


def test_runs_that_know_little(tmp_path: Path) -> None:
    run = make(tmp_path / "a", shifted(0.1), done=0)
    assert answer(tmp_path).lead == "The run is not finished yet; FedRep + Mean has done 0 of 5 rounds."
    make(run, shifted(0.1))
    assert answer(tmp_path).lead.endswith("how the clients would do alone is not known.")
    make(run, shifted(0.1), rounds=50, done=12)
    make(tmp_path / "b", shifted(0.1), rounds=50, done=3, rule="CALM")
    told = answer(tmp_path)
    assert told.lead == "No run is finished yet; FedRep + Mean has done 12 of 50 rounds: 60.00 % accuracy so far."


def test_an_unfinished_run_counts_in_no_difference(tmp_path: Path) -> None:
    make(tmp_path / "rule-3", shifted(0.3), seed=3, rule="ConFREE", done=2)
    told = compare(tmp_path, [0.012, 0.013, 0.014])
    assert told.effects == ["ConFREE lifts FedRep by 1.30 points [1.05, 1.55]."]
    assert told.notes[0].startswith("1 of 7 runs is not finished and not in the table.")
