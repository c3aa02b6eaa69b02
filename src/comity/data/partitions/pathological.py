"""Label skew by a fixed number of classes a client."""

from dataclasses import dataclass

import numpy as np

from comity._errors import ComityError
from comity._options import Count
from comity.data._dataset import Dataset
from comity.data.partitions.base import Partition, Share, apportion, deal

LEAST = 2  # of each class a client holds, so that it is both trained on and tested


@dataclass(frozen=True, kw_only=True)
class Pathological(Partition):
    """Every client holds exactly so many classes, in unequal amounts by default; no sample is used twice.

    Paper: McMahan et al., AISTATS 2017; unequal sizes as in Shamsian et al., ICML 2021

    Classes are dealt so that the numbers of clients that hold them differ by at most one; a class's samples are
    divided among its holders in proportions drawn uniformly from [0.1, 1]. With fewer places (clients × classes a
    client) than classes, the classes nobody holds are left out.

    Options:
        num_classes_per_partition: classes of each client
        equal: divide a class's samples equally among its holders, as FedPG's Pat-2
    """

    num_classes_per_partition: Count = 2
    equal: bool = False

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        samples = np.bincount(dataset.y, minlength=dataset.classes)
        present = np.flatnonzero(samples)
        each = self.num_classes_per_partition
        if each > len(present):
            raise ComityError(
                f"partition.num_classes_per_partition must be at most {len(present)}, the classes of {dataset.name}, "
                f"got {each}"
            )
        holders: dict[int, list[int]] = {int(label): [] for label in present}
        for client in range(clients):
            # the classes held least so far, ties at random
            taken = np.array([len(holders[int(label)]) for label in present])
            for label in present[np.lexsort((random.random(len(present)), taken))[:each]]:
                holders[int(label)].append(client)

        counts = np.zeros((clients, dataset.classes), np.int64)
        for label, who in holders.items():
            spare = int(samples[label]) - LEAST * len(who)
            if spare < 0:
                raise ComityError(
                    f"partition.num_classes_per_partition must be smaller, got {each}: {len(who)} of {clients} clients "
                    f"would share class {label}, which has {samples[label]} samples; each needs {LEAST}"
                )
            if who:
                proportions = np.ones(len(who)) if self.equal else random.uniform(0.1, 1.0, len(who))
                counts[who, label] = LEAST + apportion(spare, proportions)
        return deal(dataset, counts, random)
