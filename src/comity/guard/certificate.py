"""Certify on unused samples that a candidate is not worse than the client's own model by more than a margin.

Both models are evaluated on the same n calibration samples. The difference of the two losses is within ±1, and its mean
over all future samples is the risk difference μ. A test wrongly rejects "μ ≥ margin" with probability at most delta; a
candidate that passes is certified:

- ``exact_test`` for right-or-wrong losses, where only two counts matter. Its level is exact for every n.
- ``betting_test`` for any bounded losses (Waudby-Smith & Ramdas 2024): a bettor against "μ ≥ margin" multiplies its
  capital by 1/delta with probability at most delta. It needs two to three times as many samples.

``certify`` tests several candidates and chooses the model to release. Assumptions, proofs and measurements are in
docs/explanation/guard-mathematics.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, gammaln, ndtri, xlog1py, xlogy

from comity._errors import ComityError
from comity.guard.mixture import posterior

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

SLACK = 0.01
"""Relative accuracy of the exact test's p-value, which is rounded up."""
NEGLIGIBLE = 1e-15
"""Upper bound of the probability of all counts left out of a sum; it is added to the p-value."""
BOUND_STEP = 1e-4
"""Upper bounds are rounded up to this accuracy."""


@dataclass(frozen=True)
class Evidence:
    """Result of one test of the risk difference μ between a candidate and the client's own model."""

    p_value: float
    """P-value of "μ ≥ margin"."""
    upper_bound: float
    """Upper bound of μ with probability at least 1 − delta over the calibration samples, for this candidate by itself.
    For a candidate selected on the same samples see ``Certificate.bound``."""


@dataclass(frozen=True)
class Verdict:
    """Result of one candidate on the calibration samples."""

    difference: float
    """Mean loss minus that of the client's own model."""
    evidence: Evidence
    certified: bool


@dataclass(frozen=True)
class Certificate:
    """The model to release; ``None`` is the client's own."""

    released: str | None
    verdicts: dict[str, Verdict]
    bound: float | None
    """Upper bound of the released model's risk minus the reference, with probability at least 1 − delta, selection
    included: the margin if a candidate failed, otherwise the largest upper bound of all candidates (Hsu and Berger
    1999). ``None`` if no candidate is released."""


def certify(
    own: ArrayLike, candidates: Mapping[str, ArrayLike], margin: float, delta: float, benefit: float = 0.0
) -> Certificate:
    """Test the candidates in the given order and choose the model to release.

    ``own`` and each candidate are losses on the same calibration samples: booleans (whether the model was wrong) or
    numbers from 0 to 1. The reference is the risk of the client's own model minus ``benefit`` (positive to demand an
    improvement). The guarantee: with probability at least 1 − delta over the calibration samples, the risk of the
    released model is at most the reference + margin. Conditions: models, their order, margin and benefit are fixed
    before the calibration samples are used, and these have the same distribution as future samples.

    Each candidate is tested at the full delta until one fails; those after it are not certified. So the probability of
    any wrong certificate is at most delta, and any choice among the certified candidates is safe. The one with the
    lowest calibration loss is released if that is below the own model's loss − benefit.
    """
    _check_options(margin, delta)
    if not 0 <= benefit < 1:
        raise ComityError(f"benefit must be at least 0 and below 1, got {benefit}")
    limit = max(margin - benefit, -1 + BOUND_STEP)
    own_losses = _losses(own, "own")
    verdicts: dict[str, Verdict] = {}
    passing = True
    for name, given in candidates.items():
        losses = _losses(given, name)
        if losses.shape != own_losses.shape or losses.dtype != own_losses.dtype:
            raise ComityError(f"losses of {name} must have the length and the type of the client's own")
        difference = losses.astype(float) - own_losses
        if losses.dtype == bool:
            worse, better = int((difference > 0).sum()), int((difference < 0).sum())
            evidence = exact_test(worse, better, len(losses), limit, delta)
        else:
            evidence = betting_test(difference, limit, delta)
        passing = passing and evidence.p_value <= delta
        verdicts[name] = Verdict(float(difference.mean()) if len(losses) else 0.0, evidence, passing)
    improving = [name for name, verdict in verdicts.items() if verdict.certified and verdict.difference < -benefit]
    released = min(improving, key=lambda name: verdicts[name].difference, default=None)
    greatest = max((verdict.evidence.upper_bound for verdict in verdicts.values()), default=1.0) + benefit
    bound = None if released is None else min(margin, greatest) if passing else margin
    return Certificate(released, verdicts, bound)


