"""What goes with a client's gain or loss: how far its updates agree with the others', and how its data compare."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from comity.report._series import Floats, cosines
from comity.results import LoadedRun
from comity.results.schema import PartitionTable


@dataclass(frozen=True)
class Agreement:
    """Cosines of the clients' updates, clients × clients: by round, and their mean over the rounds."""

    rounds: dict[int, Floats]

    @cached_property
    def mean(self) -> Floats:
        """NaN for a pair that never took part in the same round, and on the diagonal, which says nothing."""
        stack = np.stack(list(self.rounds.values()))
        known = ~np.isnan(stack)
        total, times = np.where(known, stack, 0).sum(0), known.sum(0)
        mean = np.where(times > 0, total / np.maximum(times, 1), np.nan)
        np.fill_diagonal(mean, np.nan)
        return np.asarray(mean, dtype=np.float64)

    @cached_property
    def of_clients(self) -> Floats:
        """Each client's mean cosine with the others."""
        known = ~np.isnan(self.mean)
        total, times = np.where(known, self.mean, 0).sum(1), known.sum(1)
        return np.asarray(np.where(times > 0, total / np.maximum(times, 1), np.nan), dtype=np.float64)

    @classmethod
    def of(cls, run: LoadedRun) -> "Agreement | None":
        rounds = cosines(run)
        return cls(rounds) if rounds else None


def overlap(partition: PartitionTable) -> Floats:
    """How much of each client's class mix it shares with all the others together: 1 the same, 0 nothing in common."""
    counts = np.array(partition.counts, dtype=np.float64)
    others = counts.sum(0) - counts

    def mix(rows: Floats) -> Floats:
        return np.asarray(rows / np.maximum(rows.sum(1, keepdims=True), 1), dtype=np.float64)

    return np.asarray(np.minimum(mix(counts), mix(others)).sum(1), dtype=np.float64)
