"""MGDA."""

from dataclasses import KW_ONLY

import numpy as np

from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, min_norm


class MGDA(Rule):
    """The shortest update in the convex hull of all: it helps every client by the square of its own length, or is 0.

    Paper: Désidéri, Comptes Rendus Mathématique 2012.

    Equation: d = Σ wᵢ Δᵢ with w on the simplex and |d|² smallest.

    Departures:
        - The problem is solved exactly, where other implementations take a few steps of Frank and Wolfe.
        - The paper has gradients at one point, federated learning has updates, and those of clients with few samples
          or none left to learn are short. The hull's nearest point to 0 lies at them, so as it stands the rule follows
          who has least to say in ever shorter steps: on digits with Dirichlet 0.1 it has 40 % after 30 rounds, Mean
          84 %. ``length="mean"`` alone makes the few large (39 %); ``normalise=True, length="mean"`` has 93 %.

    Options:
        normalise: bring all updates to one length, the mean of theirs, before the search
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12

    _: KW_ONLY
    normalise: bool = False

    def solve(self, block: GramBlock) -> Solution:
        if not self.normalise:
            return min_norm(block.A)
        r = np.sqrt(block.G.diagonal())
        best = min_norm(block.A / r)
        return Solution(best.x * r.mean() / r, best.residual)
