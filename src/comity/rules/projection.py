"""Projection of conflicting updates: what ConFREE and CALM begin with."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from comity.rules._rule import Block, Length, Rule, Scope, one_of
from comity.rules._solvers import Array, Integers, Solution

Order = Literal["simultaneous", "sequential"]

TOUCH = 1e-7  # a cosine nearer to 0 is rounding of float32 and no conflict


class Projection(Rule):
    """The mean of the updates, each without its components against those it conflicts with.

    ConFREE, Equation 9 (Zheng et al., AAAI 2025): Δᵢ − Σⱼ (Δᵢ·Δⱼ/|Δⱼ|²) Δⱼ over the j with Δᵢ·Δⱼ < 0, all at once. With
    ``order="sequential"`` one j after the other, in a random order for each i, as in PCGrad (Yu et al., NeurIPS 2020).
    Neither makes the mean free of conflict when there are more than two clients.

    Options:
        scope: the whole model at once, or each layer by itself
        order: project off all others at once, or one after the other
        seed: of the random orders
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    def __init__(
        self, *, scope: Scope = "model", order: Order = "simultaneous", seed: int = 0, length: Length = "own"
    ) -> None:
        self.order = one_of("order", order, get_args(Order))
        self.seed = seed
        self.counts = order == "sequential"
        super().__init__(scope=scope, length=length)

    def solve(self, block: Block) -> Solution:
        return Solution(self.guidance(block), 0.0)

    def guidance(self, block: Block) -> Array:
        """Coefficients of the mean of the projected updates."""
        if self.order == "simultaneous":
            return simultaneous(block.G) / block.present
        a: Array = sequential(block.G, self.shuffled(block)).sum(0) / block.present
        return a

    def shuffled(self, block: Block) -> Integers:
        """A random order for each member."""
        n = len(block.G)
        return self.random(block.place).permuted(np.tile(np.arange(n), (n, 1)), axis=1)


def simultaneous(G: Array) -> Array:
    """Coefficients of the sum of the projected updates: aⱼ = 1 + Σᵢ [−Gᵢⱼ]₊ / Gⱼⱼ."""
    a: Array = 1 + np.where(conflicts(G), -G, 0).sum(0) / G.diagonal()
    return a


def sequential(G: Array, orders: Integers, scale: Array | None = None) -> Array:
    """Row i: coefficients of update i projected off the original updates ``orders[i]``, one after the other.

    What is taken off is (Δᵢ·Δⱼ/scaleⱼ) Δⱼ, with scaleⱼ = |Δⱼ|² unless another is given. All rows step together.
    """
    every, r = np.arange(len(G)), np.sqrt(G.diagonal())
    scale = G.diagonal() if scale is None else scale
    rows, products = np.eye(len(G)), G.copy()
    for j in orders.T:
        dots = products[every, j]
        against = np.flatnonzero((dots < -TOUCH * r * r[j]) & (j != every))
        taken = dots[against] / scale[j[against]]
        rows[against, j[against]] -= taken
        products[against] -= taken[:, None] * G[j[against]]
    return rows


def conflicts(G: Array) -> NDArray[np.bool_]:
    """Which pairs of updates have a negative product, more so than by rounding."""
    r = np.sqrt(G.diagonal())
    return np.less(G, -TOUCH * r * r[:, None])
