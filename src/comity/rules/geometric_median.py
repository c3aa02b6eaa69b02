from dataclasses import KW_ONLY

import numpy as np

from comity.rules._rule import By, GramBlock, Rule
from comity.rules.solvers import Solution, geometric_median


class GeometricMedian(Rule):
    """The point with the smallest sum of distances to all updates; a malicious minority can move it only a little.

    Paper: RFA, Pillutla, Kakade and Harchaoui, IEEE TSP 2022.

    Equation: d minimises Σ pᵢ |d − Δᵢ|, where p are the clients' shares.

    Departures:
        - The minimum is exact; the paper takes a few Weiszfeld steps on a smoothed problem.

    Options:
        by: weight of a client: its number of samples (the paper), or equal for all; malicious clients may report a
            wrong number
    """

    certificate = "duality gap"
    target = 1e-9

    _: KW_ONLY
    by: By = "size"

    def solve(self, block: GramBlock) -> Solution:
        weights = block.weights(self.by)
        still = block.present - len(weights)  # clients whose update is 0
        missing = max(block.present - weights.sum(), 0.0)  # their weight
        shares = np.append(weights, np.full(still, missing / max(still, 1))) / block.present
        best = geometric_median(np.hstack((block.A, np.zeros((len(block.A), still)))), shares)
        return Solution(best.x[: len(weights)], best.residual)
