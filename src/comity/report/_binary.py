"""Binary classification: sensitivity, specificity, predictive value, ROC and calibration curve per client."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from comity._errors import one_line
from comity.compare import Cell, ClientRow
from comity.config import ACCURACY, BALANCED
from comity.report._maps import digits
from comity.report._series import Floats
from comity.report._words import client_name
from comity.results import ClientScores

POINTS = 60
"""Number of thresholds of a ROC curve on the page."""
GROUP = 10
"""Maximum groups of a calibration curve, and minimum predictions per group."""
MOST = 200
"""Number of clients (the worst ones) with curves on the page."""

Bools = npt.NDArray[np.bool]


def binary(cell: Cell) -> dict[str, Any]:
    """A configuration's clients with the predictions of all runs; empty if probabilities were not stored."""
    classes = next((run.partition.class_names for run in cell.finished if run.partition is not None), [])
    clients = [
        {"name": client_name(row)} | two_classes(*_joined(parts, cell.setting.deciding))
        for row in cell.clients[:MOST]
        if (parts := _scores(cell, row))
    ]
    return {"positive": one_line(classes[1], 40) if len(classes) == 2 else "1", "clients": clients}


def _scores(cell: Cell, row: ClientRow) -> list[ClientScores]:
    runs = [run.samples for run in cell.finished if row.seed in (None, run.seed)]
    found = [samples[row.client] for samples in runs if samples is not None and row.client in samples]
    return [scores for scores in found if scores.probability is not None]


def _joined(parts: list[ClientScores], metric: str) -> tuple[Bools, Floats, Bools]:
    """Whether each test is positive, its probability, and whether the model predicts positive."""
    label, probability, score = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("label", "probability", "score")
    )
    positive = label == 1
    called = positive == (score > 0) if metric in (ACCURACY, BALANCED) else probability > 0.5
    return positive, probability.astype(np.float64), called


def two_classes(positive: Bools, p: Floats, called: Bools) -> dict[str, Any]:
    """The numbers of one client. An undefined share is ``None``, such as the sensitivity without positive samples."""
    return {
        "n": len(p),
        "positive": int(positive.sum()),
        "sens": _share(called & positive, positive),
        "spec": _share(~called & ~positive, ~positive),
        "ppv": _share(called & positive, called),
        "roc": roc(positive, p),
        "calibration": calibration(positive, p),
    }


def _share(part: Bools, whole: Bools) -> float | None:
    return digits(float(part.sum() / whole.sum())) if whole.any() else None


def roc(positive: Bools, p: Floats) -> list[list[float]] | None:
    """False and true positive rate at decreasing thresholds, from (0, 0) to (1, 1); ``None`` with a single class."""
    if positive.all() or not positive.any():
        return None
    order = np.argsort(-p, kind="stable")
    last_of_ties = np.append(np.diff(p[order]) != 0, True)
    hits, alarms = (np.append(0, np.cumsum(which[order])[last_of_ties]) for which in (positive, ~positive))
    kept = np.unique(np.linspace(0, len(hits) - 1, POINTS).round().astype(int))
    points = np.stack([alarms[kept] / alarms[-1], hits[kept] / hits[-1]], axis=1)
    return [[float(x), float(y)] for x, y in points.round(4)]


def calibration(positive: Bools, p: Floats) -> list[list[float]]:
    """Mean predicted probability, share of positives and number of samples, for groups of similar predictions."""
    if not len(p):
        return []
    groups = np.array_split(np.argsort(p, kind="stable"), min(GROUP, math.ceil(len(p) / GROUP)))
    return [[round(float(p[g].mean()), 4), round(float(positive[g].mean()), 4), len(g)] for g in groups]
