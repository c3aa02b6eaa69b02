from dataclasses import KW_ONLY

from comity.rules._rule import By, GramBlock, Rule
from comity.rules.protect import protect
from comity.rules.solvers import Solution


class UPGrad(Rule):
    """The mean of all updates, each projected so that it conflicts with no other update.

    Paper: Quinton and Rey, 2024.

    Equation: d = (1/N) Σ πᵢ, where πᵢ is the projection of Δᵢ on the cone of all d with d·Δⱼ ≥ 0 for every j. So d is
    also in that cone.

    Options:
        by: weight of a client in the mean: equal for all (the paper), or its number of samples
    """

    certificate = "worst violation as a cosine"
    target = 1e-9

    _: KW_ONLY
    by: By = "uniform"

    def solve(self, block: GramBlock) -> Solution:
        weights, (added, worst) = block.weights(self.by), protect(block.G)
        return Solution((weights + (weights[:, None] * added).sum(0)) / block.present, worst)
