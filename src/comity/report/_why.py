"""Possible reasons for a client's gain or loss: agreement of its updates with the others', and its data."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from comity.report._series import Floats, cosines, mean_of_known
from comity.results import LoadedRun, PartitionTable


@dataclass(frozen=True)
class Agreement:
    """Cosines of the clients' updates, clients × clients: by round, and their mean over rounds."""

    rounds: dict[int, Floats]

    @cached_property
    def mean(self) -> Floats:
        """Mean over rounds; NaN for a pair that never took part in the same round, and on the diagonal."""
        mean = mean_of_known(np.stack(list(self.rounds.values())), axis=0)
        np.fill_diagonal(mean, np.nan)
        return mean

    @cached_property
    def of_clients(self) -> Floats:
        """Each client's mean cosine with the others."""
        return mean_of_known(self.mean, axis=1)

    @classmethod
    def of(cls, run: LoadedRun) -> "Agreement | None":
        rounds = cosines(run)
        return cls(rounds) if rounds else None


def overlap(partition: PartitionTable) -> Floats:
    """Overlap of each client's class distribution with the others', from 0 (disjoint) to 1 (equal)."""
    counts = np.array(partition.counts, dtype=np.float64)
    own, others = (rows / np.maximum(rows.sum(1, keepdims=True), 1) for rows in (counts, counts.sum(0) - counts))
    return np.asarray(np.minimum(own, others).sum(1), dtype=np.float64)
