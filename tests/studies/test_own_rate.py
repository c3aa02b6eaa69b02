"""``local_lr``: the local baseline has a learning rate of its own."""

from pathlib import Path

import pytest

from comity.compare import LoadedStudy
from comity.config import Config
from comity.studies import study

QUICK = {"data": "heart", "model": "logistic", "rounds": 2, "workers": 1, "jobs": 1, "seeds": 2}


def test_the_baseline_takes_its_own_rate_and_nothing_else_changes() -> None:
    run = Config(data="heart", lr=0.1, local_lr=0.03)
    assert run.local_baseline() == Config(data="heart", lr=0.03).local_baseline()
    assert run.local_baseline(repeat=True).lr == 0.03
    assert Config(data="heart", lr=0.1).key == Config(data="heart", lr=0.1, local_lr=None).key != run.key


def test_configurations_with_several_rates_are_compared_with_one_baseline(tmp_path: Path) -> None:
    grid = [{"method": "FedAvg", "lr": 0.1}, {"method": "FedAvg", "lr": 0.2}, {"method": "Ditto", "lr": 0.1}]
    done = study(QUICK | {"grid": grid, "local_lr": 0.03}, out=tmp_path / "own")
    assert len(done.settings) == 1
    assert done.settings[0].local is not None
    assert {run.options["lr"] for run in done.settings[0].local.finished} == {0.03}
    labels = [cell.label for cell in done.cells if not cell.local]
    assert len(set(labels)) == 3
    assert "FedAvg (lr=0.2) + Mean" in labels
    same = study(QUICK | {"method": "FedAvg", "lr": 0.1}, out=tmp_path / "same")
    fed, other = (next(cell for cell in each.cells if not cell.local) for each in (LoadedStudy(tmp_path / "own"), same))
    assert fed.value == other.value
    local = study(QUICK | {"method": "FedAvg", "lr": 0.03}, out=tmp_path / "local").settings[0].local
    assert local is not None
    assert local.value is not None
    assert fed.value is not None
    assert fed.mean_gain is not None
    assert fed.mean_gain.mean == pytest.approx(fed.value.mean - local.value.mean)
