"""Runs and studies back in a notebook."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import comity
from comity import ComityError
from comity.compare import LoadedStudy
from comity.results import LoadedRun


@pytest.fixture(autouse=True)
def _without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are lists here, whatever is installed; one test says what pandas makes of them."""
    monkeypatch.setitem(sys.modules, "pandas", None)


def test_a_run_comes_back_whole(tiny: dict[str, Any], tmp_path: Path) -> None:
    done = comity.run(**tiny, method="FedRep", out=tmp_path / "x", save_models=True, eval_every=2)
    run = comity.load(tmp_path / "x")
    assert isinstance(run, LoadedRun)
    assert run.finished
    assert run.config == done.config
    assert run.title == "FedRep + Mean"
    assert repr(run) == f"LoadedRun(FedRep + Mean, seed 0, {tmp_path / 'x'})"
    assert run.result is not None
    assert run.result == done.result
    assert [row["round"] for row in run.rounds] == [1, 2, 3]
    assert run.rounds[-1]["train_loss"] == done.records[-1].train_loss
    last = [row for row in run.clients if row["round"] == 3]
    assert [row["L-acc"] for row in last] == done.columns["L-acc"]
    assert [row["G-acc"] is None for row in run.clients] == [True] * 5 + [False] * 5
    assert last[0]["n_train"] == done.columns["n_train"][0]
    assert [weights.round for weights in run.weights] == [1, 2, 3]
    assert torch.equal(run.theta, done.server.theta)
    assert torch.equal(run.state["client/3/method/personal"], done.server.link.states()[3].method["personal"])
    net = done.site.model().net
    net.load_state_dict(run.model(3))
    with pytest.raises(ComityError, match="client 7 has no model here; train with --save-models"):
        run.model(7)


def test_a_run_under_way_is_as_far_as_it_is(tiny: dict[str, Any], tmp_path: Path) -> None:
    rounds = iter([False, False, True])
    comity.run(**tiny, out=tmp_path / "x", checkpoint_every=100, stop=lambda: next(rounds))
    with (tmp_path / "x" / "rounds.jsonl").open("a") as file:
        file.write('{"round": 3, "tra')
    with (tmp_path / "x" / "clients.csv").open("a") as file:
        file.write("3,0,1")
    run = LoadedRun(tmp_path / "x")
    assert not run.finished
    assert run.result is None
    assert run.title == "FedAvg + Mean"
    assert len(run.rounds) == len(run.clients) // 5 == run.rounds[-1]["round"] < 3


def test_data_frames_where_pandas_is_there(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comity.run(**tiny, out=tmp_path / "x")
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(json_normalize=lambda rows: ("frame", rows)))
    run = LoadedRun(tmp_path / "x")
    assert run.rounds[0] == run.clients[0] == "frame"
    assert len(run.rounds[1]) == 3
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert isinstance(LoadedRun(tmp_path / "x").rounds, list)


def test_a_study_comes_back(tiny: dict[str, Any], tmp_path: Path) -> None:
    options = tiny | {"reference": "auto", "jobs": 1, "rounds": 1}
    made = comity.study(**options, method=["FedRep", "FedAvg"], out=tmp_path / "x")
    study = comity.load(str(tmp_path / "x"))
    assert isinstance(study, LoadedStudy)
    assert [run.title for run in study.runs] == ["Local", "Local, repeated", "FedRep + Mean", "FedAvg + Mean"]
    assert repr(study) == f"LoadedStudy(4 runs, {tmp_path / 'x'})"
    assert study.table().markdown() == made.table().markdown() == (tmp_path / "x" / "table.md").read_text()
    assert '<th style="text-align: right">gain over local training</th>' in study.table()._repr_html_()
    assert (study.failed, study.tuning) == ({}, [])


def test_a_folder_of_runs_is_a_study_too(tiny: dict[str, Any], tmp_path: Path) -> None:
    for method in ("FedRep", "FedAvg"):
        comity.run(**(tiny | {"reference": "auto", "rounds": 1}), method=method, out=tmp_path / method)
    study = comity.load(tmp_path)
    assert isinstance(study, LoadedStudy)
    assert [run.title for run in study.runs] == ["Local", "Local, repeated", "FedAvg + Mean", "FedRep + Mean"]
    with pytest.raises(ComityError, match="does not exist"):
        comity.load(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ComityError, match=r"holds no run: there is no config\.yaml in it or below it"):
        comity.load(tmp_path / "empty")


def test_the_doors_are_functions() -> None:
    """Whatever was imported before: a module of the same name must not stand in their place."""
    import comity.compare
    import comity.studies

    assert comity.load is comity.compare.load
    assert comity.study is comity.studies.study
    assert callable(comity.run)
    with pytest.raises(AttributeError, match="no attribute 'sutdy'"):
        comity.sutdy  # noqa: B018
