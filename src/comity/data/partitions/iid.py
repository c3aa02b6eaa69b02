"""Partitions that set the clients' sizes: every client a random sample of the whole."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from comity._errors import ComityError
from comity._options import CountOrZero, Positive, Range
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Partition, Share, apportion


@dataclass(frozen=True, kw_only=True)
class Sized(Partition):
    """Clients of one size, but for those that are named as big.

    Options:
        samples_per_client: samples of an ordinary client, train, validation and test together; by default the whole
            data set is used
        big: the client, or the clients, that get more samples than the others
        factor: how many times as many samples they get
    """

    samples_per_client: Annotated[int, Range(least=2)] | None = None
    big: tuple[CountOrZero, ...] = ()
    factor: Positive = 10.0

    def _set_options(self) -> dict[str, object]:
        return {key: value for key, value in super()._set_options().items() if key != "factor" or self.big != ()}

    def weights(self, clients: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How large each client is, an ordinary one being 1."""
        if self.big and max(self.big) >= clients:
            raise ComityError(f"partition.big must be at most {clients - 1}, the last client, got {max(self.big)}")
        weights = np.ones(clients)
        weights[list(self.big)] = self.factor
        return weights

    def sizes(self, samples: int, clients: int) -> Ints:
        """The number of samples of every client."""
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
