"""MGDA."""

from comity.rules._rule import Block, Length, Rule, Scope
from comity.rules._solvers import Solution, min_norm


class MGDA(Rule):
    """The shortest update in the convex hull of all: it helps every client by the square of its own length, or is 0.

    Désidéri, 2012: min |Σwᵢ Δᵢ|² on the simplex, solved exactly and not by a few steps of Frank and Wolfe.

    Options:
        scope: the whole model at once, or each layer by itself
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12

    def __init__(self, *, scope: Scope = "model", length: Length = "own") -> None:
        super().__init__(scope=scope, length=length)

    def solve(self, block: Block) -> Solution:
        return min_norm(block.A)
