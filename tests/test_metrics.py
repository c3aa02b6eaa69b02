"""Metrics: against scikit-learn and by hand, and from a client's tests to files, tables and back."""

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import comity
from comity import ComityError
from comity.compare import LoadedStudy
from comity.data import Dataset, Federation, federate
from comity.engine import Run
from comity.metrics import (
    AUC,
    BALANCED,
    OWN,
    OWN_WEIGHT,
    area_under_curve,
    balanced_accuracy,
    expected_calibration_error,
)
from comity.results import LoadedRun, PartitionTable
from helpers import Options


@st.composite
def predictions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits in quarters, so that many are equal, and labels that may leave classes out."""
    samples, classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    labels = draw(arrays(np.int64, samples, elements=st.integers(0, classes - 1)))
    logits = draw(arrays(np.int64, (samples, classes), elements=st.integers(-6, 6)))
    return torch.from_numpy(logits).double() / 4, torch.from_numpy(labels)


@given(predictions())
@settings(max_examples=200, deadline=None)
def test_as_in_scikit_learn(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, y = drawn
    predicted, held = logits.log_softmax(1).round(decimals=9), y.unique().tolist()  # equal where they should be
    balanced, area = balanced_accuracy(predicted.argmax(1) == y, y), area_under_curve(predicted, y)
    if len(held) < 2:
        assert balanced is None
        assert area is None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of predictions that no test has; their recall is not asked for
        assert balanced == pytest.approx(balanced_accuracy_score(y, predicted.argmax(1)), abs=1e-12)
    areas = [roc_auc_score((y == label).numpy(), predicted[:, label].exp().numpy().round(9)) for label in held]
    assert area == pytest.approx(np.mean(areas), abs=1e-12)


def test_what_is_nearly_certain_is_still_ranked() -> None:
    """Both classes get probabilities of class 1 that float32 rounds to 1; their logits differ."""
    logits = torch.tensor([[0.0, 20.0], [0.0, 21.0], [0.0, 25.0], [0.0, 30.0]])
    predicted, y = logits.log_softmax(1), torch.tensor([0, 0, 1, 1])
    assert (predicted[:, 1].exp() == 1).all()
    assert area_under_curve(predicted, y) == 1.0
    assert area_under_curve(predicted, 1 - y) == 0.0


@pytest.mark.parametrize("classes", [2, 3])
def test_what_diverged_has_no_area(classes: int) -> None:
    assert area_under_curve(torch.full((4, classes), -math.inf), torch.tensor([0, 1, 1, 0])) is None


def test_calibration_error_sample_by_sample() -> None:
    generator = np.random.default_rng(4)
    confidence = generator.uniform(size=500)
    correct = generator.uniform(size=500) < confidence
    total = 0.0
    for lower in np.arange(10) / 10:
        inside = (confidence > lower) & (confidence <= lower + 0.1)
        total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(confidence, correct, bins=10) == pytest.approx(total)


def test_calibration_error_at_its_ends() -> None:
    assert expected_calibration_error([0.0, 1.0], [False, True]) == 0
    assert expected_calibration_error([1.0, 1.0], [False, False]) == 1
    assert expected_calibration_error([], []) == 0
    with pytest.raises(ComityError, match="confidence must be"):
        expected_calibration_error([1.2], [True])


def uneven(val_share: float = 0.0) -> Federation:
    """Three clients; the last one holds one class."""
    random = np.random.default_rng(0)
    y = np.concatenate([np.arange(80) % 4 // 3, np.ones(40, int)])
    x = random.normal(size=(120, 3)) + y[:, None]
    return federate(Dataset("mine", x, y, columns={"client": np.repeat([0, 1, 2], 40)}), val_share=val_share)


OPTIONS: Options = {"rounds": 3, "lr": 0.1, "workers": 1}


def by_hand(run: Run, cid: int) -> tuple[float, float]:
    """Of the model that a client uses, on its tests."""
    model, test = run.site.model(), run.federation.clients[cid].test
    model.write(run.server.export()[cid])
    with torch.inference_mode():
        probabilities = model.net.eval()(test.x).softmax(1)
    area = roc_auc_score(test.y, probabilities[:, 1])
    return float(balanced_accuracy_score(test.y, probabilities.argmax(1))), float(area)


def test_a_client_whose_tests_hold_one_class_has_none_and_the_others_make_the_mean(tmp_path: Path) -> None:
    run = comity.run(federation=uneven(), out=tmp_path / "run", **OPTIONS)
    expected = [by_hand(run, cid) for cid in (0, 1)]
    for place, name in enumerate((BALANCED.key, AUC.key)):
        values = [each[place] for each in expected]
        assert run.columns[name][:2] == pytest.approx(values)
        assert math.isnan(run.columns[name][2])
        summary = run.result.last.metrics[name]
        assert (summary.mean, summary.worst10) == pytest.approx((np.mean(values), min(values)))
        assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"][name][2] is None
    assert len(run.columns[OWN.key]) == 3

    loaded = LoadedRun(tmp_path / "run")
    assert loaded.metric(AUC.key) == run.result.last.metrics[AUC.key].mean
    rows = loaded.folder.client_rows()
    earlier, written = ([row[AUC.key] for row in rows if row["round"] == number] for number in (2, 3))
    assert earlier == [None, None, None]  # in the last round alone, unless more was asked for
    assert written[:2] == run.columns[AUC.key][:2]
    assert math.isnan(written[2] or 0.0)
    table = LoadedStudy(tmp_path / "run").table()
    assert {"balanced", "AUC"} <= {column.name for column in table.shown}  # of two classes, unasked
    assert "Balanced accuracy and AUC leave out 1 of 3 clients, whose tests hold one class." in table.notes


def test_under_a_guard_they_are_those_of_the_mixture() -> None:
    run = comity.run(federation=uneven(val_share=0.3), guard="mixture", refit=0, **OPTIONS)
    for cid in (0, 1):
        model, test, weight = run.site.model(), run.federation.clients[cid].test, run.columns[OWN_WEIGHT.key][cid]
        model.write(run.server.export()[cid])
        with torch.inference_mode():
            federated = model.net.eval()(test.x).softmax(1)
        own = run.site.baselines["train"].on_own(cid, test).exp()
        mixed = weight * own + (1 - weight) * federated
        assert 0 < weight < 1
        assert run.columns[AUC.key][cid] == pytest.approx(roc_auc_score(test.y, mixed[:, 1]))
        assert run.columns[BALANCED.key][cid] == pytest.approx(balanced_accuracy_score(test.y, mixed.argmax(1)))


@pytest.mark.parametrize(
    ("counts", "is_uneven"),
    [
        ([[5, 5], [5, 5]], True),  # two classes
        ([[0, 0], [0, 0]], True),  # at a server that has no data
        ([[5, 5, 5], [0, 5, 3]], False),
        ([[5, 20, 5], [0, 9, 3]], True),
        ([[9, 9, 9, 0], [9, 0, 0, 0]], False),  # a class that nobody has is none
    ],
)
def test_where_they_are_shown_unasked(counts: list[list[int]], is_uneven: bool) -> None:
    assert PartitionTable(name="", partition="", classes=len(counts[0]), counts=counts).is_uneven is is_uneven
