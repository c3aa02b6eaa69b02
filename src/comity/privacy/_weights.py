"""The coefficients that a client accepts, and how the server stays within these bounds."""

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9
LARGEST = 16.0
"""Largest coefficient; together with the bound on updates it keeps every term within the fixed point."""

Row = NDArray[np.float64]


def objection_to_weights(weights: Row, most: float, min_clients: int, losses: int = 0) -> str | None:
    """Code of the reason why a sum with these coefficients would reveal too much about one client, or ``None``.

    No client may have more than ``most`` of the sum of squares: the cosine between the sum and its update is then at
    most √most if updates are independent and equally long. The effective number of terms, (Σw)² / Σw², must exceed
    ``min_clients`` − 1, which fewer clients cannot reach. No coefficient may be negative, because coefficients that
    cancel each other hide no one. The same must hold after any ``losses`` other clients drop out.
    """
    if weights.dtype != np.float64 or weights.ndim != 1 or not np.isfinite(weights).all():
        return "weights-form"
    if (weights < 0).any():
        return "weights-sign"
    if not weights.any():
        return None  # no step
    if float(weights.max()) > LARGEST * (1 + ROUNDING):
        return "weights-size"
    weights = weights / weights.max()  # squares of small numbers would underflow
    squares = weights**2
    if (squares > most * _without_the_largest(squares, losses) * (1 + ROUNDING)).any():
        return "weights-share"
    rising = np.sort(weights)
    # bounds: the two sums may leave out different clients
    least, most_squares = rising[: len(rising) - losses].sum(), (rising[losses:] ** 2).sum()
    return "weights-terms" if least**2 <= (min_clients - 1) * most_squares * (1 + ROUNDING) else None


def _without_the_largest(values: Row, count: int) -> Row:
    """For each client, the sum of its own value and the others' without the ``count`` largest of them."""
    order = np.argsort(-values, kind="stable")
    total = values.sum() - values[order[:count]].sum()
    sums = np.full(len(values), total)
    if 0 < count < len(values):
        among = order[:count]  # one of the largest: the next one is left out instead
        sums[among] = total + values[among] - values[order[count]]
    return sums


def within_bounds(weights: Row, most: float, min_clients: int, losses: int) -> Row:
    """Move coefficients toward their mean, as little as needed to be accepted even after ``losses`` dropouts.

    Their sum stays the same. If even the mean is not acceptable, they are left unchanged, for clients to reject.
    """

    def moved(share: float) -> Row:
        return np.asarray((1 - share) * weights + share * weights.mean())

    if objection_to_weights(weights, most, min_clients, losses) is None:
        return weights
    if objection_to_weights(moved(1.0), most, min_clients, losses) is not None:
        return weights
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if objection_to_weights(moved(middle), most, min_clients, losses) is None:
            high = middle
        else:
            low = middle
    return moved(high)
