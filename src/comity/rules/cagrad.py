from dataclasses import KW_ONLY

import numpy as np

from comity._options import ShareBelowOne
from comity.rules._rule import By, GramBlock, Rule
from comity.rules.confree import best_near
from comity.rules.solvers import Solution


class CAGrad(Rule):
    """The update near the mean that helps the worst-off client most.

    Paper: Liu et al., NeurIPS 2021.

    Equation: d maximises minⱼ d·Δⱼ over |d − g| ≤ c|g|, where g is the mean. It is ConFREE without the projection.

    Departures:
        - A single client's update stays unchanged; the formula would lengthen it.

    Options:
        c: radius of the search around the mean, relative to the mean's length
        by: weight of a client in that mean: equal for all (the paper), or its number of samples
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
