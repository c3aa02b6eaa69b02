"""Partitions that set the clients' sizes first: equal, but for clients that are named as big."""

from dataclasses import dataclass

import numpy as np

from comity._errors import ComityError
from comity.data._dataset import Ints
from comity.data.partitions.base import Partition, apportion


@dataclass(frozen=True, kw_only=True)
class Sized(Partition):
    """Clients of one size; those listed in ``big`` get ``factor`` times as many samples as the others.

    ``samples_per_client`` sets the size of an ordinary client (train, validation and test together); without it the
    whole data set is used.
    """

    samples_per_client: int | None = None
    big: int | tuple[int, ...] = ()
    factor: float = 10.0

    def _told(self) -> dict[str, object]:
        return {key: value for key, value in super()._told().items() if key != "factor" or self.big != ()}

    def weights(self, clients: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How large each client is, an ordinary one being 1."""
        big = [self.big] if isinstance(self.big, int) else list(self.big)
        if not self.factor > 0 or not np.isfinite(self.factor):
            raise ComityError(f"partition.factor: got {self.factor}; allowed: a number above 0")
        for client in big:
            if not 0 <= client < clients:
                raise ComityError(f"partition.big: got client {client}; allowed: 0 to {clients - 1}")
        weights = np.ones(clients)
        weights[big] = self.factor
        return weights

    def sizes(self, samples: int, clients: int) -> Ints:
        """The number of samples of every client."""
        weights = self.weights(clients)
        each = self.samples_per_client
        if each is None:
            return apportion(samples, weights)
        if each < 2:
            raise ComityError(f"partition.samples_per_client: got {each}; allowed: 2 or more")
        sizes = np.round(each * weights).astype(np.int64)
        if sizes.sum() > samples:
            raise ComityError(
                f"partition.samples_per_client: got {each}, which for {clients} clients needs {sizes.sum()} samples; "
                f"there are {samples}"
            )
        return sizes
