"""CRAFT."""

from dataclasses import KW_ONLY

import numpy as np

from comity.rules._length import Length
from comity.rules._remembering import SeesLastStep
from comity.rules._rule import By, GramBlock, Scope
from comity.rules.solvers import Solution, least_squares


class CRAFT(SeesLastStep):
    """The direction nearest to the last one that goes along with every client's by its share.

    Paper: Wang, Liu and Thuerey, 2026 (arXiv 2605.21317); without the last step it is ConFIG, Liu et al., ICLR 2025.

    Equation: in each layer d = ĝ + U⁺(ρ − Uĝ), where the rows of U are the updates at length 1, ĝ is the last step at
    length 1 (0 in the first round) and ρ the clients' shares: of all d with Uᵢ·d = ρᵢ the one nearest to ĝ.

    Departures:
        - The step has the length of the mean. As printed (``length="own"``) it has no scale of its own; the paper takes
          a server rate of 0.1.
        - Singular values of U below a thousandth of the largest count as 0: in float32 they are rounding.

    Options:
        by: shares are those of the samples (the paper), or all alike
        scope: each layer by itself (the paper), or the whole model at once
    """

    certificate = "residual of the normal equations"
    target = 1e-9

    _: KW_ONLY
    by: By = "size"
    scope: Scope = "layer"
    length: Length = "mean"

    def solve(self, block: GramBlock) -> Solution:
        here, last = np.flatnonzero(block.ages == 0), np.flatnonzero(block.ages)
        r, shares = np.sqrt(block.G.diagonal()), block.weights(self.by)[here]
        U = block.G / r / r[:, None]
        best = least_squares(U[np.ix_(here, here)], shares / shares.sum() - U[np.ix_(here, last)].sum(1))
        x = np.ones(len(r))
        x[here] = best.x
        return Solution(x / (block.unit * r), best.residual)
