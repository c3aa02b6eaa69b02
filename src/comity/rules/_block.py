"""The view of the updates that a rule gets: their Gram matrix, or a low-rank factor of it if there are many clients."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from comity._threads import in_order
from comity.rules._many import MANY, Array, Factored, Integers
from comity.rules._updates import ClientUpdates
from comity.rules.solvers import gram, root

By = Literal["size", "uniform"]

_TILE = 512  # clients per tile, so that the products of a tile stay in the cache while they are summed


@dataclass(frozen=True)
class GramBlock:
    """Input of a rule for one layer or the whole model: products of the n updates that are not 0 there."""

    A: Array  # (r, n) factor of the Gram matrix: AᵀA = G, one column per member
    unit: float  # length of an update that has length 1 in G
    present: int  # number of clients present, including those whose update is 0: a mean divides by it
    shares: Array  # share of the samples of all clients present; 0 for absent clients
    losses: Array  # nan for absent clients, and for all clients if no losses were given
    ages: Integers  # rounds since each update was sent, 0 for clients present
    layer: int  # index of the layer; 0 for the whole model
    sketched: bool = False  # whether A comes from sketches of many clients, so that products are estimates
    threads: int | None = None  # threads for long computations; the result does not depend on them

    def __len__(self) -> int:
        return int(self.A.shape[1])

    @cached_property
    def G(self) -> Array:
        """(n, n) Gram matrix, positive semidefinite, with mean diagonal 1."""
        return gram(self.A)

    @property
    def products(self) -> Array | Factored:
        """G for solvers; with many members a `Factored` that multiplies by A and never forms G."""
        return Factored(self.A) if len(self) > MANY else self.G

    def scaled(self, r: Array) -> Array | Factored:
        """Gram matrix of the updates after division by ``r`` (n,)."""
        return Factored(self.A / r) if len(self) > MANY else self.G / r / r[:, None]

    @cached_property
    def squares(self) -> Array:
        """(n,) squared length of each update."""
        return np.asarray((self.A * self.A).sum(0) if len(self) > MANY else self.G.diagonal())

    @property
    def lengths(self) -> Array:
        return np.sqrt(self.squares)

    def bands(self) -> Iterator[tuple[slice, Array]]:
        """Row slices and the matching bands of G: all rows at once, or blocks of rows with many members."""
        if len(self) <= MANY:
            yield slice(0, len(self)), self.G
        else:
            A = torch.from_numpy(self.A)
            for start in range(0, len(self), MANY):
                rows = slice(start, start + MANY)
                yield rows, np.asarray((A[:, rows].mT @ A).numpy())

    def opposition(self, weights: Array) -> Array:
        """(n,) Σᵢ wᵢ [−Gᵢⱼ]₊, computed in tiles over half of G, in float32: far more exact than sketches are."""
        A, w = torch.from_numpy(self.A).mT.float().contiguous(), torch.from_numpy(weights).float()
        starts = range(0, len(self), _TILE)

        def add(start: int) -> Tensor:
            own, taken = slice(start, start + _TILE), torch.zeros(len(self), dtype=torch.float64)
            for other in (slice(other, other + _TILE) for other in range(0, start + 1, _TILE)):
                G = (A[own] @ A[other].mT).clamp_(max=0)
                taken[other] -= w[own] @ G
                if other != own:
                    taken[own] -= G @ w[other]
            return taken

        return np.asarray(sum(in_order(add, starts, self.threads), torch.zeros(len(self), dtype=torch.float64)).numpy())

    def weights(self, by: By) -> Array:
        """(n,) weight of each member in a mean, as a multiple of its weight in a uniform mean."""
        return self.shares * self.present if by == "size" else np.where(self.ages == 0, 1.0, 0.0)


def factored(updates: ClientUpdates, layer: int | None) -> tuple[Array, Callable[[Integers, float], Array]]:
    """Squared lengths of all updates in a layer or the model, and a function (indices, unit of length) → A."""
    flat = updates.flat(layer)
    if flat is not None:
        rows = flat.numpy()
        return (rows * rows).sum(1), lambda places, unit: np.ascontiguousarray(rows[places].T / unit)
    G = (updates.gram if layer is None else updates.grams[layer]).numpy()
    return G.diagonal(), lambda places, unit: root(G[np.ix_(places, places)] / unit**2)
