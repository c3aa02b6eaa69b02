"""Mixture weights from validation samples, with a bound relative to the best mixture.

Expert k gave the true label of sample i the probability pᵢₖ; a mixture with weights w gives it w·pᵢ and loses −ln w·pᵢ.
The weights used are the posterior mean under a Dirichlet prior (Cover's universal mixture)::

    ŵ = ∫ w Πᵢ(w·pᵢ) dπ(w) / Z        Z = ∫ Πᵢ(w·pᵢ) dπ(w)

No weights of the server or of other clients are used, and there is nothing to tune. With K experts and n validation
samples that no expert was trained or chosen on, the following holds (proofs in docs/explanation/guard-mathematics.md):

- In expectation, for a new sample: log-loss of ŵ ≤ log-loss of the best mixture + ``excess_risk_bound(n, K)``, which
  is ln((n+K)/(n+1)) ≤ (K−1)/(n+1). This holds for the uniform prior and the posterior mean of all n samples. A prior
  that favours the first expert as N more samples would has the bound ln((n+N+K)/(n+N+1)) against that expert.
- On every sequence, for the predictor that is updated after each sample: −ln Z ≤ best mixture in hindsight +
  ``regret_bound(n, K, concentration)``, with equality for some sequence. For Dirichlet(½) that is at most
  ½ ln(πn + 1) for two experts and exactly ln(2n + 1) for three.

Without powers the integrals are computed exactly: Πᵢ(w·pᵢ) is a polynomial of degree n, and Gauss rules integrate
polynomials without error. All terms are positive, so nothing cancels; logarithms keep products of thousands of factors
from vanishing. With powers cᵢ, for class-weighted log-loss Σᵢ −cᵢ ln w·pᵢ, the product is no polynomial: the number of
points is doubled until the result changes by less than ``TOLERANCE`` or there are ``LAST_ORDER``, and the last change
is reported as the error. Neither bound is proved with powers.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, logsumexp, roots_jacobi

from comity._errors import ComityError

Array = NDArray[np.float64]

UNIFORM = 1.0
"""Concentration of the uniform Dirichlet prior, for which the posterior mean itself has a bound."""
FLOOR = 1e-12
"""Smaller probabilities of the true label count as this, in weights and bounds. The bounds do not depend on it; it
avoids infinite losses for a sample to which every expert gave 0."""
TOLERANCE = 1e-9
FIRST_ORDER = 32
LAST_ORDER = 512
"""Maximum points per axis of a rule for products with powers."""
ROWS_PER_LOGARITHM = 16
"""The product of so many factors, none below 1e-14, is still far from the smallest float."""


@dataclass(frozen=True)
class Posterior:
    """The posterior of the mixture weights."""

    weights: Array
    """Posterior mean, with sum 1."""
    log_evidence: float
    """ln Z; minus this is the cumulative log-loss of the universal mixture."""
    error: float
    """Upper bound of the error of the weights and of ln Z."""
    order: int
    """Points of the Gauss rule per axis."""


def mixture_weights(probabilities: ArrayLike, powers: ArrayLike | None = None, *, own: int = 0) -> Posterior:
    """Weights of K experts from the (n, K) probabilities that they gave to the true labels of n validation samples.

    ``powers``: weight of each sample's log-loss; 1 by default. ``own``: further samples that count as predicted by the
    first expert only, which makes the prior Dirichlet(1 + own, 1, …, 1).
    """
    given = np.asarray(probabilities, dtype=float)
    if given.ndim != 2 or not np.all((given >= 0) & (given <= 1)):
        raise ComityError("probabilities must be an array of samples × experts with numbers from 0 to 1")
    rows = np.maximum(given, FLOOR)
    if own:
        rows = np.concatenate([rows, np.tile(np.eye(1, given.shape[1]), (own, 1))])
        powers = None if powers is None else np.append(_powers(powers, len(given)), np.ones(own))
    return posterior(rows, powers=powers)


def posterior(likelihoods: ArrayLike, concentration: float = UNIFORM, *, powers: ArrayLike | None = None) -> Posterior:
    """Posterior of mixture weights w under a Dirichlet prior, where sample i has likelihood w·(row i).

    Entries may be any nonnegative numbers, but each row needs a positive one. With ``powers`` sample i has likelihood
    (w·(row i))^powers[i].
    """
    rows, log_greatest = _scaled(likelihoods)
    samples, experts = rows.shape
    each = None if powers is None else _powers(powers, samples)
    log_scale = float(log_greatest.sum() if each is None else log_greatest @ each)
    exact = (samples + 3) // 2 if each is None else None  # enough points for degree n + 1 of the numerator
    order, before = min(exact or FIRST_ORDER, FIRST_ORDER), np.full(experts + 1, np.inf)
    while True:
        nodes, log_weights = _simplex_rule(experts, order, concentration)
        log_mass = log_weights + (_log_products(rows, nodes) if each is None else _log_powers(rows, each, nodes))
        log_evidence = logsumexp(log_mass)
        weights = np.exp(log_mass - log_evidence) @ nodes
        now = np.append(weights, log_evidence)
        rounding = (samples + order) * 2**-50  # the only error of an exact rule
        error = rounding if order == exact else max(rounding, float(np.abs(now - before).max()))
        finest = order == (exact or LAST_ORDER)
        if finest or error <= TOLERANCE:
            return Posterior(weights / weights.sum(), float(log_evidence + log_scale), error, order)
        order, before = min(exact or 2 * order, 2 * order), now


def regret_bound(samples: int, experts: int, concentration: float = UNIFORM) -> float:
    """Regret of the universal mixture against the best mixture in hindsight, on any sequence, in nats.

    ln Γ(n+Kα)Γ(α) / (Γ(Kα)Γ(n+α)) for a Dirichlet(α) prior, α ≥ ½: attained if one expert is always right.
    """
    n, a, total = samples, concentration, experts * concentration
    return float(gammaln(n + total) + gammaln(a) - gammaln(total) - gammaln(n + a))


def excess_risk_bound(samples: int, experts: int, own: int = 0) -> float:
    """Upper bound of the expected log-loss of ``mixture_weights`` minus that of the first expert, in nats.

    Without ``own`` it also holds against the best mixture; with it, that bound is larger by ln(1 + own/(n+1)).
    """
    return float(np.log((samples + own + experts) / (samples + own + 1)))


def _scaled(likelihoods: ArrayLike) -> tuple[Array, Array]:
    """Rows scaled to maximum 1, and the logarithm of each divisor."""
    given = np.asarray(likelihoods, dtype=float)
    if given.ndim != 2 or given.shape[1] == 0 or not np.all(np.isfinite(given) & (given >= 0)):
        raise ComityError("likelihoods must be an array of samples × experts with finite numbers of at least 0")
    greatest = given.max(axis=1, keepdims=True)
    if not np.all(greatest > 0):
        raise ComityError("likelihoods must have a number above 0 for each sample")
    return given / greatest, np.asarray(np.log(greatest[:, 0]))


def _powers(given: ArrayLike, samples: int) -> Array:
    powers = np.asarray(given, dtype=float)
    if powers.shape != (samples,) or not np.all(np.isfinite(powers) & (powers >= 0)):
        raise ComityError("powers must be a finite number of at least 0 for each sample")
    return powers


def _log_products(rows: Array, nodes: Array) -> Array:
    """ln Πᵢ(w·pᵢ) at every node w."""
    total = np.zeros(len(nodes))
    for start in range(0, len(rows), ROWS_PER_LOGARITHM):
        total += np.log(np.prod(rows[start : start + ROWS_PER_LOGARITHM] @ nodes.T, axis=0))
    return total


def _log_powers(rows: Array, powers: Array, nodes: Array) -> Array:
    """ln Πᵢ(w·pᵢ)^powers[i] at every node w."""
    total = np.zeros(len(nodes))
    for start in range(0, len(rows), ROWS_PER_LOGARITHM):
        some = slice(start, start + ROWS_PER_LOGARITHM)
        total += powers[some] @ np.log(rows[some] @ nodes.T)
    return total


@lru_cache(maxsize=32)
def _simplex_rule(experts: int, order: int, concentration: float) -> tuple[Array, Array]:
    """Nodes (points, K) in the simplex and log weights that integrate polynomials of degree 2·order − 1 exactly.

    Under Dirichlet(α, …, α) the share w₁ is Beta(α, (K−1)α), and the division of the rest is again Dirichlet and
    independent of it; so the rule is a product of Gauss–Jacobi rules.
    """
    if experts == 1:
        return np.ones((1, 1)), np.zeros(1)
    rest, log_rest = _simplex_rule(experts - 1, order, concentration)
    points, weights = roots_jacobi(order, (experts - 1) * concentration - 1, concentration - 1)
    share, log_share = (1 + points) / 2, np.log(weights / weights.sum())
    split = (1 - share)[:, None, None] * rest
    first = np.broadcast_to(share[:, None, None], (order, len(rest), 1))
    nodes = np.concatenate([first, split], axis=2).reshape(-1, experts)
    return nodes, (log_share[:, None] + log_rest).ravel()
