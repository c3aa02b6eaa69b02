"""The partition a data set comes with."""

from dataclasses import dataclass

import numpy as np

from comity._errors import ComityError, one_line
from comity.data._dataset import Dataset
from comity.data.partitions.base import Partition, Share


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """The data set's own partition: who owns what is written in it (a column, site folders, PFLlib, synthetic)."""

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        if dataset.owner is None:
            raise ComityError(f"partition natural: {dataset.name} does not say which client owns which sample")
        values, owner = np.unique(dataset.owner, return_inverse=True)
        names = [one_line(value, 40) for value in values]
        if clients != len(names):
            raise ComityError(
                f"clients must be {len(names)}, got {clients}: {dataset.name} is already shared out among {len(names)}"
            )
        order = np.argsort(owner, kind="stable")
        shares = np.split(order, np.cumsum(np.bincount(owner)))[:-1]
        if "test" not in dataset.columns:
            return [Share(index, name=name) for name, index in zip(names, shares, strict=True)]
        test = dataset.columns["test"].astype(bool)
        return [
            Share(index[~test[index]], test=index[test[index]], name=name)
            for name, index in zip(names, shares, strict=True)
        ]
