"""Partitions by a column of the data."""

from dataclasses import dataclass

import numpy as np

from comity._errors import ComityError, one_line, unknown
from comity.data._dataset import Dataset
from comity.data.partitions.base import Partition, Share


@dataclass(frozen=True, kw_only=True)
class ByColumn(Partition):
    """Clients by the values of a column, such as a domain or a year.

    With at least as many clients as values, no client mixes two values: value k goes to the clients k, k + values,
    k + 2·values, ..., in equal random parts. With more values than clients (years), the samples are sorted by the
    column and cut into runs of equal size, so that neighbouring clients are similar (FEDORA's Yearbook).

    Options:
        column: name of the column
    """

    column: str = "domain"

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        if self.column not in dataset.columns:
            raise unknown("column", self.column, dataset.columns, of=f"of {dataset.name} (partition.column)")
        values = dataset.columns[self.column]
        order = random.permutation(len(dataset))
        order = order[np.argsort(values[order], kind="stable")]
        _, sizes = np.unique(values, return_counts=True)
        if len(sizes) > clients:
            return [Share(run) for run in np.array_split(order, clients)]
        runs = np.split(order, np.cumsum(sizes))[:-1]
        shares = [Share(order[:0])] * clients
        for k, run in enumerate(runs):
            mine = range(k, clients, len(runs))
            for client, part in zip(mine, np.array_split(run, len(mine)), strict=True):
                shares[client] = Share(part)
        return shares


@dataclass(frozen=True, kw_only=True)
class Natural(Partition):
    """The data set's own partition: clients as given in the data (a column, site folders, PFLlib, synthetic)."""

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        if dataset.owner is None:
            raise ComityError(f"partition natural: {dataset.name} does not say which client owns which sample")
        values, owner = np.unique(dataset.owner, return_inverse=True)
        listed = {} if dataset.schema is None else {name: k for k, name in enumerate(dataset.schema.clients)}
        order = np.argsort([listed.get(str(value), k) for k, value in enumerate(values)], kind="stable")
        values, owner = values[order], np.argsort(order)[owner]
        names = [one_line(value, 40) for value in values]
        if clients != len(names):
            raise ComityError(
                f"clients must be {len(names)}, got {clients}: {dataset.name} comes with {len(names)} clients"
            )
        order = np.argsort(owner, kind="stable")
        indices = zip(names, np.split(order, np.cumsum(np.bincount(owner)))[:-1], strict=True)
        if "test" not in dataset.columns:
            return [Share(index, name=name) for name, index in indices]
        test = dataset.columns["test"].astype(bool)
        return [Share(index[~test[index]], test=index[test[index]], name=name) for name, index in indices]
