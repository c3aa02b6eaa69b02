"""The table against numbers worked out by hand, and what is compared with what."""

import json
import math
import shutil
from pathlib import Path

import pytest
from run_folders import make
from scipy.special import stdtrit

from comity._errors import ComityError
from comity.report._cells import study_of
from comity.report._statistics import Difference, Spread, quantile
from comity.report._table import COLUMNS, rows
from comity.report._why import Conflict, overlap


def table(*paths: Path) -> dict[str, dict[str, str]]:
    """By label: heading to what is shown, the small print after a stroke."""
    return {
        row.cell.label: {
            heading: f"{entry.text} | {entry.small}" if entry.small else entry.text
            for heading, entry in zip(COLUMNS, row.entries, strict=True)
        }
        for row in rows(study_of(list(paths)))
    }


def test_numbers_by_hand(tmp_path: Path) -> None:
    alone = [0.5, 0.5, 0.5, 0.8]
    make(tmp_path / "m0", [0.6, 0.7, 0.5, 0.6], alone=alone, seed=0)  # mean 0.600
    make(tmp_path / "m1", [0.7, 0.7, 0.5, 0.7], alone=alone, seed=1)  # mean 0.650
    make(tmp_path / "c0", [0.7, 0.8, 0.6, 0.7], alone=alone, seed=0, rule="ConFREE")  # mean 0.700
    make(tmp_path / "c1", [0.8, 0.8, 0.6, 0.92], alone=alone, seed=1, rule="ConFREE")  # mean 0.780
    found = table(tmp_path)
    mean, confree = found["FedRep + Mean"], found["FedRep + ConFREE"]
    assert mean["accuracy, %"] == "62.5 | ± 3.5"  # 5 / sqrt(2)
    assert confree["accuracy, %"] == "74.0 | ± 5.7"
    # differences 10 and 13: mean 11.5, deviation 2.1213, half 12.7062 * 2.1213 / sqrt(2) = 19.06
    assert confree["difference to Mean"] == "↑ 11.5 | [−7.6, 30.6]"
    assert mean["difference to Mean"] == "–"
    assert mean["worst tenth, %"] == "50.0 | ± 0.0"  # the worst one of four
    # alone 0.575: gains 2.5 and 7.5 points
    assert mean["gain over Local"] == "+5.0 | [−26.8, 36.8]"
    # seed 0: (0.2 + 0.4 + 0 - 0.25) / 4 = 8.75 %; seed 1: (0.4 + 0.4 + 0 - 0.125) / 4 = 16.875 %
    assert mean["relative, %"] == "+12.8 | ± 5.7"
    assert mean["clients that gain"] == "4 | of 8"
    assert mean["harmed"] == "2"
    assert confree["harmed"] == "1"
    assert mean["MB a round"] == "1.50"
    assert mean["s a round"] == "0.75"
    assert mean["seeds"] == "2"
    assert found["Local"]["accuracy, %"] == "57.5 | ± 0.0"  # noted by the others, without a run of its own


def test_the_interval_is_students() -> None:
    for freedom in (1, 2, 3, 7, 12, 13, 20, 60, 500):
        assert quantile(freedom) == pytest.approx(float(stdtrit(freedom, 0.975)), rel=5e-5)


def test_differences() -> None:
    assert Difference.of({0: 0.5}, {1: 0.4}) is None
    one = Difference.of({0: 0.5, 1: 0.9}, {0: 0.4})
    assert one is not None
    assert (one.n, one.half, one.verdict) == (1, None, "one seed")
    assert Difference.of({0: 1.0, 1: 1.1, 2: 1.2}, {0: 0.5, 1: 0.6, 2: 0.7}).verdict == "gain"  # type: ignore[union-attr]
    assert Difference.of({0: 0.5, 1: 0.6}, {0: 0.5, 1: 0.6}).verdict == "noise"  # type: ignore[union-attr]
    assert math.isnan(Spread.of([math.nan]).mean)


def test_cells_are_what_differs(tmp_path: Path) -> None:
    for seed in (0, 1):
        for c in (0.1, 0.5):
            make(tmp_path / f"c{c}-{seed}", [0.5] * 4, seed=seed, rule="ConFREE", options={"rule.c": c})
        make(tmp_path / f"m-{seed}", [0.5] * 4, seed=seed, options={"workers": seed + 1})
    study = study_of([tmp_path])
    assert study.varying == ["rule.c"]
    assert len(study.settings) == 1
    labels = {cell.label: list(cell.runs) for cell in study.cells}
    assert labels == {
        "FedRep + Mean": [0, 1],
        "FedRep + ConFREE (c=0.1)": [0, 1],
        "FedRep + ConFREE (c=0.5)": [0, 1],
    }


def test_settings_are_conditions_that_differ(tmp_path: Path) -> None:
    for alpha in (0.1, 1.0):
        for share in (0.5, 1.0):
            options = {"partition.alpha": alpha, "participation": share}
            make(tmp_path / f"{alpha}-{share}", [0.5] * 4, options=options)
    study = study_of([tmp_path])
    assert [setting.label for setting in study.settings] == [
        "alpha=0.1, participation=0.5",
        "alpha=0.1, participation=1",
        "alpha=1, participation=0.5",
        "alpha=1, participation=1",
    ]


