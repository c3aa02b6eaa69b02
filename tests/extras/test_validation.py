"""S-acc, G-acc and the common model on validation samples."""

from pathlib import Path

import pytest

import comity
from comity import ComityError
from comity.results import LoadedRun
from comity.studies import study
from helpers import TINY, Options

GENERAL: Options = TINY | {"val_share": 0.3, "general_validation": True}


def run(out: Path, **options: object) -> LoadedRun:
    comity.run(**GENERAL | options, out=out)
    return LoadedRun(out)


def test_of_one_model_for_all_they_are_its_validation_accuracy(tmp_path: Path) -> None:
    """Clients have as many validation samples each, so means over clients are means over samples."""
    done = run(tmp_path / "a", s_acc_share=1.0)
    own = done.metric("val-acc")
    assert 0 < own < 1
    assert done.metric("val-acc") != done.metric("L-acc")
    assert done.metric("val-global-acc") == pytest.approx(own)
    assert done.metric("val-S-acc") == pytest.approx(own)
    assert done.by_client("val-G-acc") == pytest.approx(dict.fromkeys(done.client_ids, own))


def test_of_personal_models_they_are_about_others_samples_and_the_common_model(tmp_path: Path) -> None:
    options = {"data": "digits", "partition": {"name": "pathological", "num_classes_per_partition": 2}, "epochs": 3}
    done = run(tmp_path / "a", method={"name": "FedAvg", "personal_model": "post_local"}, **options)
    assert done.metric("val-G-acc") < done.metric("val-S-acc") < done.metric("val-acc")
    common = run(tmp_path / "b", **options)  # the same training; its personal model is the common one
    assert done.metric("val-global-acc") == common.metric("val-acc") < done.metric("val-acc")
    assert done.metric("G-acc") == run(
        tmp_path / "c", general_validation=False, **options, method=done.options["method"]
    ).metric("G-acc")


def test_a_guard_has_the_same_samples(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="general_validation: the guard chooses on the same validation samples"):
        comity.run(**GENERAL | {"guard": "mixture", "reference": "auto"}, out=tmp_path / "a")
    with pytest.raises(ComityError, match="general_every never leaves S-acc and G-acc out"):
        comity.run(**GENERAL | {"general_every": "never"}, out=tmp_path / "b")


def test_a_study_tunes_by_what_it_compares(tmp_path: Path) -> None:
    """Local, and a method without a common model, are tuned by accuracy on their own validation samples."""
    options = GENERAL | {"method": ["FedAvg", "FedFomo"], "jobs": 1, "reference": "auto"}
    del options["general_validation"]
    done = study(**options, tune={"lr": [0.01, 0.3]}, tune_by="global-acc", seeds=1, out=tmp_path / "x")
    assert {search.cell: search.chosen_by.split(" in ")[0] for search in done.tuning} == {
        "Local": "validation accuracy",
        "FedAvg + Mean": "validation global model",
        "FedFomo": "validation accuracy",
    }
    (fedavg,) = [search for search in done.tuning if search.cell.startswith("FedAvg")]
    scores = {trial.value: trial.validation for trial in fedavg.tried}
    assert scores[fedavg.chosen] == max(scores.values())
    runs = {run.title: run for run in done.runs}
    assert runs["FedAvg + Mean"].metric("val-global-acc") == scores[fedavg.chosen]


def test_runs_that_were_made_without_it_are_not_mixed_in(tmp_path: Path) -> None:
    options = TINY | {"val_share": 0.3, "jobs": 1, "tune": {"lr": [0.01, 0.3]}, "seeds": 1, "out": tmp_path / "x"}
    study(**options)
    with pytest.raises(ComityError, match="was made without tune_by; give another --out"):
        study(**options, tune_by="G-acc")


def test_tune_by_needs_tune(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="tune_by says what tune chooses by; give tune too"):
        study(**TINY, tune_by="G-acc", out=tmp_path / "x")
    with pytest.raises(ComityError, match="tune_by must be"):
        study(**TINY, tune={"lr": [0.1, 0.2]}, tune_by="L-acc", out=tmp_path / "x")
