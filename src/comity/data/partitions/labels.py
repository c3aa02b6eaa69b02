"""Label skew: clients differ in the classes of their samples."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity._options import Count, Positive, Range, ShareBelowOne
from comity.data._dataset import Dataset, Ints
from comity.data.partitions.base import Partition, Share, apportion, deal
from comity.data.partitions.sizes import Sized

LEAST = 2  # samples of each class that a client holds, for training and testing


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label skew: each class is divided among the clients in proportions drawn from Dir(alpha, …, alpha).

    Paper: Yurochkin et al., ICML 2019; Hsu et al., 2019

    It is drawn once. Other implementations draw again until every client has ``min_partition_size`` samples; here
    clients below it take the missing samples from the largest class of the largest client. This always terminates, and
    changes nothing if the draw is large enough.

    Options:
        alpha: small values give few classes per client and unequal sizes, large values nearly IID
        min_partition_size: minimum number of samples per client
        self_balancing: give no further classes to a client that already has its average share, as the code of
            Yurochkin et al. and PFLlib does
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
            # above 1e12 all clients get equal shares, and the largest numbers would overflow
            p = random.dirichlet(np.full(clients, min(self.alpha, 1e12)))
            if self.self_balancing:
                p = _leave_out(p, counts.sum(1) >= len(dataset) / clients)
            # cutting at rounded cumulative sums, as is common, gives the remainder of every class to the last client
            counts[:, label] = apportion(int(samples[label]), p)
        _fill_up(counts, self.min_partition_size)
        return deal(dataset, counts, random)


def _leave_out(p: NDArray[np.float64], full: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Proportions among the clients that are not full."""
    p = np.where(full, 0.0, p)
    if p.sum() < 1e-12:  # the draw gave almost 0 to the others; avoids 0/0
        p = np.where(full, 0.0, 1.0)
    return np.asarray(p / p.sum())


def _fill_up(counts: Ints, least: int) -> None:
    """Move samples from the largest client to those below ``least``.

    Each step moves at least one sample and takes no client below ``least``, so it ends whenever there are
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


@dataclass(frozen=True, kw_only=True)
class Pathological(Partition):
    """Label skew: every client holds a fixed number of classes, in unequal amounts by default.

    Paper: McMahan et al., AISTATS 2017; unequal sizes as in Shamsian et al., ICML 2021

    Classes are dealt so that the numbers of clients per class differ by at most one; a class's samples are divided
    among its holders in proportions drawn uniformly from [0.1, 1]. If clients × classes per client is below the number
    of classes, classes that no client holds are left out. No sample is used twice.

    With ``blocks`` classes are dealt as in PFLlib: each class in turn goes to the first ⌈clients × classes per client /
    classes⌉ clients that still need one, so that neighbours hold the same classes; the last block may hold fewer.
    Without ``equal`` all holders but the last get a number drawn uniformly between a tenth of the average and the
    average, and the last one, often by far the largest, gets the rest. The samples are chosen at random; PFLlib takes
    them in order.

    Options:
        num_classes_per_partition: number of classes per client
        equal: divide a class's samples equally among its holders, as in FedPG's Pat-2
        blocks: give the same classes to blocks of neighbouring clients, as in PFLlib and FedPG's Pat-2
    """

    num_classes_per_partition: Count = 2
    equal: bool = False
    blocks: bool = False

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        samples = np.bincount(dataset.y, minlength=dataset.classes)
        present = np.flatnonzero(samples)
        each = self.num_classes_per_partition
        if each > len(present):
            raise ComityError(
                f"partition.num_classes_per_partition must be at most {len(present)}, the classes of {dataset.name}, "
                f"got {each}"
            )
        held = np.zeros((clients, len(present)), bool)
        if self.blocks:
            for place in range(len(present)):
                lacking = np.flatnonzero(held.sum(1) < each)
                held[lacking[: math.ceil(clients * each / len(present))], place] = True
        else:
            for client in range(clients):  # the least held classes so far, ties at random
                held[client, np.lexsort((random.random(len(present)), held.sum(0)))[:each]] = True

        counts = np.zeros((clients, dataset.classes), np.int64)
        for label, holders in zip(present, held.T, strict=True):
            who = np.flatnonzero(holders)
            spare = int(samples[label]) - LEAST * len(who)
            if spare < 0:
                raise ComityError(
                    f"partition.num_classes_per_partition must be smaller, got {each}: {len(who)} of {clients} clients "
                    f"would share class {label}, which has {samples[label]} samples; each needs {LEAST}"
                )
            if len(who):
                counts[who, label] = self._amounts(int(samples[label]), len(who), random)
        return deal(dataset, counts, random)

    def _amounts(self, samples: int, holders: int, random: np.random.Generator) -> Ints:
        """Number of a class's samples that each holder gets; at least LEAST."""
        if self.equal or not self.blocks:
            proportions = np.ones(holders) if self.equal else random.uniform(0.1, 1.0, holders)
            return LEAST + apportion(samples - LEAST * holders, proportions)
        average = samples / holders
        least = max(int(average / 10), LEAST)
        drawn = random.integers(least, max(int(average), least + 1), holders - 1)
        return np.append(drawn, samples - drawn.sum())


@dataclass(frozen=True, kw_only=True)
class LabelShift(Sized):
    """Label shift: each client has its own class proportions, with all classes present and equal sizes.

    A share ``shift`` of a client's samples comes from its favourite classes, the rest from all classes: q = (1 -
    shift)·p + shift·p(· | favourites). The classes are shuffled and dealt evenly as favourites, one per client in turn
    or, with fewer clients than classes, several. Unlike with ``Dirichlet``, clients differ only in their class
    proportions, not in size, and no class is missing. Samples that do not fit are left out.

    Options:
        shift: share of a client's samples that comes from its favourite classes
        groups: number of groups with the same favourite classes: client k is in group k mod groups; by default one per
            client, or per class if there are fewer
    """

    shift: ShareBelowOne = 0.5
    groups: Count | None = None

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        samples = np.bincount(dataset.y, minlength=dataset.classes)
        most = min(clients, int(np.count_nonzero(samples)))
        groups = most if self.groups is None else self.groups
        if groups > most:
            raise ComityError(f"partition.groups must be at most {most}, the clients or classes, got {groups}")
        mixes = self._mixes(samples, clients, groups, random)
        weights = self.weights(clients)
        if self.samples_per_client is not None:
            sizes = self.sizes(len(dataset), clients)
            counts = _counts(sizes, mixes)
        else:
            # the largest common size for which every class has enough samples; rounding can ask for a few too many
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

    def _mixes(self, samples: Ints, clients: int, groups: int, random: np.random.Generator) -> NDArray[np.float64]:
        """(clients, classes) class proportions of each client."""
        p = samples / samples.sum()
        present = random.permutation(np.flatnonzero(samples))
        turns = np.array_split(present, groups)
        mixes = np.tile((1 - self.shift) * p, (clients, 1))
        for client in range(clients):
            favourites = turns[client % len(turns)]
            mixes[client, favourites] += self.shift * p[favourites] / p[favourites].sum()
        return mixes


def _counts(sizes: Ints, mixes: NDArray[np.float64]) -> Ints:
    return np.stack([apportion(int(size), mix) for size, mix in zip(sizes, mixes, strict=True)])
