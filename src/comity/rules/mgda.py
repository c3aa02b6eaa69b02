from dataclasses import KW_ONLY

import numpy as np

from comity._options import ShareAboveZero
from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, box_sum, min_norm


class MGDA(Rule):
    """The shortest update in the convex hull of all updates: no client's loss increases to first order, or it is 0.

    Paper: Désidéri, Comptes Rendus Mathématique 2012; with a cap: Hu, Ho and Yu, 2026 (arXiv 2605.30452).

    Equation: d = Σ wᵢ Δᵢ with w on the simplex, no wᵢ above the cap, and |d|² smallest.

    Departures:
        - The problem is solved exactly; other implementations take a few Frank-Wolfe steps.
        - The paper has gradients at one point; federated learning has updates, and clients with few samples or little
          left to learn send short ones. The point of the hull closest to 0 is near them, so the plain rule follows
          these clients in ever shorter steps: on digits with Dirichlet 0.1 it reaches 40 % after 30 rounds, Mean 84 %.
          ``length="mean"`` only lengthens these steps (39 %); ``normalise=True, length="mean"`` reaches 93 %.

    Options:
        normalise: scale all updates to their mean length before the search
        cap: largest weight of one client, so that a step never depends on a single one; with too few clients for the
            cap, all have the same weight
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12

    cap: ShareAboveZero = 1.0
    _: KW_ONLY
    normalise: bool = False

    def solve(self, block: GramBlock) -> Solution:
        r = block.lengths if self.normalise else np.ones(len(block))
        uniform = np.full(len(r), 1 / len(r))
        if self.cap <= uniform[0]:
            best = Solution(uniform, 0.0)
        else:
            best = min_norm(block.A / r)
            if best.x.max() > self.cap:
                best = box_sum(block.scaled(r), 0 * uniform, np.full_like(uniform, self.cap), uniform)
        return Solution(best.x * r.mean() / r, best.residual)
