"""IMTL-G."""

import numpy as np

from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, least_squares


class IMTLG(Rule):
    """The combination, with weights that sum to 1, that goes equally far along every client's direction.

    Paper: Liu et al., ICLR 2021.

    Equation: d = Σ αᵢ Δᵢ with Σ αᵢ = 1 and d·Δᵢ/|Δᵢ| the same for every i. Weights may be negative.

    Departures:
        - Singular values of the directions below a thousandth of the largest count as 0: in float32 they are rounding.
        - Where the equations have no solution with Σ αᵢ = 1, d is 0.
    """

    certificate = "residual of the normal equations"
    target = 1e-9

    def solve(self, block: GramBlock) -> Solution:
        r = np.sqrt(block.G.diagonal())
        best = least_squares(block.G / r / r[:, None], np.ones(len(r)))
        alpha = best.x / r
        total = alpha.sum()
        return Solution(alpha / total if abs(total) > 1e-9 * abs(alpha).sum() else np.zeros(len(r)), best.residual)
