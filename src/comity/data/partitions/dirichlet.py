"""Label skew drawn from a Dirichlet distribution."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity._options import Positive, Range
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Partition, Share, apportion, deal


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label skew: each class is divided among the clients in proportions drawn from Dir(alpha, …, alpha).

    Paper: Yurochkin et al., ICML 2019; Hsu et al., 2019

    It is drawn once: where others draw again until every client has ``min_partition_size`` samples, here those below
    it take what they lack from the largest client, out of its largest class. That always ends, and changes nothing
    when the draw is large enough already.

    Options:
        alpha: small for few classes a client and unequal sizes, large for nearly IID
        min_partition_size: samples that every client has at least
        self_balancing: give no more of the next classes to a client that has its average share already, as the code
            of Yurochkin et al. and PFLlib does
    """

    alpha: Positive = 0.1
    min_partition_size: Annotated[int, Range(least=2)] = 10
    self_balancing: bool = False

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        needed = clients * self.min_partition_size
        if needed > len(dataset):
            raise ComityError(
                f"partition.min_partition_size must be at most {len(dataset) // clients}, got "
                f"{self.min_partition_size}: {clients} clients need {needed} samples, {dataset.name} has {len(dataset)}"
            )
        counts = np.zeros((clients, dataset.classes), np.int64)
        samples = np.bincount(dataset.y, minlength=dataset.classes)
        for label in np.flatnonzero(samples):
            # beyond 1e12 all clients get the same, and the largest numbers would overflow
            p = random.dirichlet(np.full(clients, min(self.alpha, 1e12)))
            if self.self_balancing:
                p = _leave_out(p, counts.sum(1) >= len(dataset) / clients)
            # cutting at rounded cumulative sums, as is common, hands the remainder of every class to the last client
            counts[:, label] = apportion(int(samples[label]), p)
        _fill_up(counts, self.min_partition_size)
        return deal(dataset, counts, random)


def _leave_out(p: NDArray[np.float64], full: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Proportions among the clients that are not full yet."""
    p = np.where(full, 0.0, p)
    if p.sum() < 1e-12:  # what the draw gave to the others is nothing: 0/0 otherwise
        p = np.where(full, 0.0, 1.0)
    return np.asarray(p / p.sum())


def _fill_up(counts: Ints, least: int) -> None:
    """Move samples from the largest client to those below ``least``.

    Each step moves at least one sample and lifts nobody below ``least``, so it ends whenever there are
    ``clients * least`` samples, which the caller has checked.
    """
    sizes = counts.sum(1)
    for poor in np.flatnonzero(sizes < least):
        while sizes[poor] < least:
            rich = int(sizes.argmax())
            label = int(counts[rich].argmax())
            moved = min(least - sizes[poor], sizes[rich] - least, counts[rich, label])
            counts[rich, label] -= moved
            counts[poor, label] += moved
            sizes[rich] -= moved
            sizes[poor] += moved
