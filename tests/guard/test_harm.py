"""Harm told from chance, against scipy and written-out definitions."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from comity import ComityError
from comity.guard import benjamini_hochberg, expected_calibration_error, harm_beyond_chance, mcnemar, resampled


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


def test_few_are_named_wrongly():
    """Twenty clients of which five are truly harmed: the share of wrong names is at most q on average."""
    generator, q = np.random.default_rng(1), 0.1
    wrong, found = [], []
    for _ in range(2000):
        discordant = generator.integers(10, 60, size=20)
        share = np.where(np.arange(20) < 5, 0.85, 0.5)
        local = generator.binomial(discordant, share)
        named = harm_beyond_chance(local, discordant - local, np.full(20, 100), q).beyond_chance
        wrong.append(named[5:].sum() / max(1, named.sum()))
        found.append(named[:5].mean())
    assert np.mean(wrong) + 3 * np.std(wrong) / np.sqrt(len(wrong)) <= q
    assert np.mean(found) > 0.5


def test_without_harm_a_name_is_rare():
    generator, q = np.random.default_rng(2), 0.05
    discordant = generator.integers(10, 60, size=(4000, 20))
    local = generator.binomial(discordant, 0.5)
    any_named = [
        harm_beyond_chance(a, d - a, np.full(20, 100), q).beyond_chance.any()
        for a, d in zip(local, discordant, strict=True)
    ]
    assert np.mean(any_named) <= q


def test_harm_in_words():
    told = harm_beyond_chance(
        only_local=[30, 4, 3, 2, 0, 1], only_method=[5, 3, 2, 1, 9, 1], samples=[100, 100, 50, 50, 50, 2]
    )
    assert str(told) == "4 of 6 look worse, 1 beyond chance"
    np.testing.assert_allclose(told.gain, [-0.25, -0.01, -0.02, -0.02, 0.18, 0])
    assert told.beyond_chance.tolist() == [True, False, False, False, False, False]


def test_impossible_counts_are_refused():
    with pytest.raises(ComityError, match="more samples"):
        harm_beyond_chance([5], [6], [10])
    with pytest.raises(ComityError, match="at least 0"):
        mcnemar([-1], [2])


def test_calibration_error_by_hand():
    # Bins (0, ½] and (½, 1]: confidence 0.45 with accuracy ½ twice, confidence 0.9 with accuracy 2/3 three times.
    confidence, correct = [0.5, 0.4, 0.8, 0.9, 1.0], [True, False, True, False, True]
    expected = (2 * abs(0.5 - 0.45) + 3 * abs(2 / 3 - 0.9)) / 5
    assert expected_calibration_error(confidence, correct, bins=2) == pytest.approx(expected)


def test_calibration_error_sample_by_sample():
    generator = np.random.default_rng(4)
    confidence = generator.uniform(size=500)
    correct = generator.uniform(size=500) < confidence
    total = 0.0
    for lower in np.arange(10) / 10:
        inside = (confidence > lower) & (confidence <= lower + 0.1)
        total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert expected_calibration_error(confidence, correct, bins=10) == pytest.approx(total)


def test_calibration_error_at_its_ends():
    assert expected_calibration_error([0.0, 1.0], [False, True]) == 0
    assert expected_calibration_error([1.0, 1.0], [False, False]) == 1
    assert expected_calibration_error([], []) == 0
    with pytest.raises(ComityError, match="confidence must be"):
        expected_calibration_error([1.2], [True])


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
