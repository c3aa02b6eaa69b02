"""Two classes: decisions, ROC and calibration curves of each client, from the probabilities that runs keep."""

from pathlib import Path

import numpy as np

from comity.compare import LoadedStudy
from comity.metrics import scores
from comity.report._binary import POINTS, binary, calibration, roc, two_classes
from comity.results import ClientScores
from run_folders import make


def test_decisions_are_counted() -> None:
    positive = np.array([True, True, True, False, False])
    found = two_classes(positive, np.array([0.9, 0.8, 0.1, 0.7, 0.2]), np.array([True, True, False, True, False]))
    assert (found["n"], found["positive"]) == (5, 3)
    assert (found["sens"], found["spec"], found["ppv"]) == (0.6667, 0.5, 0.6667)


def test_a_share_of_nothing_is_unknown() -> None:
    never = np.zeros(3, dtype=bool)
    found = two_classes(never, np.full(3, 0.2), never)
    assert (found["sens"], found["spec"], found["ppv"], found["roc"]) == (None, 1.0, None, None)


def test_the_roc_curve_is_thin_and_has_the_metrics_area() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 3000)
    p = np.round(1 / (1 + np.exp(-labels - random.normal(size=3000))), 2)  # with ties
    curve = roc(labels == 1, p)
    assert (curve[0], curve[-1]) == ([0, 0], [1, 1])
    assert len(curve) <= POINTS
    x, y = np.array(curve).T
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    placements = scores("auc", np.log(np.stack([1 - p, p], 1)), labels, [0.5, 0.5])
    assert abs(float(np.trapezoid(y, x)) - placements.mean()) < 0.002


def test_groups_of_a_calibration_curve() -> None:
    random = np.random.default_rng(0)
    p = random.uniform(size=4000)
    groups = calibration(random.uniform(size=4000) < p, p)
    assert [n for _, _, n in groups] == [400] * 10
    assert all(abs(predicted - seen) < 0.08 for predicted, seen, _ in groups)
    assert [n for _, _, n in calibration(p[:25] > 0.5, p[:25])] == [9, 8, 8]
    assert calibration(p[:0] > 0.5, p[:0]) == []


def test_the_predictions_of_all_runs_count(tmp_path: Path) -> None:
    label, p = np.array([0, 1, 1, 0]), np.array([0.4, 0.4, 0.9, 0.1])
    for seed in range(2):
        hits = np.array([1.0, 1.0, 1.0, 0.0])  # as balanced accuracy decides, not at one half
        one = ClientScores(id=np.arange(4), label=label, score=hits, probability=p)
        more = {"same_partition": True, "seed": seed, "names": (("Basel", "Bern"), ("well", "ill"))}
        make(tmp_path / str(seed), [0.75] * 2, alone=[0.5] * 2, samples={0: one, 1: one}, **more)
    found = binary(LoadedStudy(tmp_path).cells[0])
    assert found["positive"] == "ill"
    assert [client["name"] for client in found["clients"]] == ["Basel", "Bern"]
    first = found["clients"][0]
    assert (first["n"], first["positive"], first["sens"], first["spec"]) == (8, 4, 1.0, 0.5)


def test_without_probabilities_there_are_no_clients(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.75] * 2, alone=[0.5] * 2)
    assert binary(LoadedStudy(tmp_path).cells[0])["clients"] == []
