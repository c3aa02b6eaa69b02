import math
from dataclasses import field

import numpy as np

from comity.rules._rule import By, GramBlock, Scope
from comity.rules.confree import ConFREE, Rescale
from comity.rules.projection import Order, sequential
from comity.rules.solvers import Array, Solution, times


class ReleasedConFREE(ConFREE):
    """The rule of ConFREE's released code, which differs from the paper and produced the published numbers.

    Paper: Zheng et al., AAAI 2025, in the authors' code.

    Equation: as ConFREE with rescale 1/(1+c²), layer by layer, with two differences. The projection subtracts (Δᵢ·Δⱼ)
    Δⱼ, one j after the other in random order, without the division by |Δⱼ|²; it has almost no effect on updates much
    shorter than 1. w is the result of SLSQP with its default tolerance, started at uniform weights, where it often
    stays.

    Departures:
        - The random orders are seeded.
        - The residual is the true duality gap; it has no target.
    """

    target = math.inf

    scope: Scope = field(default="layer", init=False)
    order: Order = field(default="sequential", init=False)
    rescale: Rescale = field(default="1/(1+c²)", init=False)
    by: By = field(default="uniform", init=False)

    def solve(self, block: GramBlock) -> Solution:
        from scipy.optimize import minimize  # 0.2 s, which most runs do without

        n, G = len(block.G), block.G * block.unit**2
        a = sequential(block.G, self.shuffled(block), np.full(n, block.unit**-2)).sum(0) / block.present
        b, reach = times(G, a), self.c * np.sqrt(max(a @ times(G, a), 0.0)) + 1e-8

        def dual(w: Array) -> float:
            return float(w @ b + reach * np.sqrt(w @ times(G, w) + 1e-8))

        on_simplex = {"type": "eq", "fun": lambda w: 1 - w.sum()}
        w = minimize(dual, np.full(n, 1 / n), bounds=[(0, 1)] * n, constraints=on_simplex).x
        x = a + reach / (np.sqrt(max(w @ times(G, w), 0.0)) + 1e-8) * w
        v = times(block.G, x)
        return Solution(x / (1 + self.c**2), float(w @ v - v.min()) / max(1.0, abs(float(w @ v))))

    def __repr__(self) -> str:
        return f"ConFREE.released(c={self.c!r}, seed={self.seed!r})" if self.length == "own" else super().__repr__()
