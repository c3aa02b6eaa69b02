from dataclasses import KW_ONLY, field

import torch

from comity._options import NonNegative
from comity.rules._rule import Rule, Scope, Weighed
from comity.rules._updates import ClientUpdates


class TaskArithmetic(Rule):
    """The scaled sum of all updates (task vectors).

    Paper: Ilharco et al., ICLR 2023.

    Equation: d = scale · Σ Δᵢ. With scale 1/N it is the uniform mean.

    Options:
        scale: factor on the sum; the paper tunes it on held-out data, often around 0.3
    """

    scale: NonNegative = 0.3
    _: KW_ONLY
    scope: Scope = field(default="model", init=False)

    def weigh(self, updates: ClientUpdates) -> Weighed:
        weights = torch.full((1, len(updates)), self.scale, dtype=torch.float64)
        return Weighed(weights, torch.zeros(1, dtype=torch.float64), {})
