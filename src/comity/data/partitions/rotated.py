"""Feature shift: every client sees the world at its own angle."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from comity._errors import ComityError
from comity._options import Count
from comity.data._dataset import Dataset
from comity.data.partitions.base import Share
from comity.data.partitions.iid import IID


@dataclass(frozen=True)
class Rotation:
    """Turn images anticlockwise by ``degrees``, bilinear, with black corners."""

    degrees: float
    black: float = -1.0

    def __call__(self, x: Tensor) -> Tensor:
        if self.degrees % 360 == 0:
            return x
        height, width = x.shape[-2:]
        angle = math.radians(self.degrees)
        cos, sin = math.cos(angle), math.sin(angle)
        # the grid runs from -1 to 1 on both sides, so the aspect ratio keeps pixels square
        inverse = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]], dtype=x.dtype)
        grid = F.affine_grid(inverse[None], [1, 1, height, width], align_corners=False)
        turned = F.grid_sample(x - self.black, grid.expand(len(x), -1, -1, -1), mode="bilinear", align_corners=False)
        return turned + self.black


@dataclass(frozen=True, kw_only=True)
class Rotated(IID):
    """Feature shift: equal IID shares, each client's images turned by its own angle.

    Paper: Wu et al., KDD 2023

    There (FEDORA) 36 clients, client k turned by 10·k degrees; here client k of N by 360·k/N degrees.

    Options:
        groups: number of different angles, spread evenly: client k is in group k mod groups; by default each its own
    """

    groups: Count | None = None

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        groups = clients if self.groups is None else self.groups
        if groups > clients:
            raise ComityError(f"partition.groups must be at most {clients}, the number of clients, got {groups}")
        shares = super().share(dataset, clients, random)
        black = -1.0 if dataset.centred else 0.0
        return [Share(share.index, Rotation(360.0 * (k % groups) / groups, black)) for k, share in enumerate(shares)]
