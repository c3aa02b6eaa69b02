import numpy as np

from comity.rules._rule import GramBlock
from comity.rules.confree import ConFREE
from comity.rules.solvers import Solution, norm, times


class ConFREELength(ConFREE):
    """Control for ConFREE: the direction of the uniform mean with ConFREE's step length.

    Paper: comity's own, to separate the direction of ConFREE (Zheng et al., AAAI 2025) from its length.

    Equation: d = |d₀| m / |m| for ConFREE's update d₀ and m = (1/N) Σ Δᵢ.

    Departures:
        - If the mean is 0, the step is 0.
    """

    def solve(self, block: GramBlock) -> Solution:
        own = super().solve(block)
        uniform = np.full(len(own.x), 1 / len(own.x))
        mean = norm(times(block.A, uniform))
        return Solution(uniform * (norm(times(block.A, own.x)) / mean if mean else 0.0), own.residual)
