"""The global direction of FedPG."""

from typing import Literal

import numpy as np

from comity._errors import ComityError
from comity.rules._memory import Remembering
from comity.rules._rule import Block, Length, Scope, one_of
from comity.rules._solvers import Array, Solution, min_norm, norm, times


class FairDescent(Remembering):
    """The common descent direction that also evens out the losses, with the length of the mean.

    The global model of FedPG, after FedMDFG (Pan et al., AAAI 2023) and, with ``scope="layer"``, FedLF (AAAI 2024): all
    updates, those of absent clients too, at one length μ; f = Σhᵢ Δᵢ over those present, at
    length μ, which turns the vector of losses towards equal ones; d, the point nearest to 0 in the hull of all these;
    and the update σd, as long as the mean of those present. f is left out when losses are equal. Absent are clients
    last seen within ⌊seen/present⌋ rounds (FedLF). Outcome.notes["sigma"] is σ: coefficients / σ are d's. Needs losses.
    μ is the median length of those present; the code has their mean, by which one client that sends 100 times its
    update, among ten, makes the step eleven times as long.

    Options:
        unit: the length that all updates are brought to: the median of those present, or their mean
        scope: the whole model at once, or each layer by itself (FedLF)
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12
    needs_losses = True

    def __init__(
        self, *, unit: Literal["median", "mean"] = "median", scope: Scope = "model", length: Length = "own"
    ) -> None:
        super().__init__(scope=scope, length=length)
        self.unit = one_of("unit", unit, ("median", "mean"))

    def window(self, present: int, seen: int) -> int:
        return seen // present if seen > present else 0

    def solve(self, block: Block) -> Solution:
        if block.losses is None:
            raise ComityError("FairDescent needs the clients' losses: FairDescent()(updates, losses=[...])")
        here, r = block.ages == 0, np.sqrt(block.G.diagonal())
        mu = np.median(r[here]) if self.unit == "median" else r[here].mean()
        Q = block.A * (mu / r)
        h = np.zeros(len(r))
        h[here] = evening(block.losses[here])
        length = norm(times(Q, h))
        if length > 1e-8 * mu * norm(h):
            h *= mu / length
            best = min_norm(np.column_stack((Q, times(Q, h))))
            kappa = best.x[:-1] + best.x[-1] * h
        else:
            best = min_norm(Q)
            kappa = best.x
        d, mean = norm(times(Q, kappa)), norm(times(Q, here / here.sum()))
        sigma = mean / d if d > 1e-12 else 0.0  # 0: no direction helps everybody
        return Solution(sigma * kappa * mu / r, best.residual, {"sigma": sigma})


def evening(losses: Array) -> Array:
    """h, the gradient of −cos(losses, 1) by the losses: perpendicular to them, 0 where they are equal."""
    length = norm(losses)
    if length == 0:
        return np.zeros_like(losses)
    p = np.full(len(losses), len(losses) ** -0.5)
    h = ((losses @ p) * losses / length**2 - p) / length
    return h if norm(h) * length > 1e-8 else np.zeros_like(losses)
