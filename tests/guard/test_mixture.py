"""Mixture weights: exact integrals, and bounds that hold on every sequence and in expectation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from comity import ComityError
from comity.guard import (
    excess_risk_bound,
    mixture,
    mixture_weights,
    posterior,
    regret_bound,
)

PRIORS = (1.0, 0.5)


@st.composite
def likelihoods(draw, least=0, most=30):
    """Samples × experts over twelve orders of magnitude, where experts fail completely on some samples."""
    samples, experts = draw(st.integers(least, most)), draw(st.integers(1, 3))
    one = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.01, 1), st.floats(-12, 0).map(lambda e: 10**e))
    rows = draw(arrays(float, (samples, experts), elements=one))
    rows[rows.max(axis=1) == 0] = 1.0
    return rows


def best_mixture(rows, weights=None, steps=3000):
    """The weights of the lowest mean log-loss, by the EM iteration, which rises to the one maximum."""
    weights = np.full(len(rows), 1 / len(rows)) if weights is None else weights
    w = np.full(rows.shape[1], 1 / rows.shape[1])
    for _ in range(steps):
        w = w * (weights @ (rows / (rows @ w)[:, None]))
    return w / w.sum()


def by_enumeration(rows, concentration, own=0):
    """The posterior mean and the evidence as sums over all assignments of samples to experts, in rational numbers."""
    samples, experts = rows.shape
    exact = [[Fraction(float(p)) for p in row] for row in rows]
    alpha = [Fraction(concentration) + own * (k == 0) for k in range(experts)]
    moments, evidence = [Fraction(0)] * experts, Fraction(0)
    for assignment in itertools.product(range(experts), repeat=samples):
        term, counts = Fraction(1), [Fraction(0)] * experts
        for i, k in enumerate(assignment):
            term *= exact[i][k] * (counts[k] + alpha[k]) / (i + sum(alpha))
            counts[k] += 1
        evidence += term
        for k in range(experts):
            moments[k] += term * (counts[k] + alpha[k]) / (samples + sum(alpha))
    return np.array([float(moment / evidence) for moment in moments]), float(evidence)


@pytest.mark.parametrize("concentration", PRIORS)
@pytest.mark.parametrize(("samples", "experts"), [(2, 1), (1, 2), (4, 2), (9, 2), (1, 3), (5, 3), (6, 3)])
def test_the_posterior_is_the_sum_over_all_assignments(samples, experts, concentration):
    rows = np.random.default_rng(samples).beta(0.4, 0.6, size=(samples, experts))
    weights, evidence = by_enumeration(rows, concentration)
    computed = posterior(rows, concentration)
    np.testing.assert_allclose(computed.weights, weights, atol=1e-13)
    assert computed.log_evidence == pytest.approx(math.log(evidence), abs=1e-12)


@pytest.mark.parametrize("concentration", PRIORS)
@pytest.mark.parametrize("counts", [(3000, 0), (2100, 900), (2000, 3, 1), (700, 500, 300)])
def test_thousands_of_samples_neither_vanish_nor_blur(counts, concentration):
    """Where each sample is impossible for all experts but one, the posterior is a Dirichlet distribution."""
    rows = 1e-10 * np.repeat(np.eye(len(counts)), counts, axis=0)
    computed = posterior(rows, concentration)
    expected = (np.array(counts) + concentration) / (sum(counts) + len(counts) * concentration)
    np.testing.assert_allclose(computed.weights, expected, atol=max(computed.error, 1e-12))
    a, total = concentration, len(counts) * concentration
    log_evidence = math.lgamma(total) - math.lgamma(sum(counts) + total) + sum(counts) * math.log(1e-10)
    log_evidence += sum(math.lgamma(count + a) - math.lgamma(a) for count in counts)
    assert computed.log_evidence == pytest.approx(log_evidence, rel=1e-13)


@pytest.mark.parametrize("samples", [70, 150, 400])
def test_the_error_is_not_understated(samples, monkeypatch):
    rows = np.random.default_rng(samples).beta(0.3, 0.3, size=(samples, 3))
    adaptive = posterior(rows)
    monkeypatch.setattr(mixture, "FIRST_ORDER", samples)
    exact = posterior(rows)
    assert exact.order == (samples + 3) // 2
    assert adaptive.order < exact.order or samples == 70
    assert np.abs(adaptive.weights - exact.weights).max() <= adaptive.error + exact.error
    assert abs(adaptive.log_evidence - exact.log_evidence) <= adaptive.error + exact.error


@given(likelihoods(), st.sampled_from(PRIORS))
@settings(max_examples=150, deadline=None)
def test_on_every_sequence_the_universal_mixture_is_near_the_best_one(rows, concentration):
    best = np.log(rows @ best_mixture(rows)).sum() if len(rows) else 0.0
    regret = best - posterior(rows, concentration).log_evidence
    count, models = rows.shape
    assert regret <= regret_bound(count, models, concentration) + 1e-9


@pytest.mark.parametrize("concentration", PRIORS)
@pytest.mark.parametrize("experts", [1, 2, 3])
def test_the_regret_bound_is_attained(experts, concentration):
    rows = np.eye(experts)[np.zeros(40, dtype=int)]
    regret = 0.0 - posterior(rows, concentration).log_evidence
    assert regret == pytest.approx(regret_bound(40, experts, concentration), abs=1e-11)


def test_the_constants_of_the_regret_bound():
    for n in (0, 1, 2, 10, 1000, 10**6):
        assert regret_bound(n, 1, 0.5) == pytest.approx(0, abs=1e-7)
        assert regret_bound(n, 2, 0.5) <= 0.5 * math.log(math.pi * n + 1) + 1e-9
        assert regret_bound(n, 3, 0.5) == pytest.approx(math.log(2 * n + 1), abs=1e-7)
        assert regret_bound(n, 2) == pytest.approx(math.log(n + 1), abs=1e-7)
        assert regret_bound(n, 3) == pytest.approx(math.log(math.comb(n + 2, 2)), abs=1e-7)
    assert 0.5 * math.log(math.pi * 10**6) == pytest.approx(regret_bound(10**6, 2, 0.5), abs=1e-6)


@given(likelihoods(least=1, most=15))
@settings(max_examples=100, deadline=None)
def test_leave_one_out_ratios_are_bounded_on_every_sample(rows):
    """The lemma behind ``excess_risk_bound``, with n + 1 samples: mean of (w·pᵢ)/(ŵ₋ᵢ·pᵢ) ≤ (n+K)/(n+1) for every w."""
    left_out = np.array([posterior(np.delete(rows, i, axis=0)).weights @ rows[i] for i in range(len(rows))])
    n, experts = len(rows) - 1, rows.shape[1]
    for w in (best_mixture(rows), *np.eye(experts), np.full(experts, 1 / experts)):
        assert np.mean(rows @ w / left_out) <= (n + experts) / (n + 1) * (1 + 1e-9)


@pytest.mark.parametrize("own", [1, 4])
@pytest.mark.parametrize(("samples", "experts"), [(0, 2), (4, 2), (5, 3)])
def test_a_careful_prior_is_a_dirichlet_prior(samples, experts, own):
    rows = np.random.default_rng(samples).beta(0.4, 0.6, size=(samples, experts))
    expected = by_enumeration(rows, 1, own)[0]
    np.testing.assert_allclose(mixture_weights(rows, own=own).weights, expected, atol=1e-10)
    weighted = mixture_weights(rows, np.ones(samples), own=own)
    np.testing.assert_allclose(weighted.weights, expected, atol=weighted.error + 1e-10)
    assert np.array_equal(mixture_weights(rows, own=0).weights, posterior(np.maximum(rows, mixture.FLOOR)).weights)


@given(likelihoods(least=1, most=12), st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_a_careful_prior_keeps_near_the_own_model_on_every_sample(rows, own):
    """The lemma with N samples in favour of the own model: at most (n+N+K)/(n+N+1) for it, (n+N+K)/(n+1) for all w."""
    rows = np.maximum(rows / max(1.0, rows.max()), mixture.FLOOR)
    others = [np.delete(rows, i, axis=0) for i in range(len(rows))]
    left_out = np.array([mixture_weights(o, own=own).weights @ row for o, row in zip(others, rows, strict=True)])
    n, experts = len(rows) - 1, rows.shape[1]
    assert np.log(np.mean(rows[:, 0] / left_out)) <= excess_risk_bound(n, experts, own) + 1e-9
    limit = excess_risk_bound(n, experts, own) + math.log1p(own / (n + 1))
    for w in (best_mixture(rows), *np.eye(experts)):
        assert np.log(np.mean(rows @ w / left_out)) <= limit + 1e-9


def expected_excess(space, probabilities, samples, estimate):
    """E[risk of the estimate] − risk of the best mixture, exactly, where samples come from a few kinds of rows."""
    best = -probabilities @ np.log(space @ best_mixture(space, probabilities, 20_000))
    expected = 0.0
    for counts in itertools.product(range(samples + 1), repeat=len(space)):
        if sum(counts) == samples:
            ways = math.factorial(samples) // math.prod(map(math.factorial, counts))
            risk = -probabilities @ np.log(space @ estimate(np.repeat(space, counts, axis=0)))
            expected += ways * math.prod(probabilities ** np.array(counts)) * risk
    return expected - best


SPACES = {
    "one expert is always right": ([[1, 1e-9], [1, 1e-9]], [0.5, 0.5]),
    "the other is right now and then": ([[1, 1e-9], [1e-9, 1]], [0.9, 0.1]),
    "both are right half the time": ([[1, 0.2], [0.2, 1], [0.5, 0.5]], [0.4, 0.4, 0.2]),
    "three experts": ([[1, 0.1, 0.1], [0.1, 1, 0.1], [0.3, 0.2, 0.9]], [0.6, 0.3, 0.1]),
}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("samples", [1, 4, 8])
def test_expected_log_loss_is_near_that_of_the_best_mixture(name, samples):
    space, probabilities = map(np.array, SPACES[name])
    bound = excess_risk_bound(samples, space.shape[1])
    excess = expected_excess(space, probabilities, samples, lambda rows: posterior(rows).weights)
    assert 0 <= excess <= bound + 1e-7
    if name == "one expert is always right":
        assert excess == pytest.approx(bound, rel=1e-6)  # the bound cannot be improved


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("own", [1, 10])
def test_expected_log_loss_under_a_careful_prior_is_near_that_of_the_own_model(name, own):
    space, probabilities = map(np.array, SPACES[name])
    excess = expected_excess(space, probabilities, 5, lambda rows: mixture_weights(rows, own=own).weights)
    best = -probabilities @ np.log(space @ best_mixture(space, probabilities, 20_000))
    over_own = excess + best + probabilities @ np.log(space[:, 0])
    bound = excess_risk_bound(5, space.shape[1], own)
    assert over_own <= bound + 1e-7
    if name == "one expert is always right":
        assert over_own == pytest.approx(bound, rel=1e-6)  # the bound cannot be improved


def test_the_best_mixture_on_the_sample_has_no_such_bound():
    """What the prior is for: weights fitted to few samples rule out an expert that is needed."""
    space, probabilities = map(np.array, SPACES["the other is right now and then"])
    fitted = expected_excess(space, probabilities, 4, lambda rows: best_mixture(rows) * (1 - 1e-12) + 1e-12 / 2)
    assert fitted > 5 * excess_risk_bound(4, 2)


@pytest.mark.parametrize("experts", [1, 2, 3])
def test_without_samples_the_weights_are_the_prior_mean(experts):
    np.testing.assert_allclose(mixture_weights(np.empty((0, experts))).weights, 1 / experts, atol=1e-15)


def test_no_expert_loses_all_its_weight():
    """So the mixture's log-loss on any single sample exceeds that of the own model by at most ln(n + K)."""
    weights = mixture_weights(np.tile([0.0, 1.0, 1.0], (50, 1))).weights
    assert weights.min() >= 1 / 53 - 1e-12


