"""MGDA."""

import numpy as np

from comity._options import ShareAboveZero
from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, box_sum, min_norm


class MGDA(Rule):
    """The shortest update in the convex hull of all: it helps every client by the square of its own length, or is 0.

    Paper: Désidéri, Comptes Rendus Mathématique 2012; with a cap: Hu, Ho and Yu, 2026 (arXiv 2605.30452).

    Equation: d = Σ wᵢ Δᵢ with w on the simplex, no wᵢ above the cap, and |d|² smallest.

    Departures:
        - The problem is solved exactly, where other implementations take a few steps of Frank and Wolfe.

    Options:
        cap: the most that one client may weigh, so that the step never rests on one alone; where the cap is too low for
            so few clients, all weigh the same
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12

    cap: ShareAboveZero = 1.0

    def solve(self, block: GramBlock) -> Solution:
        uniform = np.full(len(block.G), 1 / len(block.G))
        if self.cap <= uniform[0]:
            return Solution(uniform, 0.0)
        free = min_norm(block.A)
        if free.x.max() <= self.cap:
            return free
        return box_sum(block.G, 0 * uniform, np.full_like(uniform, self.cap), uniform)
