"""Average ranks: against brute force, published values, and simulated federations."""

import math

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, rankdata

from comity.compare import critical_difference, friedman, mean_ranks, ranks


def test_ranks_are_those_of_scipy_with_ties() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        scores = random.integers(0, 4, (random.integers(1, 6), random.integers(1, 7)))
        assert np.array_equal(ranks(scores), np.array([rankdata(-row) for row in scores]))


def test_a_missing_score_is_rejected() -> None:
    with pytest.raises(ValueError, match="finite"):
        ranks([[1.0, math.nan]])


@pytest.mark.parametrize(("configurations", "quantile"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_differences_are_those_of_demsar(configurations: int, quantile: float) -> None:
    """Demšar, JMLR 2006, Table 5(a)."""
    expected = quantile * math.sqrt(configurations * (configurations + 1) / (6 * 14))
    assert critical_difference(configurations, 14) == pytest.approx(expected, rel=5e-4)


def test_friedman_is_that_of_iman_and_davenport() -> None:
    scores = np.random.default_rng(3).normal(size=(12, 5)) + np.arange(5) / 3
    statistic = friedmanchisquare(*scores.T).statistic
    n, k = scores.shape
    from scipy.stats import f

    expected = f.sf((n - 1) * statistic / (n * (k - 1) - statistic), k - 1, (k - 1) * (n - 1))
    assert friedman(scores) == pytest.approx(expected)
    assert friedman([[1, 2, 3]] * 6) == 0.0
    assert friedman([[1, 1, 1]] * 6) == 1.0


def test_the_mean_is_exact_and_few_federations_have_no_interval() -> None:
    few = mean_ranks([[3, 2, 1], [3, 1, 2]])
    assert [each.mean for each in few] == [1.0, 2.5, 2.5]
    assert few[0].low is None
    same = mean_ranks([[3, 2, 1]] * 6)
    assert [(each.low, each.mean, each.high) for each in same] == [(k, k, k) for k in (1.0, 2.0, 3.0)]


def test_intervals_hold_the_true_mean_rank_in_95_of_100_samples_of_federations() -> None:
    """Configurations whose quality depends on the federation; the truth is the mean rank over very many."""
    random, quality = np.random.default_rng(1), np.array([0.0, 0.3, 0.6, 1.5])

    def scores(count: int) -> np.ndarray:
        return quality + random.normal(size=(count, 4)) * [1, 1, 2, 0.5]

    truth = ranks(scores(200_000)).mean(0)
    held = [
        [
            each.low is not None and each.high is not None and each.low <= t <= each.high
            for each, t in zip(found, truth, strict=True)
        ]
        for found in (mean_ranks(scores(16), seed=k) for k in range(300))
    ]
    shares = np.mean(held, axis=0)
    assert shares.min() > 0.91
    assert shares.mean() == pytest.approx(0.95, abs=0.02)


def test_equal_configurations_exceed_the_critical_difference_in_five_of_100_cases_at_most() -> None:
    random = np.random.default_rng(2)
    means = ranks(random.normal(size=(2000 * 16, 6))).reshape(2000, 16, 6).mean(1)
    wrong = np.mean(np.ptp(means, axis=1) > critical_difference(6, 16))
    assert 0.02 < wrong < 0.06
