"""Partitions into random samples: equal sizes, big clients, or a rotation per client."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from comity._errors import ComityError
from comity._options import Count, CountOrZero, Positive, Range
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Partition, Share, apportion


@dataclass(frozen=True, kw_only=True)
class Sized(Partition):
    """Clients of equal size, except those listed as big.

    Options:
        samples_per_client: samples of an ordinary client (train, validation and test together); by default the whole
            data set is used
        big: index of the client, or clients, that get more samples than the others
        factor: size of a big client as a multiple of an ordinary one
    """

    samples_per_client: Annotated[int, Range(least=2)] | None = None
    big: tuple[CountOrZero, ...] = ()
    factor: Positive = 10.0

    def _set_options(self) -> dict[str, object]:
        return {key: value for key, value in super()._set_options().items() if key != "factor" or self.big != ()}

    def weights(self, clients: int) -> NDArray[np.float64]:
        """(clients,) relative size of each client; an ordinary one is 1."""
        if self.big and max(self.big) >= clients:
            raise ComityError(f"partition.big must be at most {clients - 1}, the last client, got {max(self.big)}")
        weights = np.ones(clients)
        weights[list(self.big)] = self.factor
        return weights

    def sizes(self, samples: int, clients: int) -> Ints:
        """(clients,) number of samples of each client."""
        weights = self.weights(clients)
        each = self.samples_per_client
        if each is None:
            return apportion(samples, weights)
        sizes = np.round(each * weights).astype(np.int64)
        if sizes.sum() > samples:
            raise ComityError(
                f"partition.samples_per_client must be smaller, got {each}: {clients} clients need {sizes.sum()} "
                f"samples, there are {samples}"
            )
        return sizes


@dataclass(frozen=True, kw_only=True)
class IID(Sized):
    """Every client draws from the same distribution: samples are shuffled and cut into equal parts."""

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        sizes = self.sizes(len(dataset), clients)
        return [Share(part) for part in np.split(random.permutation(len(dataset)), np.cumsum(sizes))[:-1]]


@dataclass(frozen=True, kw_only=True)
class Quantity(IID):
    """Quantity imbalance: IID, but one or more clients hold ten times (factor) as many samples.

    The options ``big`` and ``factor`` also exist in ``Rotated`` and ``LabelShift``.
    """

    big: tuple[CountOrZero, ...] = (0,)


@dataclass(frozen=True)
class Rotation:
    """Rotate images anticlockwise by ``degrees``, bilinear, with black corners."""

    degrees: float
    black: float = -1.0

    def __call__(self, x: Tensor) -> Tensor:
        if self.degrees % 360 == 0:
            return x
        height, width = x.shape[-2:]
        angle = math.radians(self.degrees)
        cos, sin = math.cos(angle), math.sin(angle)
        # the grid runs from -1 to 1 on both axes, so the aspect ratio keeps pixels square
        inverse = torch.tensor([[cos, -sin * height / width, 0.0], [sin * width / height, cos, 0.0]], dtype=x.dtype)
        grid = F.affine_grid(inverse[None], [1, 1, height, width], align_corners=False)
        turned = F.grid_sample(x - self.black, grid.expand(len(x), -1, -1, -1), mode="bilinear", align_corners=False)
        return turned + self.black


@dataclass(frozen=True, kw_only=True)
class Rotated(IID):
    """Feature shift: equal IID shares, with each client's images rotated by its own angle.

    Paper: Wu et al., KDD 2023

    FEDORA has 36 clients and rotates client k by 10·k degrees; here client k of N is rotated by 360·k/N degrees.

    Options:
        groups: number of different angles, evenly spaced: client k is in group k mod groups; by default one per client
    """

    groups: Count | None = None

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        groups = clients if self.groups is None else self.groups
        if groups > clients:
            raise ComityError(f"partition.groups must be at most {clients}, the number of clients, got {groups}")
        shares = super().share(dataset, clients, random)
        black = -1.0 if dataset.centred else 0.0
        return [Share(share.index, Rotation(360.0 * (k % groups) / groups, black)) for k, share in enumerate(shares)]
