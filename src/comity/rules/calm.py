from dataclasses import KW_ONLY
from typing import Literal

import numpy as np

from comity._options import NonNegative
from comity.rules._rule import By, GramBlock, Rule, Scope
from comity.rules.projection import simultaneous
from comity.rules.solvers import Solution, box, times


class CALM(Rule):
    """The update closest to the projected mean that helps every client by a margin; falling short is penalised.

    Paper: FedCALM, Zheng et al., CVPR 2025.

    Equation: in each layer d minimises ½|d − g|² + C Σ ξᵢ over d·Δᵢ ≥ eps|Δᵢ| − ξᵢ and ξᵢ ≥ 0, where g is the layer's
    result of Projection; so d = g + Σ λᵢ Δᵢ with λ in [0, C] minimising ½λᵀGλ − βᵀλ, βᵢ = eps|Δᵢ| − g·Δᵢ.
    The outcome's note ``lambda`` is λ, which the paper's Figures 6 and 7 draw; coefficients include g.

    Departures:
        - A single client's update stays unchanged.
        - With ``scale="layer"``, eps is relative to the layer's mean |Δᵢ|. As printed (``scale="none"``), eps is an
          absolute length, so layers with short updates get long steps.

    Options:
        eps: margin by which the step should help every client
        C: penalty for falling short of the margin; the paper's best values are 0.1, 1, 10 and 100
        by: weight of a client in the projected mean: equal for all (the paper), or its number of samples
        scope: solve for each layer (the paper), or for the whole model
        scale: unit of eps: as printed in the paper (none), or the mean length of the layer's updates (layer)
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
        beta = margin - times(block.products, a) / r  # for updates scaled to length 1, as the solver uses them
        lam, residual = np.zeros_like(a), 0.0
        if self.C > 0 and beta.max() > 0:
            best = box(block.scaled(r), -beta / abs(beta).max(), self.C * r / abs(beta).max(), by_few=block.sketched)
            lam, residual = best.x * abs(beta).max() / r, best.residual
        return Solution(a + lam, residual, {"lambda": lam})
