"""What is compared with what, and the numbers that come of it, against numbers worked out by hand."""

import math
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from comity import ComityError
from comity.compare import COLUMNS, Difference, LoadedStudy, Spread, holm, transfer
from comity.config import Config
from comity.metrics import OWN
from comity.results import PlannedRun, StudyFolder
from run_folders import make


def table(*paths: Path, base: str | None = None) -> dict[str, dict[str, str]]:
    """By label: heading to what is shown."""
    made = LoadedStudy(*paths, base=base).table()
    return {line.label: {column.heading: str(line.entries[column.name]) for column in COLUMNS} for line in made.rows}


def between(numbers: dict[int, float], base: dict[int, float]) -> Difference | None:
    return Difference.between(Spread.of(numbers), Spread.of(base))


def test_differences() -> None:
    assert between({0: 0.5}, {1: 0.4}) is None
    one = Difference(pytest.approx(0.1), None, None, None, 1)  # type: ignore[arg-type]
    assert between({0: 0.5, 1: 0.9}, {0: 0.4}) == one
    assert one.direction == "unknown"
    # 0.1 + 0.2 is not 0.3 in floats, which is no gain
    assert between({0: 0.1 + 0.2, 1: 0.1 + 0.2}, {0: 0.3, 1: 0.3}).direction == "noise"  # type: ignore[union-attr]
    assert Spread.of({0: math.nan}) is None
    lower = Difference.between(Spread.of({0: 0.2, 1: 0.3}), Spread.of({0: 0.4, 1: 0.5}), -1)  # a loss that fell
    assert (lower.mean, lower.direction) == (pytest.approx(0.2), "gain")


