import math
from dataclasses import field

import numpy as np

from comity._options import CountOrZero, Share
from comity.rules._remembering import Remembering
from comity.rules._rule import GramBlock, Scope
from comity.rules.projection import sequential
from comity.rules.solvers import Solution, norm, times


class FedFV(Remembering):
    """The mean of updates, projected off each other in order of loss, and off the updates of absent clients.

    Paper: Wang et al., IJCAI 2021, Algorithm 1.

    Equation: each Δᵢ is projected off the Δⱼ that it conflicts with, in order of rising loss. The share alpha of
    clients with the largest losses is exempt. The mean of the results is then projected, for each of the tau rounds
    before this one, oldest first, off the sum of the absent clients' updates that it conflicts with. The step has the
    length of the uniform mean.

    Departures:
        - Absent clients are those of the tau rounds before this one; the released code counts this round as one of the
          tau.

    Options:
        alpha: share of the clients whose updates stay unchanged: those with the largest losses
        tau: number of rounds for which the last update of an absent client is used
    """

    needs_losses = True

    alpha: Share = 0.1
    tau: CountOrZero = 1
    scope: Scope = field(default="model", init=False)

    def window(self, present: int, seen: int) -> int:
        return self.tau

    @property
    def reach(self) -> float:
        return self.tau

    def solve(self, block: GramBlock) -> Solution:
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
