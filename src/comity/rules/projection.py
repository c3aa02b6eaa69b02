"""Projection of conflicting updates: the first step of ConFREE and CALM."""

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comity.rules._rule import By, GramBlock, Rule
from comity.rules.solvers import Array, Integers, Solution

Order = Literal["simultaneous", "sequential"]

COSINE_ROUNDING = 1e-7  # a negative cosine closer to 0 is float32 rounding, not a conflict


class Projection(Rule):
    """The mean of the updates, after each is projected off the updates that it conflicts with.

    Paper: Zheng et al., AAAI 2025, Equation 9; one after the other: PCGrad, Yu et al., NeurIPS 2020.

    Equation: d = (1/N) Σᵢ ( Δᵢ − Σⱼ (Δᵢ·Δⱼ/|Δⱼ|²) Δⱼ ), the inner sum over the j with Δᵢ·Δⱼ < 0. With two clients, d
    conflicts with neither of them. With more clients it may.

    Options:
        by: weight of a client in the mean of the projected updates: equal for all (the paper), or its number of samples
        order: project each update off all others at once, or off one after the other in random order
        seed: seed of the random orders
    """

    _: KW_ONLY
    by: By = "uniform"
    order: Order = "simultaneous"
    seed: int = 0

    def solve(self, block: GramBlock) -> Solution:
        return Solution(self.guidance(block), 0.0)

    def guidance(self, block: GramBlock) -> Array:
        """Coefficients of the mean of the projected updates."""
        weights = block.weights(self.by)
        if self.order == "simultaneous":
            return simultaneous(block, weights) / block.present
        a: Array = (weights[:, None] * sequential(block.G, self.shuffled(block))).sum(0) / block.present
        return a

    def shuffled(self, block: GramBlock) -> Integers:
        """(n, n) a random order for each member."""
        n = len(block)
        return self.random(block.layer).permuted(np.tile(np.arange(n), (n, 1)), axis=1)


def simultaneous(block: GramBlock, weights: Array) -> Array:
    """Coefficients of the weighted sum of the projected updates: aⱼ = wⱼ + Σᵢ wᵢ [−Gᵢⱼ]₊ / Gⱼⱼ."""
    if block.sketched:
        return np.asarray(weights + block.opposition(weights) / block.squares)
    taken, r = np.zeros_like(weights), block.lengths
    for rows, G in block.bands():
        against = np.less(G, -COSINE_ROUNDING * r * r[rows, None])
        taken += (weights[rows, None] * np.where(against, -G, 0)).sum(0)
    return np.asarray(weights + taken / block.squares)


def sequential(G: Array, orders: Integers, scale: Array | None = None) -> Array:
    """Row i: coefficients of update i after projection off the original updates ``orders[i]``, one after the other.

    Each projection subtracts (Δᵢ·Δⱼ/scaleⱼ) Δⱼ, with scaleⱼ = |Δⱼ|² by default. All rows are processed together.
    """
    every, r = np.arange(len(G)), np.sqrt(G.diagonal())
    scale = G.diagonal() if scale is None else scale
    rows, products = np.eye(len(G)), G.copy()
    for j in orders.T:
        dots = products[every, j]
        against = np.flatnonzero((dots < -COSINE_ROUNDING * r * r[j]) & (j != every))
        taken = dots[against] / scale[j[against]]
        rows[against, j[against]] -= taken
        products[against] -= taken[:, None] * G[j[against]]
    return rows


def conflicts(G: Array) -> NDArray[np.bool_]:
    """(n, n) which pairs of updates conflict: a negative product, beyond rounding."""
    r = np.sqrt(G.diagonal())
    return np.less(G, -COSINE_ROUNDING * r * r[:, None])
