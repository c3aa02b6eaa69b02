from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from comity._options import Share
from comity.rules._remembering import Remembering
from comity.rules._rule import Combination, GramBlock
from comity.rules.solvers import Array, Solution, min_norm, norm, times

LITTLE = 0.1
"""Limit of the warning: a smaller cosine, or a smaller share of the descent without f."""


class FairDescent(Remembering):
    """A common descent direction that also makes losses more equal, with the length of the mean.

    Paper: the global model of FedPG, after FedMDFG, Pan et al., AAAI 2023; by layer FedLF, Pan et al., AAAI 2024.

    Equation: all updates, including those of absent clients, are scaled to one length μ. A vector f = Σ hᵢ Δᵢ over the
    clients present is added to them, also of length μ; it makes losses more equal. If losses are equal, there is no f.
    d is the point nearest to 0 in the convex hull of these vectors. The step is σd, as long as the mean of the updates
    present. An absent client's update is used for ⌊seen/present⌋ rounds (FedLF). The outcome's note ``sigma`` is σ, or
    0 if no direction helps all clients; the coefficients divided by σ are those of d. The note ``cosine`` is the cosine
    between the step and the mean of the updates present, or 0 if the step is 0.

    By Lemma 1 of the FedPG supplement, d is 0 only if no direction helps all clients. This is false: with equal updates
    and unequal losses, f is the opposite of the updates, so d is 0 although each update helps all clients. Near that
    case the step is nearly orthogonal to the mean: for two updates with cosine 0.99 and losses 0.2 and 1.0, the cosine
    between step and mean is 0.09. A run warns once if this cosine is below 0.1; ``least_descent`` avoids such steps.

    Departures:
        - μ is the median length of the updates present. The authors' code takes the mean length; then one client in ten
          that sends 100 times its update makes the step eleven times as long.

    Options:
        least_descent: leave the fairness term f out of a step that it shortens to less than this share (0 = never, as
            in the supplement; 1 = whenever it shortens the step)
        unit: length to which all updates are scaled: the median or the mean length of the updates present
        scope: solve for the whole model, or for each layer (FedLF)
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
    """Cosine between the step and the mean of the updates present; 0 if the step is 0."""
    step, mean = times(A, x), times(A, here / here.sum())
    lengths = norm(step) * norm(mean)
    return float(step @ mean / lengths) if lengths else 0.0


def evening(losses: Array) -> Array:
    """h, the gradient of −cos(losses, 1) with respect to the losses: orthogonal to them, 0 if they are equal."""
    length = norm(losses)
    if length == 0:
        return np.zeros_like(losses)
    p = np.full(len(losses), len(losses) ** -0.5)
    h = ((losses @ p) * losses / length**2 - p) / length
    return h if norm(h) * length > 1e-8 else np.zeros_like(losses)