def exact_test(worse: int, better: int, samples: int, margin: float, delta: float) -> Evidence:
    """Exact test from the numbers of samples that only the candidate, and only the own model, got wrong.

    Pairs of counts are ordered by the upper end of their score interval (Tango 1998). The p-value is the largest
    probability, over all distributions with μ ≥ margin, of counts at least as good as those observed; the upper bound
    is the smallest margin at which it falls to delta (Buehler 1957).
    """
    if samples == 0:
        return Evidence(1.0, 1.0)
    z = _order_quantile(delta)
    _, score_bound = _bisect(lambda m: bool(_score_bound_below(worse, better, samples, m, z)), 1e-12)
    limits = _limits(samples, score_bound, z)
    limits[better:] = np.maximum(limits[better:], worse)  # the observed counts belong to the region
    limits = np.minimum(limits, samples - np.arange(samples + 1))
    _, upper = _bisect(lambda m: _greatest_probability(limits, m, delta) <= delta, BOUND_STEP)
    return Evidence(min(1.0, _greatest_probability(limits, margin)), upper)


def acceptance_limits(samples: int, margin: float, delta: float) -> Counts:
    """Largest number of samples that only the candidate got wrong, for each number that only the own model got wrong.

    With more, ``exact_test`` does not certify the candidate; −1 if no number is small enough. For planning, and for
    testing many clients with the same number of samples at once.
    """
    _check_options(margin, delta)
    if samples == 0:
        return np.array([-1])
    z = _order_quantile(delta)
    accepted, _ = _bisect(lambda u: _greatest_probability(_limits(samples, u, z), margin, delta) > delta, 1e-9)
    return _limits(samples, accepted, z)


def betting_test(differences: ArrayLike, margin: float, delta: float) -> Evidence:
    """Test by betting against "μ ≥ margin", from the differences (candidate − own, each within ±1).

    The stake x of the capital is bet on every sample at odds that are fair if μ = margin, so the final capital is Πᵢ(1
    − x + x·(1−dᵢ)/(1−margin)). Under the hypothesis its mean is at most 1 for every x, and so is the mean over a
    uniform x: the evidence of the universal mixture of keeping and betting the money. It does not depend on the order
    of the samples. By Markov's inequality 1/capital is a p-value.
    """
    d = np.asarray(differences, dtype=float)

    def log_capital(m: float) -> float:
        return posterior(np.column_stack([np.ones(len(d)), (1 - d) / (1 - m)])).log_evidence

    _, upper = _bisect(lambda m: log_capital(m) >= -np.log(delta), BOUND_STEP)
    return Evidence(min(1.0, float(np.exp(-log_capital(margin)))), upper)


def _check_options(margin: float, delta: float) -> None:
    if not 0 <= margin < 1:
        raise ComityError(f"margin must be at least 0 and below 1, got {margin}")
    if not 0 < delta < 1:
        raise ComityError(f"delta must be above 0 and below 1, got {delta}")


def _losses(given: ArrayLike, name: str) -> NDArray[np.bool_] | Array:
    losses = np.asarray(given)
    if losses.dtype != bool:
        losses = losses.astype(float)
    if losses.ndim != 1 or not np.all((losses >= 0) & (losses <= 1)):
        raise ComityError(f"losses of {name} must be a list of booleans, or of numbers from 0 to 1")
    return losses


def _bisect(holds: Callable[[float], bool], accuracy: float) -> tuple[float, float]:
    """Neighbours in [−1, 1] around the point where a monotone condition starts to hold; at 1 it holds by definition."""
    low, high = -1.0, 1.0
    while high - low > accuracy:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def _order_quantile(delta: float) -> float:
    """Width of the score intervals that order the counts.

    Any width gives a valid test. Slightly more than the normal quantile was best, or nearly so, for 50 to 250 samples
    and margins of 0 to 5 points.
    """
    return float(-ndtri(delta)) + 0.1


