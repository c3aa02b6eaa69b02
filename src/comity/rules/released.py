"""ConFREE as its authors' code has it."""

import numpy as np
from scipy.optimize import minimize

from comity.rules._rule import Block
from comity.rules._solvers import Array, Solution, norm, times
from comity.rules.confree import ConFREE
from comity.rules.projection import sequential


class ReleasedConFREE(ConFREE):
    """What the released code of ConFREE computes, which is not what its paper says; for comparison with published numbers.

    Layer by layer; projection one after the other in random orders and without the division by |Δⱼ|², which hardly
    changes updates much shorter than 1; w by SLSQP with its default tolerance from the uniform start, which it often does
    not leave; the result over 1 + c². The orders are seeded here. The residual is the true duality gap, and no target is
    set for it.
    """

    target = np.inf

    def __init__(self, c: float = 0.5, *, seed: int = 0) -> None:
        super().__init__(c, scope="layer", order="sequential", rescale="1/(1+c²)", seed=seed)

    def solve(self, block: Block) -> Solution:
        n = len(block.G)
        undivided = np.full(n, 1 / block.unit**2)
        a = sequential(block.G, self.shuffled(block), undivided).sum(0) / block.present
        G = block.G * block.unit**2
        b, reach = times(G, a), self.c * np.sqrt(a @ times(G, a) + 1e-8)

        def dual(w: Array) -> float:
            return float(w @ b + reach * np.sqrt(w @ times(G, w) + 1e-8))

        w = minimize(
            dual, np.full(n, 1 / n), bounds=[(0, 1)] * n, constraints={"type": "eq", "fun": lambda w: 1 - w.sum()}
        ).x
        x = a + reach / (np.sqrt(max(w @ times(G, w), 0.0)) + 1e-8) * w
        v = times(G, x)
        return Solution(x / (1 + self.c**2), float(w @ v - v.min()) / max(1.0, abs(float(w @ v))))

    def __repr__(self) -> str:
        return f"ConFREE.released(c={self.c!r}, seed={self.seed!r})"
