"""CALM, the aggregation of FedCALM."""

from typing import Literal

import numpy as np

from comity.rules._rule import Block, Length, Rule, Scope, one_of, within
from comity.rules._solvers import Solution, box, times
from comity.rules.projection import simultaneous


class CALM(Rule):
    """The update nearest to the projected mean g that helps every client by a margin, with slack at a price.

    FedCALM (Zheng et al., CVPR 2025), layer by layer: min ½|d − g|² + C Σξᵢ over d·Δᵢ ≥ eps|Δᵢ| − ξᵢ and ξᵢ ≥ 0, so
    d = g + Σλᵢ Δᵢ with λ in [0, C] minimising ½λᵀGλ − βᵀλ, βᵢ = eps|Δᵢ| − g·Δᵢ. As printed (``scale="none"``) the
    margin has the units of a length: the smaller a layer's updates, the more they are stretched. ``scale="layer"``
    takes eps relative to the layer's mean |Δᵢ|. The update of one client alone is kept as it is.

    Options:
        eps: how much every client must gain
        C: price of a client falling short; the paper's best are 0.1, 1, 10 and 100
        scope: each layer by itself (the paper), or the whole model at once
        scale: eps as printed, or relative to the layer's updates
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    certificate = "relative KKT residual"
    target = 1e-9

    def __init__(
        self,
        eps: float = 0.1,
        C: float = 10.0,
        *,
        scope: Scope = "layer",
        scale: Literal["none", "layer"] = "none",
        length: Length = "own",
    ) -> None:
        super().__init__(scope=scope, length=length)
        self.eps = within("eps", eps, 0)
        self.C = within("C", C, 0)
        self.scale = one_of("scale", scale, ("none", "layer"))

    def solve(self, block: Block) -> Solution:
        if block.present == 1:
            return Solution(np.ones(1), 0.0)
        a = simultaneous(block.G) / block.present
        r = np.sqrt(block.G.diagonal())
        margin = self.eps * (r.mean() if self.scale == "layer" else 1 / block.unit)
        beta = margin - times(block.G, a) / r  # of the updates at length 1, which is how the solver sees them
        if self.C == 0 or beta.max() <= 0:
            return Solution(a, 0.0)
        best = box(block.G / r / r[:, None], -beta / abs(beta).max(), self.C * r / abs(beta).max())
        return Solution(a + best.x * abs(beta).max() / r, best.residual)
