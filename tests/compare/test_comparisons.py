"""What is compared with what, and the numbers that come of it, against numbers worked out by hand."""

import math
import shutil
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t, ttest_1samp

from comity import ComityError
from comity.compare import COLUMNS, Balance, Difference, LoadedStudy, Spread, holm, transfer
from comity.results import PlannedRun, StudyFolder, Transfer
from run_folders import make


def table(*paths: Path, base: str | None = None) -> dict[str, dict[str, str]]:
    """By label: heading to what is shown."""
    made = LoadedStudy(*paths, base=base).table()
    return {line.label: {column.heading: str(line.entries[column.name]) for column in COLUMNS} for line in made.lines}


def test_differences() -> None:
    def between(numbers: dict[int, float], base: dict[int, float]) -> Difference | None:
        return Difference.between(Spread.of(numbers), Spread.of(base))

    assert between({0: 0.5}, {1: 0.4}) is None
    assert between({0: 0.5, 1: 0.9}, {0: 0.4}) == Difference(pytest.approx(0.1), None, 1)  # type: ignore[arg-type]
    # 0.1 + 0.2 is not 0.3 in floats, which is no gain
    assert between({0: 0.1 + 0.2, 1: 0.1 + 0.2}, {0: 0.3, 1: 0.3}).verdict == "noise"  # type: ignore[union-attr]
    assert Spread.of({0: math.nan}) is None


def test_p_values_and_seeds_are_those_of_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    for seeds in (2, 3, 8):
        values = random.normal(0.5, 1, seeds)
        difference = Difference.of(Spread.of(dict(enumerate(values.tolist()))))
        assert difference is not None
        assert difference.p_value == pytest.approx(ttest_1samp(values, 0).pvalue, rel=1e-9)
    sure = Difference(2.0, 0.0, 3)
    assert (sure.p_value, sure.seeds_needed()) == (0.0, 2)
    assert Difference(2.0, None, 1).p_value is None
    assert Difference(0.0, 1.0, 3).seeds_needed() is None
    # mean 1 and standard deviation 1 have an effect of 1: ten seeds have 80 % power (Cohen's tables), nine have not
    unit = Difference(1.0, float(t.ppf(0.975, 3)) / 2, 4)
    assert unit.seeds_needed() == 10
    assert unit.seeds_needed(10) > 10  # type: ignore[operator]
    tried = random.standard_normal((20_000, 10)) + 1
    assert np.mean(ttest_1samp(tried, 0, axis=1).pvalue <= 0.05) == pytest.approx(0.8, abs=0.01)
    assert Difference(0.1, unit.half, 4).seeds_needed() is None


def test_holm_corrects_for_the_number_of_comparisons() -> None:
    # 0.01 against 0.05 / 4, 0.015 against 0.05 / 3, then 0.03 exceeds 0.05 / 2, which ends it: 0.04 is not looked at
    assert holm([0.04, 0.01, 0.03, 0.015]) == [False, True, False, True]
    assert holm([]) == []
    random = np.random.default_rng(1)
    wrong = np.mean([any(holm(random.uniform(size=10).tolist())) for _ in range(4000)])
    assert wrong == pytest.approx(0.05, abs=0.012)  # of ten that are all chance, any is called real


def test_who_gains_and_who_is_harmed() -> None:
    found = transfer({0: 0.6, 1: 0.5, 2: 0.3, 3: 0.1, 4: math.nan, 9: 1.0}, {0: 0.5, 1: 0.5, 2: 0.6, 3: 0.0, 4: 0.5})
    assert found is not None
    assert found.gain == pytest.approx({0: 0.1, 1: 0.0, 2: -0.3, 3: 0.1})
    assert found.harmed == [2]
    assert found.local == pytest.approx(0.4)
    assert found.positive_transfer == 0.5
    assert found.relative_accuracy == pytest.approx((0.2 + 0 - 0.5) / 3)  # client 3 has no hit alone
    assert transfer({0: 0.5}, {1: 0.5}) is None


def balance(transfers: Mapping[int, Transfer | None], **options: Any) -> Balance:
    """Of transfers that are known."""
    found = Balance.of({seed: known for seed, known in transfers.items() if known}, **options)
    assert found is not None
    return found


