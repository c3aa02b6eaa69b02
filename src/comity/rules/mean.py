"""The plain mean."""

from typing import Literal

import torch
from torch import Tensor

from comity.rules._rule import Length, Rule, Weights, one_of, within
from comity.rules._updates import Updates


class Mean(Rule):
    """The average, by data size or uniform, with the server's learning rate and momentum.

    FedAvg (McMahan et al., AISTATS 2017); with momentum FedAvgM (Hsu et al., 2019): v ← momentum·v + mean, update lr·v.

    Options:
        weighting: by how many samples a client has, or all alike
        lr: the server's learning rate
        momentum: the server's momentum
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    def __init__(
        self,
        *,
        weighting: Literal["size", "uniform"] = "size",
        lr: float = 1.0,
        momentum: float = 0.0,
        length: Length = "own",
    ) -> None:
        super().__init__(length=length)
        self.weighting = one_of("weighting", weighting, ("size", "uniform"))
        self.lr = within("lr", lr, 0)
        self.momentum = within("momentum", momentum, 0, 1, open_above=True)
        self.needs_gram = length == "mean"

    def weigh(self, G: Tensor, u: Updates) -> Weights:
        uniform = torch.full((len(u),), 1 / max(len(u), 1), dtype=torch.float64)
        weights = u.shares if self.weighting == "size" else uniform
        return Weights(weights[None], torch.zeros(1, dtype=torch.float64), {})

    def finish(self, update: Tensor) -> Tensor:
        if self.momentum:
            velocity = self.state.get("velocity")
            update = update if velocity is None else self.momentum * velocity + update
            self.state["velocity"] = update
        return update if self.lr == 1 else self.lr * update
