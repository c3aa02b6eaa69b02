"""Tests of harm: which clients lose more by joining than the luck of their test samples explains.

On a client's test samples only two counts matter: how many only the local baseline predicts correctly, and how many
only the method. If both models are equally good, each sample on which they differ goes to either side with probability
½ (McNemar's test, here the exact binomial one; the mid-p variant has more power but may exceed its level).
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, stdtr

from comity._errors import ComityError

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def mcnemar(
    only_first: ArrayLike, only_second: ArrayLike, alternative: Literal["two-sided", "less", "greater"] = "two-sided"
) -> Array:
    """Exact p-values of "both models are equally good", for each pair of counts.

    ``"less"`` looks for evidence that the second model is worse than the first, ``"greater"`` that it is better.
    """
    first, second = np.asarray(only_first), np.asarray(only_second)
    if np.any(first < 0) or np.any(second < 0):
        raise ComityError("counts must be at least 0")
    less, greater = (bdtr(count, first + second, 0.5) for count in (second, first))
    if alternative == "two-sided":
        return np.asarray(np.minimum(1, 2 * np.minimum(less, greater)))
    return np.asarray(less if alternative == "less" else greater)


def resampled(only_first: ArrayLike, only_second: ArrayLike, test_share: float) -> float:
    """The p-value of "the second model is not worse", from counts on several random splits of the same samples.

    The t-test of Nadeau and Bengio (Machine Learning, 2003): J splits that test on a share of the samples overlap, so
    the variance of the mean difference is not σ²/J but σ²(1/J + share/(1 − share)). For σ² the larger one of two
    estimates is taken, that of the differences seen and McNemar's, the mean number of samples on which models differ.
    """
    first, second = np.asarray(only_first, dtype=float), np.asarray(only_second, dtype=float)
    lost, splits = first - second, len(first)
    variance = max(lost.var(ddof=1), (first + second).mean())
    if variance == 0:
        return 1.0
    error = np.sqrt(variance * (1 / splits + test_share / (1 - test_share)))
    return float(stdtr(splits - 1, -lost.mean() / error))


def benjamini_hochberg(p_values: ArrayLike, q: float) -> Flags:
    """Which hypotheses are rejected so that the expected share of wrong ones among them is at most q.

    For independent tests, as those of clients with test samples of their own.
    """
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p)
    below = np.flatnonzero(p[order] <= q * np.arange(1, p.size + 1) / max(p.size, 1))
    rejected = np.zeros(p.size, dtype=bool)
    rejected[order[: below[-1] + 1 if below.size else 0]] = True
    return rejected
