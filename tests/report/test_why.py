"""Weights and cosines of a run as arrays over rounds."""

import math
from pathlib import Path

import pytest

from comity.compare import LoadedStudy
from comity.report._series import coefficients
from comity.report._why import Agreement, overlap
from comity.results import Cosines, PartitionTable, RunFolder, Weights
from run_folders import make


def test_why(tmp_path: Path) -> None:
    folder = RunFolder(make(tmp_path / "a", [0.6] * 3, thorough=False))
    folder.add_partition(PartitionTable(name="x", partition="p", classes=3, counts=[[10, 0, 0], [5, 5, 0], [0, 0, 7]]))
    lines = [
        Cosines(round=1, group="", ids=[0, 1], cosines=[[1.0, -0.5], [-0.5, 1.0]]),
        Cosines(round=2, group="", ids=[0, 1], cosines=[[1.0, 0.1], [0.1, 1.0]]),
    ]
    folder.add_round(folder.rounds()[-1], cosines=lines)
    (run,) = LoadedStudy(folder.path).runs
    agreement = Agreement.of(run)
    assert agreement.mean[0, 1] == pytest.approx(-0.2)
    assert math.isnan(agreement.mean[0, 2])
    assert agreement.of_clients[:2].tolist() == pytest.approx([-0.2, -0.2])
    # the others of client 0 hold 5, 5, 7: 5 / 17 of class 0; those of client 1 hold 10, 0, 7: more than its half
    assert overlap(run.partition).tolist() == pytest.approx([5 / 17, 0.5, 0.0])


def test_weights_of_a_part_of_the_clients(tmp_path: Path) -> None:
    folder = RunFolder(make(tmp_path / "a", [0.6] * 3, rounds=2, thorough=False))
    records = folder.rounds()
    folder.rewind({})
    folder.add_round(records[0], [Weights(round=1, group="", ids=[0, 2], coefficients=[[0.25, 0.75]])])
    folder.add_round(records[1], [Weights(round=2, group="", ids=[1, "2@1"], coefficients=[[1.0, 0.5]])])
    maps = coefficients(LoadedStudy(folder.path).runs[0], 10)
    assert maps.rounds == [1, 2]
    values = maps.layers["whole model"]
    assert values[[0, 2], 0].tolist() == [0.25, 0.75]
    assert [math.isnan(value) for value in values[:, 1]] == [True, False, True]
