"""NashMTL."""

import numpy as np

from comity.rules._length import Length
from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, min_norm, nash, norm, times


class NashMTL(Rule):
    """The bargain that clients strike who can refuse to move: the direction with the largest product of their gains.

    Paper: Navon et al., ICML 2022.

    Equation: d = Σ αᵢ Δᵢ with α > 0 and Δᵢ·d = 1/αᵢ for every i, which maximises Σ log Δᵢ·d at its length.

    Departures:
        - The equations are solved exactly, by Newton's method.
        - The step has the length of the mean; as printed (``length="own"``) its length is √N whatever the updates are.
        - Where 0 is in the convex hull of the updates there is no bargain, and d is 0.
    """

    certificate = "largest error of an equation αᵢ Δᵢ·d = 1"
    target = 1e-8

    length: Length = "mean"

    def solve(self, block: GramBlock) -> Solution:
        r = np.sqrt(block.G.diagonal())
        A = block.A / r  # at length 1, which changes αᵢ by a factor and d not at all
        if norm(times(A, min_norm(A).x)) <= 1e-4:
            return Solution(np.zeros(len(r)), 0.0)
        best = nash(A)
        return Solution(best.x / (block.unit * r), best.residual)
