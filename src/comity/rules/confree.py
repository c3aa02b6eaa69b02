from dataclasses import KW_ONLY
from typing import Annotated, Literal

import numpy as np

from comity._options import Range
from comity.rules._rule import GramBlock
from comity.rules.projection import Projection
from comity.rules.solvers import Array, Solution, best_worst, norm, times

Rescale = Literal["none", "1/(1+c²)", "1/(1+c)"]


class ConFREE(Projection):
    """The update near the projected mean that helps the worst-off client most.

    Paper: Zheng et al., AAAI 2025, Equations 9 to 13.

    Equation: d maximises minⱼ d·Δⱼ over |d − g| ≤ c|g|, where g is the result of Projection; so d = g + c|g| Δw/|Δw|
    with Δw = Σ wᵢ Δᵢ and w on the simplex minimising g·Δw + c|g||Δw|.

    Departures:
        - A single client's update stays unchanged; the formula would lengthen it.
        - If 0 is in the convex hull of the updates, w gives no direction. Then d is the vector closest to g that
          conflicts with no client, if it is within the radius.
        - The authors' code computes something else, which is available as ``ConFREE.released(c)``.

    Options:
        c: radius of the search around the projected mean, relative to its length; the paper begins with 0.5
        scope: solve for the whole model (the paper), or for each layer (the released code)
        rescale: factor on the result; the released code has 1/(1+c²)
    """

    certificate = "relative duality gap"
    target = 1e-8

    c: Annotated[float, Range(least=0, below=1)] = 0.5
    _: KW_ONLY
    rescale: Rescale = "none"

    @classmethod
    def released(cls, c: float = 0.5, seed: int = 0) -> "ConFREE":
        """The rule that the authors' released code computes."""
        from comity.rules.released import ReleasedConFREE

        return ReleasedConFREE(c, seed=seed)

    def solve(self, block: GramBlock) -> Solution:
        if block.present == 1:
            return Solution(np.ones(1), 0.0)
        best = best_near(block, self.guidance(block), self.c)
        shrink = {"none": 1.0, "1/(1+c²)": 1 / (1 + self.c**2), "1/(1+c)": 1 / (1 + self.c)}[self.rescale]
        return Solution(shrink * best.x, best.residual)


def best_near(block: GramBlock, a: Array, c: float) -> Solution:
    """Coefficients of the update that helps the worst-off client most within c|g| of g = Σ aᵢ Δᵢ."""
    reach = c * norm(times(block.A, a))
    if reach <= 1e-12:  # c or g is 0
        return Solution(a, 0.0)
    best = best_worst(block.A, a, reach)
    return Solution(a + best.x, best.residual)
