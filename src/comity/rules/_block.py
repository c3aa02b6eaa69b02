"""What a rule sees of the updates: their Gram matrix, or what it is made of where there are many clients."""

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

_TILE = 512  # clients whose products lie in the cache while they are added up


@dataclass(frozen=True)
class GramBlock:
    """What a rule sees of one layer, or of the whole model: the n members whose updates are not 0 there."""

    A: Array  # its columns are the members' updates, turned into few dimensions: AᵀA = G
    unit: float  # the length of an update that has length 1 in G
    present: int  # how many clients are present, those whose update is 0 included: a mean divides by this number
    shares: Array  # of the samples of all clients present; 0 for absent clients
    losses: Array  # nan for absent clients, and for all if the rule does not need losses and none were given
    ages: Integers  # how many rounds ago each update was sent, 0 for those present
    layer: int  # which layer; 0 for the whole model
    sketched: bool = False  # whether A is of sketches of many clients: their products are estimates
    threads: int | None = None  # for what takes long; they change no bit

    def __len__(self) -> int:
        return int(self.A.shape[1])

    @cached_property
    def G(self) -> Array:
        """(n, n) Gram matrix, positive semidefinite, with mean diagonal 1."""
        return gram(self.A)

    @property
    def products(self) -> Array | Factored:
        """G, for solvers: with many members it is not made, and what G does goes through A."""
        return Factored(self.A) if len(self) > MANY else self.G

    def scaled(self, r: Array) -> Array | Factored:
        """The products of the updates divided by ``r``."""
        return Factored(self.A / r) if len(self) > MANY else self.G / r / r[:, None]

    @cached_property
    def squares(self) -> Array:
        """(n,) the squared length of each update."""
        return np.asarray((self.A * self.A).sum(0) if len(self) > MANY else self.G.diagonal())

    @property
    def lengths(self) -> Array:
        return np.sqrt(self.squares)

    def bands(self) -> Iterator[tuple[slice, Array]]:
        """G in bands of rows, and which: all at once, or with many members some at a time."""
        if len(self) <= MANY:
            yield slice(0, len(self)), self.G
        else:
            A = torch.from_numpy(self.A)
            for start in range(0, len(self), MANY):
                rows = slice(start, start + MANY)
                yield rows, np.asarray((A[:, rows].mT @ A).numpy())

    def opposition(self, weights: Array) -> Array:
        """(n,) Σᵢ wᵢ [−Gᵢⱼ]₊ in float32, which is far more exact than sketches are, half of G in tiles."""
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
        """How much each member counts in a mean, as a multiple of what it counts in a uniform one."""
        return self.shares * self.present if by == "size" else np.where(self.ages == 0, 1.0, 0.0)


def factored(updates: ClientUpdates, layer: int | None) -> tuple[Array, Callable[[Integers, float], Array]]:
    """The squared lengths of all updates in a layer or in the model, and what makes A of some at a unit of length."""
    flat = updates.flat(layer)
    if flat is not None:
        rows = flat.numpy()
        return (rows * rows).sum(1), lambda places, unit: np.ascontiguousarray(rows[places].T / unit)
    G = (updates.gram if layer is None else updates.grams[layer]).numpy()
    return G.diagonal(), lambda places, unit: root(G[np.ix_(places, places)] / unit**2)
