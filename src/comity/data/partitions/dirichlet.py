"""Label skew drawn from a Dirichlet distribution."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Partition, Share, apportion, deal


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label skew: each class is divided among the clients in proportions drawn from Dir(alpha, …, alpha).

    Yurochkin et al., ICML 2019; Hsu et al., 2019. Small ``alpha``: few classes a client and unequal sizes; large
    ``alpha``: towards IID. ``self_balancing`` gives no more of the next classes to a client that already has its
    average share, as the code of Yurochkin et al. and PFLlib does. Drawn once: where others draw again until every
    client has ``min_partition_size`` samples, here those below it take what they lack from the largest client, out
    of its largest class. That always ends, and changes nothing when the draw is large enough already.
    """

    alpha: float = 0.1
    min_partition_size: int = 10
    self_balancing: bool = False

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        if not 1e-6 <= self.alpha <= 1e6:
            raise ComityError(f"partition.alpha: got {self.alpha}; allowed: a number above 0 (from 1e-6 to 1e6)")
        if self.min_partition_size < 2:
            raise ComityError(f"partition.min_partition_size: got {self.min_partition_size}; allowed: 2 or more")
        if clients * self.min_partition_size > len(dataset):
            raise ComityError(
                f"partition.min_partition_size: got {self.min_partition_size}, which for {clients} clients needs "
                f"{clients * self.min_partition_size} samples; {dataset.name} has {len(dataset)}"
            )
        counts = np.zeros((clients, dataset.classes), np.int64)
        samples = np.bincount(dataset.y, minlength=dataset.classes)
        for label in np.flatnonzero(samples):
            p = random.dirichlet(np.full(clients, self.alpha))
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
