from dataclasses import KW_ONLY
from typing import Literal

import numpy as np

from comity.rules._remembering import Remembering
from comity.rules._rule import GramBlock
from comity.rules.solvers import Array, Solution, min_norm, norm, times


class FairDescent(Remembering):
    """The common descent direction that also evens out the losses, with the length of the mean.

    Paper: the global model of FedPG, after FedMDFG, Pan et al., AAAI 2023; by layer FedLF, Pan et al., AAAI 2024.

    Equation: all updates, those of absent clients too, are brought to one length μ. To them comes f = Σ hᵢ Δᵢ over the
    clients present, also of length μ, which turns the vector of losses towards equal ones; equal losses need no f. d is
    the point nearest to 0 in the convex hull of all these, and the step is σd, as long as the mean of those present.
    Absent clients count if they were last seen within ⌊seen/present⌋ rounds (FedLF). The outcome's note ``sigma`` is σ,
    so its coefficients over σ are those of d; where no direction helps everybody σ is 0.

    Departures:
        - μ is the median length of those present. The authors' code has their mean, by which one client among ten that
          sends 100 times its update makes the step eleven times as long.

    Options:
        unit: the length that all updates are brought to: the median of those present, or their mean
        scope: the whole model at once, or each layer by itself (FedLF)
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12
    needs_losses = True

    _: KW_ONLY
    unit: Literal["median", "mean"] = "median"

    def window(self, present: int, seen: int) -> int:
        return seen // present if seen > present else 0

    def solve(self, block: GramBlock) -> Solution:
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