def _score_bound_below(
    worse: int | Counts, better: int | Counts, samples: int, margin: float, z: float
) -> NDArray[np.bool_]:
    """Whether the score interval of μ is below the margin: n(μ̂ − margin) ≤ −z·(its standard error if μ = margin)."""
    n, m = samples, margin
    neutral = n - worse - better
    # the likeliest P(better) = s if P(worse) = s + margin: the larger root of 2n s² − b s − better·m(1−m) = 0
    b = (worse + better) * (1 - m) - 2 * (better + neutral) * m
    s = (b + np.sqrt(np.maximum(b * b + 8 * n * better * m * (1 - m), 0))) / (4 * n)
    variance = n * np.maximum(2 * s + m - m * m, 0)
    excess = worse - better - n * m
    return np.asarray((excess < 0) & (excess <= -z * np.sqrt(variance)))


def _limits(samples: int, score_bound: float, z: float) -> Counts:
    """Counts with at most this score bound: for each number ``better``, ``worse`` up to a limit (−1: none).

    For a fixed ``better`` they are an interval from 0, because excess and standard error both grow with ``worse``.
    Limits are made to increase with ``better``, as ``_greatest_probability`` requires; a larger region is on the safe
    side.
    """
    better = np.arange(samples + 1)
    inside, outside = np.full(samples + 1, -1), samples - better + 1
    while np.any(outside - inside > 1):
        middle = (inside + outside) // 2  # equal to ``inside`` if nothing is left to halve
        below = _score_bound_below(middle, better, samples, score_bound, z) | (middle == inside)
        inside, outside = np.where(below, middle, inside), np.where(below, outside, middle)
    return np.minimum(np.maximum.accumulate(inside), samples - better)


def _greatest_probability(limits: Counts, margin: float, threshold: float | None = None) -> float:
    """Largest probability of counts within ``limits`` over all distributions with μ ≥ margin, rounded up.

    Turning "worse" samples into neutral ones, or neutral into "better", makes counts within limits likelier. So the
    maximum is at P(better) = s and P(worse) = s + margin, and for s between two points it is at most the probability
    with P(worse) from the lower point and P(better) from the upper one. Intervals are halved until this ceiling is
    within ``SLACK`` of an attained value. With a ``threshold`` the search stops as soon as it is clear on which side
    the maximum is; only that can then be read from the result.
    """
    least, most = max(0.0, -margin), (1 - margin) / 2
    edges = least + (most - least) * np.linspace(0, 1, 33) ** 2
    low, high = edges[:-1], edges[1:]
    reached, ceiling = _probability(limits, edges + margin, edges).max(), 0.0
    while len(low) and (threshold is None or reached <= threshold):
        ceilings = _probability(limits, low + margin, high)
        unsettled = ceilings > max((1 + SLACK) * reached, threshold or 0.0, 1e3 * NEGLIGIBLE)
        ceiling = max(ceiling, ceilings[~unsettled].max(initial=0.0))
        low, high = low[unsettled], high[unsettled]
        if len(low):
            middle = (low + high) / 2
            reached = max(reached, _probability(limits, middle + margin, middle).max())
            low, high = np.append(low, middle), np.append(middle, high)
    return float(max(reached, ceiling))


def _probability(limits: Counts, p_worse: Array, p_better: Array) -> Array:
    """Probability of counts within limits for each pair: Σ_b P(better = b)·P(worse ≤ limits[b] | better = b)."""
    n = len(limits) - 1
    spread = 9 * np.sqrt(n * p_better * (1 - p_better)) + 25  # beyond it: at most e⁻³⁷ by Bernstein's inequality
    first = int(max(0, (n * p_better - spread).min()))
    last = int(min(n, (n * p_better + spread).max()))
    better = np.arange(first, last + 1)
    limit, others = limits[better], n - better
    share = np.clip(p_worse / (1 - p_better), 0, 1)[:, None]
    below = betainc(np.maximum(others - limit, 1), np.maximum(limit, 0) + 1, 1 - share)  # the binomial distribution
    below = np.where(limit < 0, 0.0, np.where(limit >= others, 1.0, below))
    log_ways = gammaln(n + 1) - gammaln(better + 1) - gammaln(others + 1)
    chance = np.exp(log_ways + xlogy(better, p_better[:, None]) + xlog1py(others, -p_better[:, None]))
    return np.asarray((chance * below).sum(axis=1) + NEGLIGIBLE)
