from dataclasses import KW_ONLY
from typing import Literal

import numpy as np

from comity._options import NonNegative
from comity.rules._rule import By, GramBlock, Rule, Scope
from comity.rules.projection import simultaneous
from comity.rules.solvers import Solution, box, times


class CALM(Rule):
    """The update nearest to the projected mean that helps every client by a margin, which some may miss at a price.

    Paper: FedCALM, Zheng et al., CVPR 2025.

    Equation: in each layer d minimises ½|d − g|² + C Σ ξᵢ over d·Δᵢ ≥ eps|Δᵢ| − ξᵢ and ξᵢ ≥ 0, where g is the layer's
    result of Projection; so d = g + Σ λᵢ Δᵢ with λ in [0, C] minimising ½λᵀGλ − βᵀλ, βᵢ = eps|Δᵢ| − g·Δᵢ.
    The outcome's note ``lambda`` is λ, which the paper's Figures 6 and 7 draw; coefficients have the part of g too.

    Departures:
        - The update of one client alone is kept as it is.
        - ``scale="layer"`` takes eps relative to the layer's mean |Δᵢ|. As printed (``scale="none"``) the margin has
          the units of a length, so the shorter the updates of a layer, the more they are stretched.

    Options:
        eps: how much every client must gain
        C: price of a client falling short; the paper's best are 0.1, 1, 10 and 100
        by: in the projected mean, all clients count equally (the paper), or by how many samples they have
        scope: each layer by itself (the paper), or the whole model at once
        scale: eps as printed, or relative to the layer's updates
    """

    certificate = "relative KKT residual"
    target = 1e-9

    eps: NonNegative = 0.1
    C: NonNegative = 10.0
    _: KW_ONLY
    by: By = "uniform"
    scope: Scope = "layer"
    scale: Literal["none", "layer"] = "none"

    def solve(self, block: GramBlock) -> Solution:
        if block.present == 1:
            return Solution(np.ones(1), 0.0, {"lambda": np.zeros(1)})
        a = simultaneous(block, block.weights(self.by)) / block.present
        r = block.lengths
        margin = self.eps * (r.mean() if self.scale == "layer" else 1 / block.unit)
        beta = margin - times(block.products, a) / r  # of the updates at length 1, which is how the solver sees them
        lam, residual = np.zeros_like(a), 0.0
        if self.C > 0 and beta.max() > 0:
            best = box(block.scaled(r), -beta / abs(beta).max(), self.C * r / abs(beta).max(), by_few=block.sketched)
            lam, residual = best.x * abs(beta).max() / r, best.residual
        return Solution(a + lam, residual, {"lambda": lam})
