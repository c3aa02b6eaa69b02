"""Alternatives to the guard's mixture and certificate, to compare them with."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity.guard import Evidence, mixture, posterior

Array = NDArray[np.float64]
UNIFORM = mixture.UNIFORM


def progressive_weights(
    likelihoods: ArrayLike, generator: np.random.Generator, concentration: float = UNIFORM
) -> Array:
    """The mean of the posterior means after 0, 1, …, n samples in a random order (the progressive mixture).

    Its expected log-loss is at most that of the best mixture + regret_bound(n+1, K, concentration)/(n+1). It is here to
    be compared with; ``posterior`` has the better bound and needs no random order.
    """
    rows = np.asarray(likelihoods, dtype=float)
    nodes, log_mass = mixture._simplex_rule(rows.shape[1], posterior(rows, concentration).order, concentration)
    total = np.exp(log_mass) @ nodes
    for row in generator.permutation(rows):
        log_mass = log_mass + np.log(nodes @ row)
        mass = np.exp(log_mass - log_mass.max())
        total += mass @ nodes / mass.sum()
    return np.asarray(total / total.sum())


def bernstein_test(differences: ArrayLike, margin: float, delta: float) -> Evidence:
    """From the differences, by the empirical Bernstein bound of Maurer & Pontil (2009):

    μ ≤ mean + √(2V·L/n) + 14L/(3(n−1)), where V is their variance and L = ln(2/delta).
    """
    d = np.asarray(differences, dtype=float)
    if len(d) < 2:
        return Evidence(1.0, 1.0)
    root, linear = np.sqrt(2 * d.var(ddof=1) / len(d)), 14 / (3 * (len(d) - 1))
    L = np.log(2 / delta)
    room = max(margin - d.mean(), 0.0)
    root_of_L = (np.sqrt(root**2 + 4 * linear * room) - root) / (2 * linear)  # at which the bound meets the margin
    return Evidence(
        min(1.0, float(2 * np.exp(-(root_of_L**2)))), min(1.0, float(d.mean() + root * np.sqrt(L) + linear * L))
    )