def test_clients_of_several_seeds_are_pooled_unless_they_are_the_same() -> None:
    alone, joined = {3: 0.5, 4: 0.5}, {0: {3: 0.4, 4: 1.0}, 1: {3: 0.8, 4: 0.6}}
    transfers = {seed: transfer(accuracy, alone) for seed, accuracy in joined.items()}
    pooled, averaged = (balance(transfers, same_clients=same) for same in (False, True))
    assert (pooled.clients, pooled.gaining, [str(harm) for harm in pooled.harmed]) == (4, 3, ["3 of seed 0"])
    assert pooled.sentence == "3 of 4 clients gain over training alone, 1 looks worse (client 3 of seed 0)"
    assert pooled.remarks == [
        "The 4 clients are those of 2 seeds, each with its own partition.",
        "Most is lost by client 3 of seed 0: 10.0 points.",
        "Whether that is more than the chance of a few test samples was not counted.",
    ]
    assert (averaged.clients, averaged.gaining, averaged.harmed) == (2, 2, [])
    assert averaged.sentence == "2 of 2 clients gain over training alone, nobody looks worse"
    assert Balance.of({}, same_clients=True) is None


def test_harm_is_told_from_chance() -> None:
    alone, joined = {0: 0.8, 1: 0.8, 2: 0.8}, {0: 0.7, 1: 0.4, 2: 0.8}
    known = transfer(joined, alone, {0: 12, 1: 45, 2: 3}, {0: 2, 1: 5, 2: 3})  # of 100 tests each
    assert known is not None
    assert known.harmed == [0, 1]
    assert known.beyond_chance == [0, 1]  # 12 against 2 has p = 0.0065
    slight = transfer(joined, alone, {0: 12, 1: 6, 2: 3}, {0: 8, 1: 4, 2: 3})
    assert slight is not None
    assert (slight.harmed, slight.beyond_chance) == ([0, 1], [])
    told = balance({0: known}, same_clients=True)
    assert told.counted
    assert [harm.client for harm in told.beyond_chance] == [1, 0]
    start = "0 of 3 clients gain over training alone, 2 look worse"
    assert told.sentence == f"{start}, 2 beyond chance (clients 0 and 1)"
    assert told.named == "Clients 1 (−40.0, beyond chance), 0 (−10.0, beyond chance)"
    named = balance({0: known}, same_clients=True, names={0: ["Cleveland", "Budapest", "Zurich"]})
    assert named.sentence.endswith("2 beyond chance (clients Cleveland and Budapest)")
    # the same clients in two seeds: twice the mean of their p-values, so one seed's evidence alone does not do
    both = balance({0: known, 1: slight}, same_clients=True)
    assert [harm.client for harm in both.harmed] == [1, 0]
    assert both.beyond_chance == []
    assert both.sentence == f"{start}, none beyond chance"
    # where seeds draw their own tests, what all of them say together counts
    drawn = balance(dict.fromkeys(range(4), known), same_clients=True, test_share=0.3)
    assert [harm.client for harm in drawn.beyond_chance] == [1, 0]
    # side by side, each seed's clients speak for themselves
    pooled = balance({0: known, 1: slight}, same_clients=False)
    assert {str(harm) for harm in pooled.beyond_chance} == {"1 of seed 0", "0 of seed 0"}


def test_cells_are_what_differs_and_settings_the_conditions_that_do(tmp_path: Path) -> None:
    pairs = [(alpha, share) for alpha in (0.1, 1.0) for share in (0.5, 1.0)]
    for seed, (alpha, share) in product((0, 1), pairs):
        options = {"partition.alpha": alpha, "participation": share, "workers": seed + 1}
        make(tmp_path / f"{alpha}-{share}-{seed}", [0.5] * 4, seed=seed, options=options)
    study = LoadedStudy(tmp_path)
    assert [setting.label for setting in study.settings] == [f"alpha={a}, participation={share}" for a, share in pairs]
    assert [(cell.label, list(cell.runs)) for cell in study.cells] == [("FedRep + Mean", [0, 1])] * 4


# The base.


def test_the_base_is_the_same_method_with_the_plain_mean(tmp_path: Path) -> None:
    for lam, accuracy in ((0.5, 0.6), (1.0, 0.7)):
        options = {"method.lam": lam}
        make(tmp_path / f"m{lam}", [accuracy] * 4, method="Ditto", options=options)
        make(tmp_path / f"c{lam}", [accuracy + lam / 10] * 4, method="Ditto", rule="ConFREE", options=options)
    found = table(tmp_path)
    assert found["Ditto (lam=0.5) + ConFREE"]["difference to Mean"] == "+5.00 (one seed)"
    assert found["Ditto (lam=1.0) + ConFREE"]["difference to Mean"] == "+10.00 (one seed)"
    assert LoadedStudy(tmp_path).base_remark == ""


