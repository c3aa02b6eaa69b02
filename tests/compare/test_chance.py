"""Tests of harm, against scipy and written-out definitions."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest, false_discovery_control

from comity.compare.harm import FALSE, beyond_chance, mcnemar, resampled


def test_mcnemar_is_the_exact_binomial_test() -> None:
    first, second = (each.ravel() for each in np.mgrid[0:13, 0:13])
    expected = [
        binomtest(int(b), int(a + b), 0.5, "less").pvalue if a + b else 1.0 for a, b in zip(first, second, strict=True)
    ]
    assert mcnemar(first, second) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_never_exceeds_its_level() -> None:
    for discordant in range(1, 40):
        second = np.arange(discordant + 1)
        chance, p = binom.pmf(second, discordant, 0.5), mcnemar(discordant - second, second)
        for level in (0.01, 0.05, 0.2):
            assert chance[p <= level].sum() <= level


def test_who_is_named_is_by_benjamini_and_hochberg() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        p = generator.choice([generator.uniform(), 0.01, 0.05, 1.0], size=generator.integers(1, 12))
        p = p * generator.uniform(size=len(p)).round(2)
        named = np.flatnonzero(false_discovery_control(p) <= FALSE).tolist()
        assert beyond_chance(dict(enumerate(p))) == named
    assert beyond_chance({}) == []


def test_harm_over_several_splits_is_seen_where_each_alone_is_too_small() -> None:
    # 9 of 37 tests lost in each of 8 splits: alone no split stands a correction for four clients, together they do
    counts = [(11, 2), (10, 1), (12, 2), (11, 2), (9, 3), (12, 1), (10, 2), (9, 2)]
    assert mcnemar(10, 2) * 4 > 0.05
    assert resampled(counts, 0.3) * 4 < 0.03
    assert resampled([(0, 0), (0, 0)], 0.3) == 1.0
    assert resampled([(1, 0), (1, 0)], 0.3) > 0.05  # twice the same sample is no evidence
    assert resampled([(joined, local) for local, joined in counts], 0.3) > 0.99


def test_the_test_over_splits_keeps_its_level() -> None:
    """Clients whose two models are equally good, tested on 6 random splits of their samples, which overlap."""
    random, trials, splits, samples, tests = np.random.default_rng(5), 3000, 6, 120, 36
    outcome = random.choice([-1, 0, 1], p=[0.15, 0.7, 0.15], size=(trials, samples))  # who is right, the same each time
    wrong = 0
    for each in outcome:
        seen = [each[random.permutation(samples)[:tests]] for _ in range(splits)]
        wrong += resampled([(int((s > 0).sum()), int((s < 0).sum())) for s in seen], 0.3) <= 0.05
    assert wrong / trials <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / trials)
