from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comity._options import Share
from comity.rules._remembering import Remembering
from comity.rules._rule import Combination, GramBlock
from comity.rules.solvers import Array, Solution, min_norm, norm, times

LITTLE = 0.1
"""A cosine, or a share of the descent without f, that is less is warned of."""


class FairDescent(Remembering):
    """The common descent direction that also evens out the losses, with the length of the mean.

    Paper: the global model of FedPG, after FedMDFG, Pan et al., AAAI 2023; by layer FedLF, Pan et al., AAAI 2024.

    Equation: all updates, those of absent clients too, are brought to one length μ. To them comes f = Σ hᵢ Δᵢ over the
    clients present, also of length μ, which turns the vector of losses towards equal ones; equal losses need no f. d is
    the point nearest to 0 in the convex hull of all these, and the step is σd, as long as the mean of those present.
    Absent clients count if they were last seen within ⌊seen/present⌋ rounds (FedLF). The outcome's note ``sigma`` is σ,
    so its coefficients over σ are those of d; where no direction helps everybody σ is 0. ``cosine`` is that of the step
    and the mean of those present, 0 where there is no step.

    Lemma 1 of the FedPG supplement, by which d is 0 only where no direction helps everybody, is false. With equal
    updates and unequal losses f is the opposite of all of them, so d is 0 although the update helps everybody. Near
    that case the step is nearly orthogonal to the mean: two updates with cosine 0.99 and losses 0.2 and 1.0 give a step
    with cosine 0.09 to it. A run warns once of such a step (a cosine below 0.1); ``least_descent`` avoids it.

    Departures:
        - μ is the median length of those present. The authors' code has their mean, by which one client among ten that
          sends 100 times its update makes the step eleven times as long.

    Options:
        least_descent: f is left out of a step in which |d| would be less than this share of |d| without f, the descent
            that every client is sure of; 0 never leaves it out (the supplement), 1 always does where it matters
        unit: the length that all updates are brought to: the median of those present, or their mean
        scope: the whole model at once, or each layer by itself (FedLF)
    """

    certificate = "duality gap over the mean squared length"
    target = 1e-12
    needs_losses = True

    _: KW_ONLY
    least_descent: Share = 0.0
    unit: Literal["median", "mean"] = "median"

    def window(self, present: int, seen: int) -> int:
        return seen // present if seen > present else 0

    def solve(self, block: GramBlock) -> Solution:
        here, r = block.ages == 0, np.sqrt(block.G.diagonal())
        mu = np.median(r[here]) if self.unit == "median" else r[here].mean()
        Q = block.A * (mu / r)
        h = np.zeros(len(r))
        h[here] = evening(block.losses[here])
        length, kept = norm(times(Q, h)), 1.0
        if length > 1e-8 * mu * norm(h):
            h *= mu / length
            best = min_norm(np.column_stack((Q, times(Q, h))))
            kappa = best.x[:-1] + best.x[-1] * h
            if (d := norm(times(Q, kappa))) < max(self.least_descent, LITTLE) * mu:
                without = min_norm(Q)
                most = norm(times(Q, without.x))
                kept = d / most if most > 1e-12 else 1.0
                if kept < self.least_descent:
                    best, kappa, kept = without, without.x, 1.0
        else:
            best = min_norm(Q)
            kappa = best.x
        d, mean = norm(times(Q, kappa)), norm(times(Q, here / here.sum()))
        sigma = mean / d if d > 1e-12 else 0.0  # 0: no direction helps everybody
        x = sigma * kappa * mu / r
        return Solution(x, best.residual, {"sigma": sigma, "cosine": _cosine(block.A, x, here), "kept": kept})

    def caution(self, outcome: Combination) -> str:
        cosine, kept, sigma = (float(outcome.notes[name].nanmedian()) for name in ("cosine", "kept", "sigma"))
        if not cosine < LITTLE:  # by layer: in half of them
            return ""
        step = f"nearly orthogonal to the mean update (cosine {cosine:.2f})" if sigma else "0"
        because = (
            "its term for equal losses cancels what helps every client; least_descent 0.1 leaves the term out there"
            if kept < LITTLE
            else "hardly any direction helps every client"
        )
        return f"FairDescent's step is {step}: {because} (reported once)"


def _cosine(A: Array, x: Array, here: NDArray[np.bool_]) -> float:
    """Between the step and the mean of those present; 0 where there is no step."""
    step, mean = times(A, x), times(A, here / here.sum())
    lengths = norm(step) * norm(mean)
    return float(step @ mean / lengths) if lengths else 0.0


def evening(losses: Array) -> Array:
    """h, the gradient of −cos(losses, 1) by the losses: perpendicular to them, 0 where they are equal."""
    length = norm(losses)
    if length == 0:
        return np.zeros_like(losses)
    p = np.full(len(losses), len(losses) ** -0.5)
    h = ((losses @ p) * losses / length**2 - p) / length
    return h if norm(h) * length > 1e-8 else np.zeros_like(losses)
