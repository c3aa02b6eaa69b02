"""AlignedMTL."""

from dataclasses import KW_ONLY
from typing import Literal

import numpy as np
import torch

from comity.rules._rule import By, GramBlock, Rule
from comity.rules.solvers import Solution


class AlignedMTL(Rule):
    """The mean of updates that were made perpendicular and of one length, with as little change as can be.

    Paper: Senushkin et al., CVPR 2023.

    Equation: d = Σ wᵢ Δ'ᵢ with Δ' = σ V S⁻¹ Vᵀ Δ, where S are the singular values of the updates and V their vectors, w
    the weights of the mean, and σ is the smallest singular value.

    Options:
        by: in the mean, clients count all alike (the paper), or by how many samples they have
        scale: σ: the smallest singular value (the paper), the median or the root of the mean square
    """

    _: KW_ONLY
    by: By = "uniform"
    scale: Literal["min", "median", "rmse"] = "min"

    def solve(self, block: GramBlock) -> Solution:
        values, vectors = (part.numpy() for part in torch.linalg.eigh(torch.from_numpy(block.G)))
        kept = values > 1e-10 * values[-1]
        sigma, V = np.sqrt(values[kept]), vectors[:, kept]
        size = {"min": sigma.min(), "median": sigma[(len(sigma) - 1) // 2], "rmse": np.sqrt((sigma**2).mean())}[
            self.scale
        ]
        along = np.einsum("ij,i->j", V, block.weights(self.by) / block.present)
        return Solution(np.einsum("ij,j->i", V, size / sigma * along), 0.0)
