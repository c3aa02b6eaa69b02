"""Personal directions that conflict with no other client's update."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity._options import Share, convert
from comity._threads import one_thread
from comity.rules._rule import ZERO_LENGTH
from comity.rules.solvers import Array, cone, root


class Protected(NamedTuple):
    """Coefficients, one row per client, and the worst violation as a cosine."""

    coefficients: Tensor
    residual: float


def protected_directions(G: Tensor, gamma: float = 0.0, count: int | None = None) -> Protected:
    """For each client, or the first ``count``, the direction closest to its update that conflicts with no other update.

    For FedPG's personal models: dᵢ = Δᵢ + (1 − gamma) Σμⱼ Δⱼ, where μ ≥ 0 projects Δᵢ on the cone of all d with d·Δⱼ ≥
    0. With gamma 0 the direction conflicts with no client; with gamma 1 it is the client's own update; in between dᵢ·Δⱼ
    is at least gamma times the negative part of Δᵢ·Δⱼ.
    """
    convert(gamma, Share, "gamma")
    with one_thread():
        added, worst = protect(G.numpy(), count)
    return Protected(torch.from_numpy(np.eye(len(G))[:count] + (1 - gamma) * added), worst)


def protect(G: Array, count: int | None = None) -> tuple[Array, float]:
    """Row i < ``count``: the μ ≥ 0 that project Δᵢ on the cone of all d with d·Δⱼ ≥ 0; and the worst residual."""
    moved = np.flatnonzero(G.diagonal() > ZERO_LENGTH**2)
    added, worst = np.zeros_like(G)[:count], 0.0
    if len(moved):
        r = np.sqrt(G.diagonal()[moved])
        A = root(G[np.ix_(moved, moved)] / r / r[:, None])
        for i, member in enumerate(moved[moved < len(added)]):
            mu = cone(A, A[:, i])
            added[member, moved] = mu.x * r[i] / r
            worst = max(worst, mu.residual)
    return added, worst
