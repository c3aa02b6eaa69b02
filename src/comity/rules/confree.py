"""ConFREE."""

from typing import Literal, get_args

import numpy as np

from comity.rules._rule import Block, Length, Scope, one_of, within
from comity.rules._solvers import Solution, best_worst, norm, times
from comity.rules.projection import Order, Projection

Rescale = Literal["none", "1/(1+c²)", "1/(1+c)"]


class ConFREE(Projection):
    """The update that helps the worst-off client most, within c times its length of the projected mean g.

    Zheng et al., AAAI 2025: max minⱼ d·Δⱼ over |d − g| ≤ c|g| (Equation 10), so d = g + c|g| Δw/|Δw| with w on the
    simplex minimising g·Δw + c|g||Δw| (Equation 13 prints d for this g). Departures: the update of one client alone is
    kept as it is, where the formula stretches it; and where 0 is in the hull of the updates, so that w has no
    direction, d is the non-conflicting update nearest to g, if in reach. `released` is what the authors' code computes.

    Options:
        c: how far from the projected mean to look for a better update, 0 to 1; the paper starts at 0.5
        scope: the whole model at once (the paper), or each layer by itself (the released code)
        order: project off all others at once, or one after the other
        rescale: factor on the result; the released code has 1/(1+c²)
        seed: of the random orders
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    certificate = "relative duality gap"
    target = 1e-8

    def __init__(
        self,
        c: float = 0.5,
        *,
        scope: Scope = "model",
        order: Order = "simultaneous",
        rescale: Rescale = "none",
        seed: int = 0,
        length: Length = "own",
    ) -> None:
        super().__init__(scope=scope, order=order, seed=seed, length=length)
        self.c = within("c", c, 0, 1, open_above=True)
        self.rescale = one_of("rescale", rescale, get_args(Rescale))

    @classmethod
    def released(cls, c: float = 0.5, seed: int = 0) -> "ConFREE":
        """What the authors' released code computes."""
        from comity.rules.released import ReleasedConFREE

        return ReleasedConFREE(c, seed=seed)

    def solve(self, block: Block) -> Solution:
        if block.present == 1:
            return Solution(np.ones(1), 0.0)
        a = self.guidance(block)
        shrink = {"none": 1.0, "1/(1+c²)": 1 / (1 + self.c**2), "1/(1+c)": 1 / (1 + self.c)}[self.rescale]
        reach = self.c * norm(times(block.A, a))
        if reach <= 1e-12:  # c is 0, or g is
            return Solution(shrink * a, 0.0)
        best = best_worst(block.A, a, reach)
        return Solution(shrink * (a + best.x), best.residual)
