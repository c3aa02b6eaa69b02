"""Every client a random sample of the whole."""

from dataclasses import dataclass

import numpy as np

from comity._options import CountOrZero
from comity.data._dataset import Dataset
from comity.data.partitions.base import Share
from comity.data.partitions.sized import Sized


@dataclass(frozen=True, kw_only=True)
class IID(Sized):
    """Every client draws from the same distribution: the samples are shuffled and cut."""

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        sizes = self.sizes(len(dataset), clients)
        return [Share(part) for part in np.split(random.permutation(len(dataset)), np.cumsum(sizes))[:-1]]


@dataclass(frozen=True, kw_only=True)
class Quantity(IID):
    """Quantity imbalance: IID, but one client (or several) holds ten times (factor) as many samples.

    The same two options, ``big`` and ``factor``, make big clients in ``Rotated`` and ``LabelShift``.
    """

    big: tuple[CountOrZero, ...] = (0,)
