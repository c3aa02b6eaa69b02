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
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

import comity
from comity import ComityError
from comity.compare import LoadedStudy
from comity.data import Dataset, Federation, federate
from comity.engine import Run
from comity.metrics import (
    AUC,
    BALANCED,
    BRIER,
    DECIDING,
    LOSS,
    OWN,
    OWN_WEIGHT,
    VALIDATED,
    balanced_decisions,
    class_weights,
    expected_calibration_error,
    scores,
    unit,
)
from comity.results import LoadedRun
from helpers import Options


@st.composite
def predictions(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits in quarters, so that many are equal, and labels that may leave classes out."""
    samples, classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    labels = draw(arrays(np.int64, samples, elements=st.integers(0, classes - 1)))
    logits = draw(arrays(np.int64, (samples, classes), elements=st.integers(-6, 6)))
    return torch.from_numpy(logits).double() / 4, torch.from_numpy(labels)


def mean_score(name: str, predicted: torch.Tensor, y: torch.Tensor, shares: object = None) -> float | None:
    """A metric from the scores of samples."""
    expected = predicted.exp().mean(0) if shares is None else shares
    found = scores(name, predicted, y, expected)
    return None if found is None else float(found.mean())


@given(predictions())
@settings(max_examples=200, deadline=None)
def test_scores_average_to_the_metrics_of_scikit_learn(drawn: tuple[torch.Tensor, torch.Tensor]) -> None:
    logits, y = drawn
    predicted, held = logits.log_softmax(1).round(decimals=9), y.unique().tolist()  # equal where they should be
    uniform = torch.ones(predicted.shape[1])
    assert mean_score("accuracy", predicted, y) == pytest.approx(accuracy_score(y, predicted.argmax(1)))
    losses = torch.nn.functional.nll_loss(predicted, y)
    assert mean_score("log-loss", predicted, y) == pytest.approx(-float(losses))
    hot = torch.nn.functional.one_hot(y, predicted.shape[1])
    assert mean_score("brier", predicted, y) == pytest.approx(-float(((predicted.exp() - hot) ** 2).sum(1).mean()))
    balanced, area = (mean_score(name, predicted, y, uniform) for name in ("balanced", "auc"))
    if len(held) < 2:
        assert balanced is None
        assert area is None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of predictions that no test has; their recall is not asked for
        assert balanced == pytest.approx(balanced_accuracy_score(y, predicted.argmax(1)), abs=1e-12)
    areas = [roc_auc_score((y == label).numpy(), predicted[:, label].exp().numpy().round(9)) for label in held]
    assert area == pytest.approx(np.mean(areas), abs=1e-12)


def test_scores_of_the_area_have_the_variance_of_delong() -> None:
    """DeLong et al. (Biometrics 1988): var(AUC) = var(V10) / m + var(V01) / n."""
    random = np.random.default_rng(1)
    y = np.array([0] * 30 + [1] * 50)
    margin = random.normal(size=80) + y
    predicted = torch.from_numpy(np.stack([np.zeros(80), margin], 1)).log_softmax(1)
    found = scores("auc", predicted, y, ())
    wins = (margin[y == 1][:, None] > margin[y == 0]).astype(float)
    expected = wins.mean(1).var() / 50 + wins.mean(0).var() / 30
    assert found.mean() == pytest.approx(wins.mean())
    assert found.var() / 80 == pytest.approx(expected)


def test_decisions_of_balanced_accuracy_divide_by_what_the_model_expects() -> None:
    predicted = np.log([[0.7, 0.3], [0.9, 0.1], [0.6, 0.4]])
    assert balanced_decisions(predicted, np.array([0.8, 0.2])).tolist() == [1, 0, 1]
    assert balanced_decisions(predicted, np.array([0.5, 0.5])).tolist() == predicted.argmax(1).tolist()
    assert balanced_decisions(predicted, np.array([1.0, 0.0])).tolist() == [0, 0, 0]  # a class that is not held


def test_one_test_weighs_as_much_as_its_class_is_rare() -> None:
    labels = np.array([0] * 8 + [2] * 2)
    assert class_weights(labels).tolist() == [10 / 16] * 8 + [10 / 4] * 2
    assert [unit(name, labels) for name in DECIDING] == [1.0, 2.5, 0.0, 0.0, 0.0]


def test_what_is_nearly_certain_is_still_ranked() -> None:
    """Both classes get probabilities of class 1 that float32 rounds to 1; their logits differ."""
    logits = torch.tensor([[0.0, 20.0], [0.0, 21.0], [0.0, 25.0], [0.0, 30.0]])
    predicted, y = logits.log_softmax(1), torch.tensor([0, 0, 1, 1])
    assert (predicted[:, 1].exp() == 1).all()
    assert mean_score("auc", predicted, y) == 1.0
    assert mean_score("auc", predicted, 1 - y) == 0.0


@pytest.mark.parametrize("classes", [2, 3])
def test_what_diverged_has_no_area_and_the_largest_loss(classes: int) -> None:
    predicted, y = torch.full((4, classes), -math.inf), torch.tensor([0, 1, 1, 0])
    assert mean_score("auc", predicted, y) is None
    assert mean_score("log-loss", predicted, y) == -100
    assert mean_score("log-loss", predicted * math.nan, y) == -100


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


def by_hand(run: Run, cid: int) -> dict[str, float]:
    """Of the model that a client uses, on its tests."""
    model, data = run.site.model(), run.federation.clients[cid]
    model.write(run.server.export()[cid])
    with torch.inference_mode():
        probabilities = model.net.eval()(data.test.x).softmax(1)
        expected = model.net(data.train.x).softmax(1).mean(0)
    y, decided = data.test.y, (probabilities / expected).argmax(1)
    return {
        "accuracy": float(accuracy_score(y, probabilities.argmax(1))),
        "balanced": float(balanced_accuracy_score(y, decided)),
        "auc": float(roc_auc_score(y, probabilities[:, 1])),
        "brier": float(2 * ((probabilities[:, 1] - y) ** 2).mean()),
        "log-loss": float(torch.nn.functional.nll_loss(probabilities.log(), y)),
    }


def test_a_client_whose_tests_hold_one_class_has_none_and_the_others_make_the_mean(tmp_path: Path) -> None:
    run = comity.run(federation=uneven(), out=tmp_path / "run", **OPTIONS)
    expected = [by_hand(run, cid) for cid in (0, 1)]
    for name in (OWN.key, LOSS.key, BRIER.key):
        decided = next(key for key, metric in DECIDING.items() if metric.key == name)
        assert run.columns[name][:2] == pytest.approx([each[decided] for each in expected], rel=1e-5)
    for name, key in ((BALANCED.key, "balanced"), (AUC.key, "auc")):
        values = [each[key] for each in expected]
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
    assert table.deciding == ["balanced"]  # classes are uneven
    assert table.shown[0].name == "balanced"


@pytest.mark.parametrize("metric", DECIDING)
def test_the_metric_that_decides_is_obeyed_everywhere(metric: str, tmp_path: Path) -> None:
    """By best round, gains, states, tuning, single scores and the table; gains are positive where joining is better."""
    run = comity.run(federation=uneven(val_share=0.3), metric=metric, eval_every=1, out=tmp_path / "run", **OPTIONS)
    result, deciding, validated = run.result, DECIDING[metric], VALIDATED[metric]
    better = min if deciding.better == "lower" else max
    means = {record.round: record.metrics[validated.key].mean for record in run.records}
    assert means[result.best.round] == better(means.values())
    assert result.best.chosen_by == "validation"
    transfer, local = result.transfer, run.local
    assert transfer.metric == metric
    sign = -1 if deciding.better == "lower" else 1
    both = zip(run.columns[deciding.key], local[deciding.key], strict=True)
    gains = {cid: sign * (mine - theirs) for cid, (mine, theirs) in enumerate(both)}
    assert transfer.gain == pytest.approx({cid: gain for cid, gain in gains.items() if not math.isnan(gain)})
    loaded = LoadedRun(tmp_path / "run")
    for cid, tests in loaded.samples.items():
        assert sign * tests.score.mean() == pytest.approx(run.columns[deciding.key][cid], rel=1e-5)
        assert tests.id.tolist() == run.federation.clients[cid].test_ids.tolist()
    study = LoadedStudy(tmp_path / "run")
    assert study.table().deciding == [next(iter(study.table().deciding))]
    assert study.settings[0].metric is deciding
    rows = {row.client: row for row in study.cells[-1].clients}
    assert {cid: row.gain for cid, row in rows.items()} == pytest.approx(transfer.gain, abs=1e-6)
    assert {cid: row.state for cid, row in rows.items()} == {cid: g.state for cid, g in transfer.clients.items()}
    for cid, row in rows.items():
        assert (row.low, row.high) == pytest.approx((transfer.clients[cid].low, transfer.clients[cid].high), abs=1e-5)


def test_under_a_guard_they_are_those_of_the_mixture() -> None:
    run = comity.run(federation=uneven(val_share=0.3), guard="mixture", refit=0, **OPTIONS)
    baseline = run.site.baselines["train"]
    for cid in (0, 1):
        model, data, weight = run.site.model(), run.federation.clients[cid], run.columns[OWN_WEIGHT.key][cid]
        model.write(run.server.export()[cid])
        model.net.eval()
        with torch.inference_mode():
            federated, *theirs = (model.net(split.x).softmax(1) for split in (data.test, data.train, data.val))
            mine = [baseline.predict(cid, split).exp() for split in (data.train, data.val)]
        expected = (weight * torch.cat(mine) + (1 - weight) * torch.cat(theirs)).mean(0)
        mixed = weight * baseline.on_own(cid, data.test).exp() + (1 - weight) * federated
        assert 0 < weight < 1
        assert run.columns[AUC.key][cid] == pytest.approx(roc_auc_score(data.test.y, mixed[:, 1]))
        balanced = balanced_accuracy_score(data.test.y, (mixed / expected).argmax(1))
        assert run.columns[BALANCED.key][cid] == pytest.approx(balanced)
