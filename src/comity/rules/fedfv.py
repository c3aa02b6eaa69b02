"""FedFV."""

import math

import numpy as np

from comity._errors import ComityError
from comity.rules._memory import Remembering
from comity.rules._rule import Block, Length, within
from comity.rules._solvers import Solution, norm, times
from comity.rules.projection import sequential


class FedFV(Remembering):
    """The mean of updates projected one after the other by rising loss, then off the absent clients it conflicts with.

    Wang et al., IJCAI 2021. The share ``alpha`` of clients with the largest losses keep their updates as they are.
    Absent are those last seen in the tau rounds before this one (the released code counts this one among them): of each
    round, oldest first, the sum of those that conflict. The length is that of the uniform mean. Needs losses.

    Options:
        alpha: share of the clients with the largest losses whose updates stay as they are
        tau: how many rounds back absent clients count
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    needs_losses = True

    def __init__(self, alpha: float = 0.1, tau: int = 1, *, length: Length = "own") -> None:
        super().__init__(length=length)
        self.alpha = within("alpha", alpha, 0, 1)
        self.tau = int(within("tau", tau, 0))

    def window(self, present: int, seen: int) -> int:
        return self.tau

    @property
    def reach(self) -> float:
        return self.tau

    def solve(self, block: Block) -> Solution:
        if block.losses is None:
            raise ComityError("FedFV needs the clients' losses: FedFV()(updates, losses=[...])")
        G, here = block.G, np.flatnonzero(block.ages == 0)
        n = len(here)
        order = np.argsort(block.losses[here], kind="stable")
        rows = sequential(G[np.ix_(here, here)], np.tile(order, (n, 1)))
        if self.alpha > 0:
            kept = order[math.ceil((n - 1) * (1 - self.alpha)) :]
            rows[kept] = np.eye(n)[kept]
        mean, x = np.zeros(len(G)), np.zeros(len(G))
        mean[here], x[here] = 1 / block.present, rows.sum(0) / block.present
        for age in range(self.tau, 0, -1):
            y = np.where((block.ages == age) & (times(G, x) < 0), 1.0, 0.0)
            if (against := x @ times(G, y)) < 0:
                x = x - (against / (y @ times(G, y))) * y
        length = norm(times(block.A, x))
        return Solution(x * norm(times(block.A, mean)) / length if length > 1e-12 else mean, 0.0)
