"""The plain mean."""

from dataclasses import KW_ONLY, field
from typing import Literal

import torch
from torch import Tensor

from comity.rules._rule import Rule, Scope, Weighed
from comity.rules._updates import ClientUpdates


class Mean(Rule):
    """The average of all updates, by data size or uniform.

    Paper: FedAvg, McMahan et al., AISTATS 2017.

    Equation: d = Σ (nᵢ/n) Δᵢ; uniform: d = (1/N) Σ Δᵢ.

    Options:
        weighting: by how many samples a client has, or all alike
    """

    _: KW_ONLY
    weighting: Literal["size", "uniform"] = "size"
    scope: Scope = field(default="model", init=False)  # the mean of each layer is the mean of the model

    @property
    def needs_gram(self) -> bool:
        return self.length != "own"

    def weigh(self, G: Tensor, updates: ClientUpdates) -> Weighed:
        uniform = torch.full((len(updates),), 1 / max(len(updates), 1), dtype=torch.float64)
        weights = updates.shares if self.weighting == "size" else uniform
        return Weighed(weights[None], torch.zeros(1, dtype=torch.float64), {})
