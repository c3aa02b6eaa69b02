"""ConFREE as its authors' code has it."""

import numpy as np
from scipy.optimize import minimize

from comity.rules._rule import Block
from comity.rules._solvers import Array, Solution, times
from comity.rules.confree import ConFREE
from comity.rules.projection import sequential


class ReleasedConFREE(ConFREE):
    """What the released code of ConFREE computes; it is not what the paper says, but it made the published numbers.

    Layer by layer; projection one after the other, in random orders and without the division by |Δⱼ|², so that it does
    next to nothing to updates much shorter than 1; w by SLSQP at its default tolerance from the uniform start, which it
    often never leaves; all over 1 + c². Orders are seeded here. The residual is the true duality gap, under no target.

    Options:
        c: as in ConFREE
        seed: of the random orders
    """

    target = np.inf

    def __init__(self, c: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(c, scope="layer", order="sequential", rescale="1/(1+c²)", seed=seed)

    def solve(self, block: Block) -> Solution:
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
        return f"ConFREE.released(c={self.c!r}, seed={self.seed!r})"
