from dataclasses import KW_ONLY

import numpy as np

from comity._options import ShareBelowOne
from comity.rules._rule import By, GramBlock, Rule
from comity.rules.confree import best_near
from comity.rules.solvers import Solution


class CAGrad(Rule):
    """The update that helps the worst-off client most, within c times its length of the mean.

    Paper: Liu et al., NeurIPS 2021.

    Equation: d maximises minⱼ d·Δⱼ over |d − g| ≤ c|g|, where g is the mean. It is ConFREE without the projection.

    Departures:
        - The update of one client alone is kept as it is; the formula would lengthen it.

    Options:
        c: how far from the mean to look for a better update, over its length
        by: in that mean, all clients count equally (the paper), or by how many samples they have
    """

    certificate = "relative duality gap"
    target = 1e-8

    c: ShareBelowOne = 0.5
    _: KW_ONLY
    by: By = "uniform"

    def solve(self, block: GramBlock) -> Solution:
        if block.present == 1:
            return Solution(np.ones(1), 0.0)
        return best_near(block, block.weights(self.by) / block.present, self.c)
