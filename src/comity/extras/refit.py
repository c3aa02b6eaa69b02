"""Final rounds in which clients also train on their validation samples."""

from dataclasses import replace
from typing import Self

import torch

from comity.config import Config
from comity.data import ClientData, Split
from comity.engine import Extension


class Refit(Extension):
    """From round ``first`` on, clients train on all of their samples."""

    first: int
    newcomers_too: bool = True

    @classmethod
    def of(cls, config: Config) -> Self | None:
        if config.is_local:
            return cls(first=1) if config.local_on == "all" else None
        return cls(first=config.rounds + 1, newcomers_too=config.guard is None) if config.refit else None

    def client_data(self, data: ClientData, round: int) -> ClientData:
        if round < self.first:
            return data
        if not len(data.val):
            return replace(data, val_unseen=False)
        x, y = torch.cat([data.train.x, data.val.x]), torch.cat([data.train.y, data.val.y])
        return replace(data, train=Split(x, y), val_unseen=False)

    def for_newcomers(self) -> Extension | None:
        """Under a guard, newcomers choose between received models and their own; nothing is trained afterwards."""
        return self if self.newcomers_too else None
