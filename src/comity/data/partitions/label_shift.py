"""Label shift alone: other class mixes, equal sizes."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity._options import ShareBelowOne
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Share, apportion, deal
from comity.data.partitions.iid import Sized


@dataclass(frozen=True, kw_only=True)
class LabelShift(Sized):
    """Label shift: every client its own class mix, all classes present, equal sizes.

    The other samples come from all classes as they occur in the data set: q = (1 - shift)·p + shift·p(· | favourites).
    Favourites: the classes are shuffled and dealt out evenly, one a client (in turn) or, with fewer clients than
    classes, several. Unlike ``Dirichlet`` nothing but the
    class mix differs between clients: not the size, and no class is missing. Samples that do not fit are left out.

    Options:
        shift: share of a client's samples that come from its favourite classes
    """

    shift: ShareBelowOne = 0.5

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        samples = np.bincount(dataset.y, minlength=dataset.classes)
        mixes = self._mixes(samples, clients, random)
        weights = self.weights(clients)
        if self.samples_per_client is not None:
            sizes = self.sizes(len(dataset), clients)
            counts = _counts(sizes, mixes)
        else:
            # the largest common size that no class is too small for; rounding can ask for a few samples too many
            demand = weights @ mixes
            each = math.ceil((samples[demand > 0] / demand[demand > 0]).min())
            while True:
                counts = _counts(np.round(each * weights).astype(np.int64), mixes)
                if each == 0 or (counts.sum(0) <= samples).all():
                    break
                each -= 1
        lacking = np.flatnonzero(counts.sum(0) > samples)
        if len(lacking):
            label = int(lacking[0])
            raise ComityError(
                f"partition.samples_per_client must be smaller, got {self.samples_per_client}: it needs "
                f"{counts[:, label].sum()} samples of class {label}, {dataset.name} has {samples[label]}"
            )
        if (counts[:, samples > 0] == 0).any():
            raise ComityError(
                f"partition.shift must be smaller, got {self.shift}: with {clients} clients {dataset.name} has too few "
                f"samples for every client to hold every class (or take fewer clients)"
            )
        return deal(dataset, counts, random)

    def _mixes(self, samples: Ints, clients: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Each client's class proportions, (clients, classes)."""
        p = samples / samples.sum()
        present = random.permutation(np.flatnonzero(samples))
        turns = np.array_split(present, min(clients, len(present)))
        mixes = np.tile((1 - self.shift) * p, (clients, 1))
        for client in range(clients):
            favourites = turns[client % len(turns)]
            mixes[client, favourites] += self.shift * p[favourites] / p[favourites].sum()
        return mixes


def _counts(sizes: Ints, mixes: NDArray[np.float64]) -> Ints:
    return np.stack([apportion(int(size), mix) for size, mix in zip(sizes, mixes, strict=True)])
