"""The partition a data set comes with."""

from dataclasses import dataclass

import numpy as np

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.partitions.base import Partition, Share


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """The data set's own partition: who owns what is written in it (PFLlib's layout, synthetic)."""

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        if not dataset.shared_out:
            raise ComityError(f"partition natural: {dataset.name} does not say which client owns which sample")
        names, owner = np.unique(dataset.columns["client"], return_inverse=True)
        if clients != len(names):
            raise ComityError(
                f"clients must be {len(names)}, got {clients}: {dataset.name} is already shared out among {len(names)}"
            )
        order = np.argsort(owner, kind="stable")
        shares = np.split(order, np.cumsum(np.bincount(owner)))[:-1]
        if "test" not in dataset.columns:
            return [Share(index) for index in shares]
        test = dataset.columns["test"].astype(bool)
        return [Share(index[~test[index]], test=index[test[index]]) for index in shares]