def test_probabilities_of_zero_count_as_the_floor():
    rows = np.array([[0.0, 0.0], [0.0, 0.5]])
    np.testing.assert_array_equal(
        mixture_weights(rows).weights, mixture_weights(np.maximum(rows, mixture.FLOOR)).weights
    )
    assert np.isfinite(mixture_weights(rows).log_evidence)


@pytest.mark.parametrize("given", [[0.5, 0.5], [[0.5, 1.5]], [[-0.1, 0.5]], [[float("nan"), 0.5]]])
def test_what_is_no_probability_is_rejected(given):
    with pytest.raises(ComityError, match="probabilities must be"):
        mixture_weights(given)


@pytest.mark.parametrize("given", [[[0.0, 0.0]], [[float("inf"), 1.0]], np.empty((3, 0))])
def test_impossible_likelihoods_are_rejected(given):
    with pytest.raises(ComityError, match="likelihoods must"):
        posterior(given)


@given(likelihoods(1, 8), st.data())
@settings(max_examples=60, deadline=None)
def test_whole_powers_are_repeated_samples(rows, data):
    powers = data.draw(arrays(int, len(rows), elements=st.integers(0, 3)))
    found, repeated = posterior(rows, powers=powers), posterior(np.repeat(rows, powers, axis=0))
    assert found.weights == pytest.approx(repeated.weights, abs=found.error + 1e-9)
    assert found.log_evidence == pytest.approx(repeated.log_evidence, abs=found.error + 1e-9)


@given(likelihoods(1, 20).filter(lambda rows: rows.shape[1] == 2), st.data())
@settings(max_examples=60, deadline=None)
def test_with_powers_the_error_is_reported_honestly(rows, data):
    """Against a rule with far more points: the product is no polynomial, and rows of 0 make it singular at an end."""
    powers = data.draw(arrays(float, len(rows), elements=st.floats(0.1, 5)))
    found = posterior(rows, powers=powers)
    scaled, _ = mixture._scaled(rows)
    nodes, log_weights = mixture._simplex_rule(2, 4096, 1.0)
    mass = np.exp(log_weights + mixture._log_powers(scaled, powers, nodes))
    assert found.weights == pytest.approx(mass @ nodes / mass.sum(), abs=found.error + 1e-12)


def test_powers_that_do_not_fit_are_rejected():
    for powers in ([1.0], [1.0, -1.0], [1.0, math.inf]):
        with pytest.raises(ComityError, match="powers must be a finite number"):
            mixture_weights([[0.5, 0.5], [0.2, 0.8]], powers)
