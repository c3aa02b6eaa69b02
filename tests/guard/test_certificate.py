"""The certificate: levels by enumeration of all outcomes, and what is released."""

import itertools
from functools import cache

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binomtest, multinomial

from comity import ComityError
from comity.guard import acceptance_limits, betting_test, certificate, certify, exact_test

DELTA = 0.05


def outcomes(n):
    """All pairs (worse, better) of n samples."""
    return [(a, b) for a in range(n + 1) for b in range(n + 1 - a)]


def differences(worse, better, n):
    return np.repeat([1.0, -1.0, 0.0], [worse, better, n - worse - better])


def distributions(step=0.05):
    """P(worse), P(better) on a grid, more closely where the models seldom differ."""
    grid = np.unique(np.concatenate([np.arange(0, 1 + 1e-9, step), [0.005, 0.01, 0.02, 0.03]]))
    return [(p, q) for p, q in itertools.product(grid, grid) if p + q <= 1 + 1e-12]


@cache
def chances(n, p, q):
    """The probability of every outcome."""
    return multinomial.pmf([(a, b, n - a - b) for a, b in outcomes(n)], n, [p, q, max(0.0, 1 - p - q)])


def one_test(test, worse, better, n, margin, delta):
    if test == "exact":
        return exact_test(worse, better, n, margin, delta)
    return betting_test(differences(worse, better, n), margin, delta)


@cache
def evidence(n, margin, test):
    """The p-values and the upper bounds of every outcome."""
    found = [one_test(test, a, b, n, margin, DELTA) for a, b in outcomes(n)]
    return np.array([e.p_value for e in found]), np.array([e.upper_bound for e in found])


@pytest.mark.parametrize("test", ["exact", "betting"])
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.1])
def test_no_distribution_that_is_too_bad_passes_too_often(test, margin):
    """Every outcome of 14 samples under every distribution of a grid: P(p-value ≤ level) ≤ level."""
    p_values, _ = evidence(14, margin, test)
    for p, q in distributions():
        if p - q >= margin:
            for level in (0.01, DELTA, 0.1, 0.3):
                assert chances(14, p, q)[p_values <= level].sum() <= level + 1e-12


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.1])
def test_the_exact_p_value_is_the_greatest_chance_of_an_outcome_as_good(margin):
    """Over 2,001 distributions with just the margin: the p-value is never below it, and at most 1 % above."""
    n = 8
    p_values, _ = evidence(n, margin, "exact")
    s = np.linspace(0, (1 - margin) / 2, 2001)
    chance = np.array([chances(n, better + margin, better) for better in s])
    for p_value in p_values:
        greatest = chance[:, p_values <= p_value].sum(axis=1).max()
        assert greatest <= p_value * (1 + 1e-9)
        assert p_value <= greatest * 1.0101


@pytest.mark.parametrize("test", ["exact", "betting"])
@pytest.mark.parametrize("n", [1, 5, 14])
def test_upper_bounds_are_seldom_too_low(test, n):
    _, bounds = evidence(n, 0.0, test)
    for p, q in distributions():
        assert chances(n, p, q)[bounds < p - q].sum() <= DELTA + 1e-12


@pytest.mark.parametrize("test", ["exact", "betting"])
def test_the_bound_is_the_least_margin_that_passes(test):
    n = 9
    for (worse, better), bound in zip(outcomes(n), evidence(n, 0.0, test)[1], strict=True):
        if bound < 1:
            # bounds are found to 1e-4, and the p-value of the exact test may be 1 % too large
            assert one_test(test, worse, better, n, bound + 1e-9, DELTA).p_value <= DELTA * 1.01
            assert one_test(test, worse, better, n, bound - 3e-4, DELTA).p_value > DELTA * 0.99


@pytest.mark.parametrize(("n", "margin", "delta"), [(1, 0.0, 0.6), (20, 0.0, 0.05), (25, 0.05, 0.1), (30, 0.02, 0.01)])
def test_acceptance_limits_are_those_of_the_test(n, margin, delta):
    limits = acceptance_limits(n, margin, delta)
    near = [(a, b) for a, b in outcomes(n) if abs(a - limits[b]) <= 2]
    for a, b in near:
        assert (exact_test(a, b, n, margin, delta).p_value <= delta) == (a <= limits[b]), (a, b)


def test_the_exact_test_is_stronger_than_its_rivals():
    n = 100
    p, q = 0.025, 0.075  # five points better
    power = {"exact": 0.0, "betting": 0.0, "McNemar": 0.0}
    limits = acceptance_limits(n, 0.0, DELTA)
    for (a, b), chance in zip(outcomes(n), chances(n, p, q), strict=True):
        if chance > 1e-6:
            power["exact"] += chance * (a <= limits[b])
            power["McNemar"] += chance * (a + b > 0 and binomtest(a, a + b, alternative="less").pvalue <= DELTA)
            power["betting"] += chance * (betting_test(differences(a, b, n), 0.0, DELTA).p_value <= DELTA)
    assert power["exact"] > power["McNemar"] + 0.05 > power["betting"] + 0.1


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_the_capital_is_the_integral_over_stakes(margin):
    d = np.random.default_rng(0).uniform(-1, 0.3, size=12)
    capital, _ = quad(lambda x: np.prod(1 - x + x * (1 - d) / (1 - margin)), 0, 1)
    assert capital > 1
    assert betting_test(d, margin, DELTA).p_value == pytest.approx(1 / capital, rel=1e-10)


