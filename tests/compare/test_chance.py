"""Tests of harm, against scipy and written-out definitions."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from comity import ComityError
from comity.compare.chance import benjamini_hochberg, mcnemar, resampled


def pairs(most):
    first, second = np.mgrid[0 : most + 1, 0 : most + 1]
    return first.ravel(), second.ravel()


@pytest.mark.parametrize("alternative", ["two-sided", "less", "greater"])
def test_mcnemar_is_the_exact_binomial_test(alternative):
    first, second = pairs(12)
    expected = [
        binomtest(int(b), int(a + b), 0.5, alternative).pvalue if a + b else 1.0
        for a, b in zip(first, second, strict=True)
    ]
    np.testing.assert_allclose(mcnemar(first, second, alternative), expected, rtol=1e-12)


def test_mcnemar_never_exceeds_its_level():
    for discordant in range(1, 40):
        second = np.arange(discordant + 1)
        chance = binom.pmf(second, discordant, 0.5)
        for alternative in ("two-sided", "less", "greater"):
            p = mcnemar(discordant - second, second, alternative)
            for level in (0.01, 0.05, 0.2):
                assert chance[p <= level].sum() <= level


def rejected_by_definition(p, q):
    """Reject the k smallest, for the greatest k whose k-th smallest p-value is at most q·k/m."""
    m = len(p)
    k = max((k for k in range(1, m + 1) if sorted(p)[k - 1] <= q * k / m), default=0)
    return [value <= sorted(p)[k - 1] if k else False for value in p]


def test_benjamini_hochberg_is_its_definition():
    generator = np.random.default_rng(0)
    for _ in range(300):
        p = generator.choice([generator.uniform(), 0.01, 0.05, 1.0], size=generator.integers(1, 12))
        p = p * generator.uniform(size=len(p)).round(2)
        for q in (0.05, 0.2):
            assert benjamini_hochberg(p, q).tolist() == rejected_by_definition(p, q)
    assert benjamini_hochberg([], 0.05).tolist() == []


def test_impossible_counts_are_rejected():
    with pytest.raises(ComityError, match="at least 0"):
        mcnemar([-1], [2])


def test_harm_over_several_splits_is_seen_where_each_alone_is_too_small() -> None:
    # 9 of 37 tests lost in each of 8 splits: alone no split stands a correction for four clients, together they do
    local, joined = [11, 10, 12, 11, 9, 12, 10, 9], [2, 1, 2, 2, 3, 1, 2, 2]
    assert mcnemar(10, 2, "less") * 4 > 0.05
    assert resampled(local, joined, 0.3) * 4 < 0.03
    assert resampled([0, 0], [0, 0], 0.3) == 1.0
    assert resampled([1, 1], [0, 0], 0.3) > 0.05  # twice the same sample is no evidence
    assert resampled(joined, local, 0.3) > 0.99


def test_the_test_over_splits_keeps_its_level() -> None:
    """Clients whose two models are equally good, tested on 6 random splits of their samples, which overlap."""
    random, trials, splits, samples, tests = np.random.default_rng(5), 3000, 6, 120, 36
    outcome = random.choice([-1, 0, 1], p=[0.15, 0.7, 0.15], size=(trials, samples))  # who is right, the same each time
    wrong = 0
    for each in outcome:
        seen = [each[random.permutation(samples)[:tests]] for _ in range(splits)]
        wrong += resampled([(s > 0).sum() for s in seen], [(s < 0).sum() for s in seen], 0.3) <= 0.05
    assert wrong / trials <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)