def test_p_values_and_intervals_are_those_of_the_paired_t_test() -> None:
    random = np.random.default_rng(0)
    for seeds in (2, 3, 8):
        values = random.normal(0.5, 1, seeds)
        difference = between(dict(enumerate(values.tolist())), dict.fromkeys(range(seeds), 0.0))
        right = ttest_1samp(values, 0)
        assert difference.p_value == pytest.approx(right.pvalue, rel=1e-9)
        assert (difference.low, difference.high) == pytest.approx(tuple(right.confidence_interval(0.95)))
    sure = between({0: 2.0, 1: 2.0, 2: 2.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert (sure.p_value, sure.low, sure.high, sure.direction) == (0.0, 2.0, 2.0, "gain")


def test_holm_corrects_for_the_number_of_comparisons() -> None:
    # 0.01 against 0.05 / 4, 0.015 against 0.05 / 3, then 0.03 exceeds 0.05 / 2, which ends it: 0.04 is not looked at
    assert holm([0.04, 0.01, 0.03, 0.015]) == [False, True, False, True]
    assert holm([]) == []
    random = np.random.default_rng(1)
    wrong = np.mean([any(holm(random.uniform(size=10).tolist())) for _ in range(4000)])
    assert wrong == pytest.approx(0.05, abs=0.012)  # of ten that are all chance, any is called real


def test_what_one_run_notes_of_its_clients() -> None:
    joined = {"client": [0, 1, 2, 3, 4, 9], OWN.key: [0.6, 0.5, 0.3, 0.1, math.nan, 1.0]}
    local = {"client": [0, 1, 2, 3, 4], OWN.key: [0.5, 0.5, 0.6, 0.0, 0.5]}
    found = transfer(joined, local, {}, Config(metric="accuracy"))
    assert found.gain == pytest.approx({0: 0.1, 1: 0.0, 2: -0.3, 3: 0.1})
    assert found.worse == []  # without the sums of its tests no loss is shown
    assert {each.state for each in found.clients.values()} == {"undecided"}
    assert math.isnan(found.mean.low)
    assert found.local == pytest.approx(0.4)
    assert found.positive_transfer == 0.5
    assert found.relative_accuracy == pytest.approx((0.2 + 0 - 0.5) / 3)  # client 3 has no hit in local training
    assert transfer({"client": [0], OWN.key: [0.5]}, {"client": [1], OWN.key: [0.5]}, {}, Config()) is None


def test_a_client_that_loses_many_tests_is_worse_and_one_that_keeps_them_is_not(tmp_path: Path) -> None:
    joined, local = [0.2, 0.8, 0.79], [0.8, 0.8, 0.8]
    only = [120, 0, 2], [0, 0, 0]  # of 200 tests each
    for seed in range(3):
        make(tmp_path / f"{seed}", joined, alone=local, seed=seed, tests=200, only=only, same_partition=True)
    (cell,) = LoadedStudy(tmp_path).cells
    assert [(row.client, row.seed) for row in cell.clients] == [(0, None), (2, None), (1, None)]
    assert {row.client: row.state for row in cell.clients} == {0: "worse", 1: "not worse", 2: "undecided"}
    for seed in range(3):
        make(tmp_path / f"{seed}", joined, alone=local, seed=seed, tests=200, only=only)
    (cell,) = LoadedStudy(tmp_path).cells  # each seed has clients of its own
    assert [str(row) for row in cell.with_state("worse")] == [f"0 of seed {seed}" for seed in range(3)]
    assert len(cell.clients) == 9


def test_lower_is_better_of_a_loss(tmp_path: Path) -> None:
    options = {"metric": "log-loss"}
    make(tmp_path / "local", [0.5] * 3, method="Local", options=options)  # whose losses are 0.5
    make(tmp_path / "good", [0.8] * 3, options=options)
    make(tmp_path / "bad", [0.1] * 3, rule="ConFREE", options=options)
    _, good, bad = LoadedStudy(tmp_path).cells
    assert good.mean_gain.mean == pytest.approx(0.3)
    assert bad.mean_gain.mean == pytest.approx(-0.4)
    assert bad.difference.mean == pytest.approx(-0.7)
    assert good.local_values(good.runs[0]) == pytest.approx({0: 0.5, 1: 0.5, 2: 0.5})


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
    assert found["Ditto (lam=0.5) + ConFREE"]["difference to Mean"] == "+5.00 (no interval)"
    assert found["Ditto (lam=1.0) + ConFREE"]["difference to Mean"] == "+10.00 (no interval)"
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
    assert found["FedRep + ConFREE"]["difference to Mean"] == "+10.00 (no interval)"
    assert found["FedRep + Mean (by=uniform)"]["difference to Mean"] == "+5.00 (no interval)"
    remark = (
        "There are several means, Mean (by=size) and Mean (by=uniform); differences are to "
        "Mean (by=size), --base chooses another."
    )
    assert study.table().remarks == [remark]
    assert remark in study.table().markdown()

    asked = LoadedStudy(tmp_path, base="Mean (by=uniform)").table()
    assert asked.remarks == []
    assert "difference to Mean (by=uniform)" in asked.markdown()
    entries = {line.label: str(line.entries["difference"]) for line in asked.rows}
    assert entries == {
        "FedRep + Mean (by=uniform)": "–",
        "FedRep + Mean (by=size)": "−5.00 (no interval)",
        "FedRep + ConFREE": "+5.00 (no interval)",
    }
    with pytest.raises(ComityError, match=r"unknown base 'mean'; known: ConFREE, Mean \(by=size\), Mean"):
        LoadedStudy(tmp_path, base="mean").table()


# Local.


def test_local_is_found_in_the_cache(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=3, done=3, seed=1, options={"eval_point": "fitted"})
    make(tmp_path / ".local" / "right", [0.4, 0.5, 0.6, 0.7], rounds=3, method="Local", seed=1)
    make(tmp_path / ".local" / "wrong", [0.9] * 4, rounds=3, method="Local", seed=2)
    study = LoadedStudy(tmp_path / "a")
    assert [cell.label for cell in study.cells] == ["Local", "FedRep + Mean"]
    local, mine = study.cells
    assert list(local.runs) == [1]
    assert mine.local_values(mine.runs[1]) == {0: 0.4, 1: 0.5, 2: 0.6, 3: 0.7}
    assert mine.clients == []  # it has no result of its own yet
    assert len(study.settings) == 1


def test_one_local_serves_every_moment_of_judgement(tmp_path: Path) -> None:
    make(tmp_path / "local", [0.5] * 4, method="Local")
    for point in ("received", "fitted"):
        make(tmp_path / point, [0.6] * 4, options={"eval_point": point})
    study = LoadedStudy(tmp_path)
    assert [(setting.label, [cell.label for cell in setting.cells]) for setting in study.settings] == [
        (f"eval_point={point}", ["Local", "FedRep + Mean"]) for point in ("fitted", "received")
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
