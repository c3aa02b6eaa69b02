"""MGDA."""

from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, min_norm


class MGDA(Rule):
    """The shortest update in the convex hull of all: it helps every client by the square of its own length, or is 0.

    Paper: Désidéri, Comptes Rendus Mathématique 2012.

    Equation: d = Σ wᵢ Δᵢ with w on the simplex and |d|² smallest.

    Departures:
        - The problem is solved exactly, where other implementations take a few steps of Frank and Wolfe.
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12

    def solve(self, block: GramBlock) -> Solution:
        return min_norm(block.A)