def test_of_several_means_the_one_by_size_is_the_base_unless_another_is_asked_for(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.65] * 4, options={"rule.by": "uniform"})
    make(tmp_path / "b", [0.60] * 4)
    make(tmp_path / "c", [0.70] * 4, rule="ConFREE")
    study = LoadedStudy(tmp_path)
    assert [cell.label for cell in study.cells] == [
        *("FedRep + Mean (by=size)", "FedRep + Mean (by=uniform)", "FedRep + ConFREE")
    ]
    found = table(tmp_path)
    assert found["FedRep + ConFREE"]["difference to Mean"] == "+10.00 (one seed)"
    assert found["FedRep + Mean (by=uniform)"]["difference to Mean"] == "+5.00 (one seed)"
    remark = (
        "There are several means, Mean (by=size) and Mean (by=uniform); differences are to "
        "Mean (by=size), --base chooses another."
    )
    assert study.table().remarks == [remark]
    assert remark in study.table().markdown()

    asked = LoadedStudy(tmp_path, base="Mean (by=uniform)").table()
    assert asked.remarks == []
    assert "difference to Mean (by=uniform)" in asked.markdown()
    entries = {line.label: str(line.entries["difference"]) for line in asked.lines}
    assert entries == {
        "FedRep + Mean (by=uniform)": "–",
        "FedRep + Mean (by=size)": "−5.00 (one seed)",
        "FedRep + ConFREE": "+5.00 (one seed)",
    }
    with pytest.raises(ComityError, match=r"unknown base 'mean'; known: ConFREE, Mean \(by=size\), Mean"):
        LoadedStudy(tmp_path, base="mean").table()


# Local.


def test_local_is_found_in_the_cache(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=3, done=3, seed=1, options={"moment": "fitted"})  # no result of its own yet
    make(tmp_path / ".local" / "right", [0.4, 0.5, 0.6, 0.7], rounds=3, method="Local", seed=1)
    make(tmp_path / ".local" / "wrong", [0.9] * 4, rounds=3, method="Local", seed=2)
    study = LoadedStudy(tmp_path / "a")
    assert [cell.label for cell in study.cells] == ["Local", "FedRep + Mean"]
    local, mine = study.cells
    assert list(local.runs) == [1]
    known = mine.transfer(mine.runs[1])
    assert known is not None
    assert known.gain == pytest.approx({0: 0.2, 1: 0.1, 2: 0.0, 3: -0.1})
    assert known.harmed == [3]
    assert len(study.settings) == 1


def test_one_local_serves_every_moment_of_judgement(tmp_path: Path) -> None:
    make(tmp_path / "local", [0.5] * 4, method="Local")
    for moment in ("received", "fitted"):
        make(tmp_path / moment, [0.6] * 4, options={"moment": moment})
    study = LoadedStudy(tmp_path)
    assert [(setting.label, [cell.label for cell in setting.cells]) for setting in study.settings] == [
        (f"moment={moment}", ["Local", "FedRep + Mean"]) for moment in ("fitted", "received")
    ]
    assert len(study.runs) == 3


# Which runs.


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    study = LoadedStudy(tmp_path, tmp_path / "a")
    assert len(study.runs) == 1
    assert study.doubles == 1


def test_a_study_shows_what_belongs_to_it(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "b", [0.6] * 4, rule="CALM")
    make(tmp_path / "runs" / "a", [0.5] * 4)
    make(tmp_path / "runs" / "old", [0.5] * 4, method="Ditto")
    make(tmp_path / ".tuning" / "c", [0.5] * 4, method="Ditto")
    planned = [
        PlannedRun(folder="runs/b", title="FedRep + CALM, seed 0"),
        PlannedRun(folder="runs/a", title="FedRep + Mean, seed 0"),
        PlannedRun(folder="runs/c", title="FedRep + X, seed 0", error="it failed"),
    ]
    StudyFolder(tmp_path).write_planned(planned)
    study = LoadedStudy(tmp_path)
    assert [run.title for run in study.runs] == ["FedRep + CALM", "FedRep + Mean"]  # the study's order
    assert [cell.label for cell in study.cells] == ["FedRep + Mean", "FedRep + CALM"]  # the base first
    assert study.failed == {"FedRep + X, seed 0": "it failed"}
    assert study.over
    StudyFolder(tmp_path).write_planned([*planned, PlannedRun(folder="runs/d", title="to come")])
    assert not LoadedStudy(tmp_path).over
