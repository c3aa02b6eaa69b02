"""How good predictions are where classes are uneven: each class counts the same, however few samples it has."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def balanced_accuracy(right: Tensor, y: Tensor) -> float | None:
    """The mean over the classes of ``y`` of the share that is predicted right; ``None`` where ``y`` holds one class."""
    labels = y.cpu().numpy()
    samples, hits = np.bincount(labels), np.bincount(labels, right.cpu().numpy())
    held = samples.nonzero()[0]
    return None if len(held) < 2 else float((hits[held] / samples[held]).sum() / len(held))


def area_under_curve(predicted: Tensor, y: Tensor) -> float | None:
    """How often a sample of a class gets a higher probability of it than one of another class; a tie counts half.

    That is the AUC, a mean over the classes of ``y``, each against the rest. ``predicted`` are log-probabilities (n,
    classes). ``None`` where ``y`` holds one class, or a model diverged: it gives every class
    the probability 0.
    """
    scores, labels = predicted.cpu().numpy(), y.cpu().numpy()
    held = np.bincount(labels).nonzero()[0]
    if len(held) < 2 or not np.isfinite(scores.max(1)).all():
        return None
    if scores.shape[1] == 2:  # their difference: a float has no room for a probability that is nearly 1
        scores, held = scores - scores[:, ::-1], held[:1]
    rows = np.ascontiguousarray(scores.T[held])
    order = rows.argsort(1)
    is_own = labels[order] == held[:, None]
    own, ranks = is_own.sum(1), _ranks(np.take_along_axis(rows, order, 1))
    areas = (ranks.sum(1, where=is_own) / own - (own + 1) / 2) / (len(labels) - own)
    return float(areas.sum() / len(held))


def _ranks(ascending: NDArray[Any]) -> NDArray[np.float64]:
    """From 1 in each row; equal values share the mean of theirs."""
    samples = ascending.shape[1]
    place, is_new = np.arange(samples), ascending[:, 1:] != ascending[:, :-1]
    first, last = np.zeros(ascending.shape, np.int64), np.full(ascending.shape, samples - 1)
    np.maximum.accumulate(np.where(is_new, place[1:], 0), 1, out=first[:, 1:])
    last[:, -2::-1] = np.minimum.accumulate(np.where(is_new, place[:-1], samples - 1)[:, ::-1], 1)
    return np.asarray((first + last) / 2 + 1)
