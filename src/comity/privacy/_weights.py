"""Which coefficients a client lends its update to, and how the server keeps within that."""

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9
LARGEST = 16.0
"""The largest coefficient; with a bound on updates it keeps every term within the fixed point."""

Row = NDArray[np.float64]


def objection_to_weights(weights: Row, most: float, min_clients: int, losses: int = 0) -> str | None:
    """The code of why a sum with these coefficients would say too much of one client; ``None`` if it would not.

    No client may have more than ``most`` of the sum of squares: the cosine between the sum and its update is then at
    most √most where updates are independent and equally long. The effective number of terms, (Σw)² / Σw², must be above
    ``min_clients`` − 1, which fewer clients cannot reach. No coefficient may be negative, because others that cancel
    each other hide nobody. ``losses`` asks the same of a sum that loses any so many of the others.
    """
    if weights.dtype != np.float64 or weights.ndim != 1 or not np.isfinite(weights).all():
        return "weights-form"
    if (weights < 0).any():
        return "weights-sign"
    if not weights.any():
        return None  # nobody moves
    if float(weights.max()) > LARGEST * (1 + ROUNDING):
        return "weights-size"
    weights = weights / weights.max()  # squares of small numbers would be 0
    squares = weights**2
    if (squares > most * _without_the_largest(squares, losses) * (1 + ROUNDING)).any():
        return "weights-share"
    rising = np.sort(weights)
    least, most_squares = rising[: len(rising) - losses].sum(), (rising[losses:] ** 2).sum()  # a bound: not of one set
    return "weights-terms" if least**2 <= (min_clients - 1) * most_squares * (1 + ROUNDING) else None


def _without_the_largest(values: Row, count: int) -> Row:
    """For each client, the sum of its own value and the others' without the ``count`` largest of these."""
    order = np.argsort(-values, kind="stable")
    total = values.sum() - values[order[:count]].sum()
    sums = np.full(len(values), total)
    if 0 < count < len(values):
        among = order[:count]  # one of the largest itself: the next one is left out in its place
        sums[among] = total + values[among] - values[order[count]]
    return sums


def within_bounds(weights: Row, most: float, min_clients: int, losses: int) -> Row:
    """The coefficients, moved toward their mean as little as clients need to lend themselves, whoever of few is lost.

    Their sum stays. Where the mean itself would not do, they are left as they are, for clients to reject.
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