def test_local_is_found_in_the_cache(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=3, done=3, seed=1, options={"moment": "fitted"})  # no result of its own yet
    make(tmp_path / ".local" / "right", [0.4, 0.5, 0.6, 0.7], rounds=3, method="Local", seed=1)
    make(tmp_path / ".local" / "wrong", [0.9] * 4, rounds=3, method="Local", seed=2)
    study = study_of([tmp_path / "a"])
    assert [cell.label for cell in study.cells] == ["Local", "FedRep + Mean"]
    local, mine = study.cells
    assert list(local.runs) == [1]
    assert mine.clients(mine.runs[1]).gain.round(6).tolist() == [0.2, 0.1, 0.0, -0.1]
    assert len(study.runs) == 1


def test_a_local_run_of_the_study_itself(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "local", [0.5] * 4, method="Local")
    make(tmp_path / "runs" / "fedrep", [0.6] * 4, alone=[0.5] * 4)
    found = table(tmp_path)
    assert found["Local"]["accuracy, %"] == "50.0"
    assert found["FedRep + Mean"]["gain over Local"] == "+10.0 | one seed"


def test_a_method_with_its_own_rule_has_no_other(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, method="FedCALM", own_rule=True)
    make(tmp_path / "b", [0.5] * 4)
    assert set(table(tmp_path)) == {"FedCALM", "FedRep + Mean"}


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    study = study_of([tmp_path, tmp_path / "a"])
    assert len(study.runs) == 1
    assert study.doubles == 1


def test_a_study_shows_what_belongs_to_it(tmp_path: Path) -> None:
    make(tmp_path / "runs" / "b", [0.6] * 4, rule="CALM")
    make(tmp_path / "runs" / "a", [0.5] * 4)
    make(tmp_path / "runs" / "old", [0.5] * 4, method="Ditto")
    make(tmp_path / ".tuning" / "c", [0.5] * 4, method="Ditto")
    cells = [
        {"folder": "runs/b", "title": "FedRep + CALM, seed 0"},
        {"folder": "runs/a", "title": "FedRep + Mean, seed 0"},
        {"folder": "runs/c", "title": "FedRep + X, seed 0", "error": "it failed"},
    ]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    study = study_of([tmp_path])
    assert sorted(cell.label for cell in study.cells) == ["FedRep + CALM", "FedRep + Mean"]
    assert study.plan.failed == {"FedRep + X, seed 0": "it failed"}
    assert study.finished
    (tmp_path / "cells.json").write_text(json.dumps([*cells, {"folder": "runs/d", "title": "to come"}]))
    assert not study_of([tmp_path]).finished


def test_why(tmp_path: Path) -> None:
    path = make(tmp_path / "a", [0.6] * 3, thorough=False)
    counts = {"name": "x", "partition": "p", "classes": 3, "counts": [[10, 0, 0], [5, 5, 0], [0, 0, 7]]}
    (path / "partition.json").write_text(json.dumps(counts))
    lines = [
        {"round": 1, "group": "", "ids": [0, 1], "cosines": [[1.0, -0.5], [-0.5, 1.0]]},
        {"round": 2, "group": "", "ids": [0, 1], "cosines": [[1.0, 0.1], [0.1, 1.0]]},
    ]
    (path / "cosines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = study_of([path]).runs[0]
    conflict = Conflict.of(run)
    assert conflict is not None
    assert conflict.mean[0, 1] == pytest.approx(-0.2)
    assert math.isnan(conflict.mean[0, 2])
    assert conflict.agreement[:2].tolist() == pytest.approx([-0.2, -0.2])
    assert run.partition is not None
    # the others of client 0 hold 5, 5, 7: 5 / 17 of class 0; those of client 1 hold 10, 0, 7: more than its half
    assert overlap(run.partition).tolist() == pytest.approx([5 / 17, 0.5, 0.0])


def test_weights_of_a_part_of_the_clients(tmp_path: Path) -> None:
    path = make(tmp_path / "a", [0.6] * 3, rounds=2, thorough=False)
    lines = [
        {"round": 1, "group": "", "ids": [0, 2], "coefficients": [[0.25, 0.75]]},
        {"round": 2, "group": "", "ids": [1], "coefficients": [[1.0]]},
    ]
    (path / "weights.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    weights = study_of([path]).runs[0].weights(10)
    assert weights is not None
    assert weights.rounds == [1, 2]
    values = weights.layers["whole model"]
    assert values[[0, 2], 0].tolist() == [0.25, 0.75]
    assert [math.isnan(value) for value in values[:, 1]] == [True, False, True]


def test_a_line_that_is_just_being_written_is_none_yet(tmp_path: Path) -> None:
    path = make(tmp_path / "a", [0.6] * 3, rounds=9, done=2)
    with (path / "rounds.jsonl").open("a") as stream:
        stream.write('{"round": 3, "coho')
    with (path / "clients.csv").open("a") as stream:
        stream.write("3,0,10,20,0.9,0.1,,,,,\r\n3,1,10")
    run = study_of([path]).runs[0]
    assert run.round == 2
    assert run.clients["L-acc"] == [0.6] * 3


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("rounds.jsonl", "{nonsense\n", "line 1 is not JSON"),
        ("rounds.jsonl", "[1]\n", "line 1 is no record of a round"),
        ("result.json", "{", "result.json is not JSON"),
        ("config.yaml", "a: [", "config.yaml is not YAML"),
        ("config.yaml", "clients: 3", "names no method"),
        ("partition.json", '{"counts": 3}', "not a run folder that this comity can read"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, file: str, text: str, told: str) -> None:
    path = make(tmp_path / "a", [0.6] * 3)
    (path / file).write_text(text)
    with pytest.raises(ComityError, match=told) as caught:
        study_of([path])
    assert "\n" not in str(caught.value)
