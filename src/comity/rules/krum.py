"""Krum."""

from dataclasses import KW_ONLY
from typing import Annotated, Literal

import numpy as np

from comity._options import Count, Range
from comity.rules._rule import GramBlock, Rule
from comity.rules.solvers import Solution, gram


class Krum(Rule):
    """The update that has the nearest neighbours, or the mean of several such: those in the middle of the majority.

    Paper: Blanchard et al., NeurIPS 2017.

    Equation: with n clients of whom f may lie, the score of Δᵢ is the sum of |Δᵢ − Δⱼ|² over its n − f − 2 nearest Δⱼ.
    d is the mean of the m updates with the lowest scores.

    Options:
        liars: share of the clients that may lie: f is that many of n, rounded down
        m: how many updates are averaged: 1 is Krum, more is multi-Krum, and most is n − f
    """

    liars: Annotated[float, Range(least=0, below=0.5)] = 0.3
    _: KW_ONLY
    m: Count | Literal["most"] = 1

    def solve(self, block: GramBlock) -> Solution:
        points = block.points
        n = points.shape[1]
        f = int(self.liars * n + 1e-9)
        squares = (points * points).sum(0)
        distances = np.maximum(squares + squares[:, None] - 2 * gram(points), 0)
        np.fill_diagonal(distances, 0)
        scores = np.sort(distances, axis=1)[:, 1 : 1 + max(1, n - f - 2)].sum(1)
        chosen = np.argsort(scores, kind="stable")[: n - f if self.m == "most" else min(self.m, n)]
        x = np.zeros(n)
        x[chosen] = 1 / len(chosen)
        return Solution(x[: len(block.G)], 0.0)
