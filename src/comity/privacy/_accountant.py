"""Privacy accounting of repeated Gaussian noise."""

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr


def epsilon(noise: float, rounds: int, delta: float) -> float:
    """The smallest ε for which ``rounds`` rounds with this noise multiplier are (ε, δ)-differentially private."""
    if not rounds:
        return 0.0
    return epsilon_of(rounds / noise**2, delta) if noise > 0 else math.inf


def epsilon_of(spent: float, delta: float) -> float:
    """The smallest ε for rounds of any noise: ``spent`` is the sum of 1/z² over their noise multipliers z.

    Exact, without amplification by sampling: Gaussian mechanisms compose to one with noise multiplier 1/√spent, whose
    δ(ε) is known in closed form (Balle and Wang, ICML 2018, Theorem 8).
    """
    if not spent:
        return 0.0
    distance = math.sqrt(spent)

    def excess(eps: float) -> float:
        """δ(ε) minus ``delta``."""
        larger = log_ndtr(distance / 2 - eps / distance)
        smaller = eps + log_ndtr(-distance / 2 - eps / distance)
        return math.exp(larger) * -math.expm1(smaller - larger) - delta

    if excess(0.0) <= 0:
        return 0.0
    most = 1.0
    while excess(most) > 0:
        most *= 2
    return float(brentq(excess, 0.0, most, xtol=1e-12, rtol=1e-12))
