from dataclasses import KW_ONLY, field

import torch

from comity.rules._rule import By, Rule, Scope, Weighed
from comity.rules._updates import ClientUpdates


class Mean(Rule):
    """The average of all updates, by data size or uniform.

    Paper: FedAvg, McMahan et al., AISTATS 2017.

    Equation: d = Σ (nᵢ/n) Δᵢ; uniform: d = (1/N) Σ Δᵢ.

    Options:
        by: weight of a client: its number of samples, or equal for all
    """

    _: KW_ONLY
    by: By = "size"
    scope: Scope = field(default="model", init=False)  # the mean of each layer is the mean of the model

    def weigh(self, updates: ClientUpdates) -> Weighed:
        uniform = torch.full((len(updates),), 1 / max(len(updates), 1), dtype=torch.float64)
        weights = updates.shares if self.by == "size" else uniform
        return Weighed(weights[None], torch.zeros(1, dtype=torch.float64), {})