def test_bounds_for_losses_of_any_size():
    """Losses between 0 and 1 with known means: the bound is too low in at most delta of 300 trials."""
    generator = np.random.default_rng(3)
    mean = 0.3 / 1.3 - 0.2 / 1.2  # of the two Beta distributions
    too_low = [
        betting_test(generator.beta(0.3, 1.0, size=80) - generator.beta(0.2, 1.0, size=80), 0.0, DELTA).upper_bound
        < mean
        for _ in range(300)
    ]
    assert np.mean(too_low) <= DELTA


def wrong(*ranges, n=100):
    """Losses of a model that is wrong on these samples."""
    losses = np.zeros(n, dtype=bool)
    for low, high in ranges:
        losses[low:high] = True
    return losses


def test_the_best_certified_candidate_is_released():
    own = wrong((0, 40))
    found = certify(own, {"mixture": wrong((0, 25)), "federated": wrong((0, 10))}, 0.02, DELTA)
    assert found.released == "federated"
    assert all(verdict.certified for verdict in found.verdicts.values())
    assert found.verdicts["mixture"].difference == pytest.approx(-0.15)
    assert found.verdicts["mixture"].evidence == exact_test(0, 15, 100, 0.02, DELTA)


def test_after_a_failure_nothing_is_certified():
    own = wrong((0, 40))
    found = certify(own, {"mixture": wrong((0, 39)), "federated": wrong((0, 10))}, 0.0, DELTA)
    assert found.released is None
    assert found.verdicts["federated"].evidence.p_value < DELTA
    assert not found.verdicts["federated"].certified


def test_the_own_model_stays_where_a_certified_one_does_not_look_better():
    own = wrong((0, 20), n=400)
    found = certify(own, {"same": own, "worse": wrong((0, 21), n=400)}, 0.05, DELTA)
    assert all(verdict.certified for verdict in found.verdicts.values())
    assert found.released is None


def test_without_calibration_samples_or_candidates_the_own_model_is_released():
    nothing = np.zeros(0, dtype=bool)
    found = certify(nothing, {"federated": nothing}, 0.05, DELTA)
    assert found.released is None
    assert found.verdicts["federated"].evidence.upper_bound == 1
    assert found.verdicts["federated"].evidence.p_value == 1
    assert certify(nothing.astype(float), {"federated": nothing.astype(float)}, 0.05, DELTA).released is None
    assert certify(wrong((0, 3)), {}, 0.05, DELTA).released is None
    assert acceptance_limits(0, 0.05, DELTA).tolist() == [-1]


def test_losses_that_are_numbers_are_bet_on():
    generator = np.random.default_rng(0)
    own, other = generator.uniform(0.2, 1, size=200), generator.uniform(0, 0.8, size=200)
    found = certify(own, {"federated": other}, 0.0, DELTA)
    assert found.released == "federated"
    assert found.verdicts["federated"].evidence == betting_test(other - own, 0.0, DELTA)


@pytest.mark.parametrize("margin", [0.0, 0.03])
def test_models_that_are_too_bad_are_certified_at_most_as_often_as_delta_says(margin, monkeypatch):
    """A good candidate is tested first, then two that are worse by just the margin; all share errors."""
    monkeypatch.setattr(certificate, "exact_test", cache(exact_test))
    generator, n, trials = np.random.default_rng(11), 40, 1500
    bad = 0
    for _ in range(trials):
        u, v = generator.uniform(size=(2, n))
        own = u < 0.30
        candidates = {
            "good": u < 0.12,
            "bad": np.where(own, v > 0.5, (u > 0.85 - margin)),
            "also bad": np.where(own, v < 0.5, (u > 0.85 - margin)),
        }
        verdicts = certify(own, candidates, margin, DELTA).verdicts
        bad += verdicts["bad"].certified or verdicts["also bad"].certified
    assert 0 < bad / trials <= DELTA


@pytest.mark.parametrize(
    ("own", "candidate", "margin", "delta", "says"),
    [
        (wrong(), wrong(), -0.1, 0.05, "margin must be at least 0 and below 1, got -0.1"),
        (wrong(), wrong(), 0.0, 1.0, "delta must be above 0 and below 1, got 1.0"),
        (wrong(), wrong(n=99), 0.0, 0.05, "losses of federated must have the length and the type"),
        (wrong(), wrong().astype(float), 0.0, 0.05, "losses of federated must have the length and the type"),
        (wrong(), np.full(100, 2.0), 0.0, 0.05, "losses of federated must be a list of booleans, or of numbers"),
    ],
)
def test_what_does_not_fit_is_rejected(own, candidate, margin, delta, says):
    with pytest.raises(ComityError, match=says):
        certify(own, {"federated": candidate}, margin, delta)
