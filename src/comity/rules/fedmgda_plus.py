from dataclasses import KW_ONLY, field
from typing import Annotated

import numpy as np
import torch

from comity._options import NonNegative, Range, Share
from comity.rules._rule import By, Combination, GramBlock, Rule, Scope
from comity.rules._updates import ClientUpdates
from comity.rules.solvers import Solution, box_sum, norm, times


class FedMGDAPlus(Rule):
    """The shortest combination of normalised updates whose weights stay within eps of the clients' shares.

    Paper: Hu et al., IEEE TNSE 2022.

    Equation: d = lr Σ λᵢ Δᵢ/|Δᵢ| with λ on the simplex, |λᵢ − nᵢ/n| ≤ eps, and |Σ λᵢ Δᵢ/|Δᵢ||² smallest.

    In the paper lr decays: in step t it is lr · lr_decay^(t−1).

    Departures:
        - Weights stay near nᵢ/n; in the paper, near 1/N (``by="uniform"``). Without sizes the two are equal.

    Options:
        eps: maximum difference between a client's weight and its share (0 = mean of the normalised updates, 1 = MGDA on
            them)
        by: share of a client: its share of all samples, or equal for all (the paper)
        lr: length of a normalised update, which is the maximum length of the step
        lr_decay: factor on lr after each step
        norm_restore: use the length of the uniform mean as lr
    """

    certificate = "duality gap"
    target = 1e-9

    eps: Share = 0.1
    _: KW_ONLY
    by: By = "size"
    lr: NonNegative = 1.0
    lr_decay: Annotated[float, Range(above=0, most=1)] = 1.0
    norm_restore: bool = False
    scope: Scope = field(default="model", init=False)

    def solve(self, block: GramBlock) -> Solution:
        r = block.lengths
        weights = block.weights(self.by)
        shares = weights / weights.sum()
        lower, upper = np.maximum(0, shares - self.eps), np.minimum(1, shares + self.eps)
        if self.eps == 0 or len(r) == 1:
            best = Solution(shares, 0.0)
        else:
            best = box_sum(block.scaled(r), lower, upper, shares)
        mean = norm(times(block.A, np.full(len(r), 1 / block.present)))
        lr = self.lr * self.lr_decay ** int(self.state.get("steps", 0))
        return Solution((mean if self.norm_restore else lr / block.unit) * best.x / r, best.residual)

    def coefficients(self, updates: ClientUpdates) -> Combination:
        chosen = super().coefficients(updates)
        if self.lr_decay < 1:
            self.state["steps"] = torch.tensor(int(self.state.get("steps", 0)) + 1)
        return chosen
