"""Trackers: what W&B and MLflow receive, from libraries that only listen; TensorBoard needs a folder."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from comity import ComityError, Config
from comity._errors import install
from comity._extensions import TRACKERS
from comity.engine import run
from comity.studies._grid import local_of
from helpers import Options, Patch

Calls = list[tuple[Any, ...]]


@pytest.fixture
def calls(monkeypatch: Patch) -> Calls:
    calls: Calls = []
    wandb_run = SimpleNamespace(
        log=lambda scalars, step: calls.append(("log", step, scalars)),
        finish=lambda exit_code: calls.append(("end", exit_code)),
    )

    def init(**about: Any) -> Any:
        calls.append(("start", about["name"], about["config"]["method"]))
        return wandb_run

    mlflow = SimpleNamespace(
        start_run=lambda run_name, **_: calls.append(("start", run_name)),
        log_params=lambda params: calls.append(("params", params["method"], params["rule"])),
        log_metrics=lambda scalars, step: calls.append(("log", step, scalars)),
        end_run=lambda status: calls.append(("end", status)),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    return calls


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("wandb", [("start", "FedAvg + Mean", "FedAvg")], ("end", 0)),
        ("mlflow", [("start", "FedAvg + Mean"), ("params", "FedAvg", "Mean")], ("end", "FINISHED")),
    ],
)
def test_a_tracker_hears_of_every_round(tiny: Options, calls: Calls, name: str, start: Calls, end: Any) -> None:
    done = run(**(tiny | {"rounds": 2, "reference": "auto"}), track=(name,))  # Local is not logged
    assert calls[: len(start)] == start
    assert calls[-1] == end
    logged = calls[len(start) : -1]
    assert [step for _, step, _ in logged] == [1, 2]
    for record, (_, _, scalars) in zip(done.records, logged, strict=True):
        assert scalars["train/loss"] == record.train_loss
        assert scalars["eval/L-acc/mean"] == record.metrics["L-acc"].mean
        assert scalars["bytes/up"] == record.bytes.up
    accuracy = dict(zip(done.columns["client"], done.columns["L-acc"], strict=True))
    assert {cid: logged[-1][2][f"eval/L-acc/client_{cid:02d}"] for cid in accuracy} == accuracy


@pytest.mark.parametrize(("name", "end"), [("wandb", ("end", 1)), ("mlflow", ("end", "KILLED"))])
def test_a_run_that_is_stopped_is_no_finished_one(tiny: Options, calls: Calls, name: str, end: Any) -> None:
    run(**tiny, track=(name,), stop=lambda: True)
    assert calls[-1] == end


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_library_is_reported_with_what_to_install(
    tiny: Options, monkeypatch: Patch, tmp_path: Any, name: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with pytest.raises(ComityError) as caught:
        run(**tiny, track=(name,), out=tmp_path / "run")
    assert str(caught.value) == f"{name} is not installed: {install(name)}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", TRACKERS)
def test_in_a_study_local_is_logged_as_a_run_of_its_own(tiny: Options, name: str) -> None:
    config = Config(**tiny, track=(name,))
    assert local_of(config).track == (name,)
    assert config.local_baseline().track == ()
    assert config.key == Config(**tiny).key


def test_a_library_that_does_not_start_is_one_line(tiny: Options, calls: Calls) -> None:
    def nobody(**_: Any) -> None:
        raise RuntimeError("no login")

    sys.modules["mlflow"].start_run = nobody  # type: ignore[attr-defined]
    with pytest.raises(ComityError, match="mlflow does not start: RuntimeError: no login"):
        run(**tiny, track=("mlflow",))
    assert calls == []


def test_tensorboard_needs_a_folder_and_says_so_before_anything_is_trained(tiny: Options, monkeypatch: Patch) -> None:
    monkeypatch.setattr("comity.engine.Server.step", None)
    with pytest.raises(ComityError, match="tensorboard needs a run folder; give --out"):
        run(**(tiny | {"reference": "auto"}), track=("tensorboard",))
