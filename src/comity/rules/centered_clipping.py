"""Centred clipping."""

from dataclasses import KW_ONLY

import numpy as np

from comity._options import Count, Positive
from comity.rules._remembering import SeesLastStep
from comity.rules._rule import GramBlock
from comity.rules.solvers import Solution, times


class CenteredClipping(SeesLastStep):
    """The last step, moved by the mean of what updates differ from it by, none of which counts as longer than a radius.

    Paper: Karimireddy, He and Jaggi, ICML 2021.

    Equation: v ← v + (1/N) Σ (Δᵢ − v) min(1, τ/|Δᵢ − v|), a few times, beginning with the last step (0 in the first
    round); d = v.

    Departures:
        - τ is ``radius`` times the median of |Δᵢ − v|; the paper's is a length, which must be tuned.
        - Clients send updates as they are, not momenta.

    Options:
        radius: how far from the last step an update counts in full, over the median distance
        iterations: how often the step is improved on
    """

    radius: Positive = 1.0
    _: KW_ONLY
    iterations: Count = 1

    def solve(self, block: GramBlock) -> Solution:
        here = block.ages == 0
        x = np.where(here, 0.0, 1.0)
        for _ in range(self.iterations):
            v = times(block.A, x)
            distances = np.sqrt(((block.points - v[:, None]) ** 2).sum(0))
            radius = self.radius * float(np.median(distances))
            counts = np.minimum(1.0, radius / np.maximum(distances, 1e-300)) / block.present
            x = (1 - counts.sum()) * x
            x[here] += counts[: here.sum()]
        return Solution(x, 0.0)
