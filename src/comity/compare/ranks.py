"""Average ranks over federations, and their uncertainty.

Scores of different federations are in different metrics, so they are not averaged: each federation ranks the
configurations, 1 for the best, and ranks are averaged. Two kinds of uncertainty are shown: a 95 % interval of each mean
rank (bootstrap over federations, which all configurations share), and Nemenyi's critical difference, below which two
mean ranks are not distinguishable among so many configurations (Demšar, JMLR 2006).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy, which lists and errors should not wait for
    from numpy.typing import ArrayLike, NDArray

DRAWS = 10_000
LEAST = 5
"""Minimum number of federations for a bootstrap."""
LEVEL = 0.05


@dataclass(frozen=True)
class MeanRank:
    """The mean rank of one configuration with its 95 % interval; no interval with few federations."""

    mean: float
    low: float | None
    high: float | None


def ranks(scores: "ArrayLike") -> "NDArray":  # type: ignore[type-arg]
    """(federations, configurations) ranks: 1 for the highest score of a row; ties share the mean of their ranks."""
    import numpy as np

    values = np.asarray(scores, dtype=float)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise ValueError("scores must be a matrix of finite numbers")
    one, other = values[:, :, None], values[:, None, :]
    return np.asarray(0.5 + (other > one).sum(2) + (other == one).sum(2) / 2)


def mean_ranks(scores: "ArrayLike", seed: int = 0) -> list[MeanRank]:
    """Mean rank of each configuration, with the expanded percentile interval of a bootstrap over federations.

    The percentiles are widened by the ratio of Student's t to the normal distribution, and for the bias of the
    bootstrap variance (Hesterberg, American Statistician 2015): with 16 federations plain percentiles are too narrow.
    """
    import numpy as np
    from scipy.special import ndtr, stdtrit

    each = ranks(scores)
    count, means = len(each), each.mean(0)
    if count < LEAST:
        return [MeanRank(float(mean), None, None) for mean in means]
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), DRAWS)
    tail = float(ndtr(math.sqrt(count / (count - 1)) * stdtrit(count - 1, LEVEL / 2)))
    low, high = np.quantile(drawn @ each / count, [tail, 1 - tail], axis=0)
    return [MeanRank(*map(float, row)) for row in zip(means, low, high, strict=True)]


def critical_difference(configurations: int, federations: int) -> float:
    """Nemenyi's critical difference of mean ranks, for a family-wise error of 5 % over all pairs."""
    from scipy.stats import studentized_range

    if configurations < 2:
        return 0.0
    quantile = float(studentized_range.ppf(1 - LEVEL, configurations, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(configurations * (configurations + 1) / (6 * federations))


def friedman(scores: "ArrayLike") -> float:
    """The p-value of equal ranks of all configurations, by the F statistic of Iman and Davenport."""
    from scipy.special import fdtrc

    each = ranks(scores)
    n, k = each.shape
    if n < 2 or k < 2:
        return 1.0
    between = n * ((each.mean(0) - (k + 1) / 2) ** 2).sum()
    within = ((each - (k + 1) / 2) ** 2).sum() - between
    if within <= 1e-12:
        return 0.0 if between > 0 else 1.0
    return float(fdtrc(k - 1, (k - 1) * (n - 1), between * (n - 1) / within))
