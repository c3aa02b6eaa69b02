"""Diagnosis from Gram matrices: which clients' updates help and which harm each other."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.rules._updates import ClientUpdates, Id
from comity.rules.projection import COSINE_ROUNDING, conflicts


class ConflictRate(NamedTuple):
    """Shares of conflicting pairs, 0 to 1."""

    overall: float  # over all pairs and layers (FedCALM, Definition 2)
    layers: Tensor  # (L,) over all pairs
    pairs: Tensor  # (N, N) over all layers
    error: float = 0.0  # expected share of pairs and layers that sketches misjudge


def conflict_rate(u: ClientUpdates) -> ConflictRate:
    """Share of client pairs whose updates conflict in a layer (a cosine above −1e-7 is no conflict)."""
    against = torch.from_numpy(np.stack([conflicts(G) for G in u.grams.numpy()])).double()
    pairs = max(len(u) * (len(u) - 1), 1)
    layers = against.sum((1, 2)) / pairs
    return ConflictRate(float(layers.mean()), layers, against.mean(0), _misjudged(u))


def _misjudged(u: ClientUpdates) -> float:
    """Mean probability that a sketched cosine has the wrong sign."""
    if u.sketch is None:
        return 0.0
    exact = u.sketch.exact(u.original)
    wrong = 0.0
    for G in (G for G, whole in zip(u.grams, exact, strict=True) if not whole):
        r = G.diagonal().sqrt()
        cosine = torch.where(r[:, None] * r > 0, G / (r[:, None] * r), 1.0)
        chance = torch.special.ndtr(-cosine.abs() * math.sqrt(u.sketch.k) / (1 + cosine**2).sqrt())
        wrong += float(chance.fill_diagonal_(0).sum())
    return wrong / max(len(u) * (len(u) - 1), 1) / len(exact)


def cosines(u: ClientUpdates) -> Tensor:
    """(N, N) cosine of each pair of updates over the whole model, 0 for updates of length 0."""
    r = u.gram.diagonal().sqrt()
    return torch.where(r[:, None] * r > 0, u.gram / (r[:, None] * r), 0.0)


def harm(u: ClientUpdates, lr: float) -> Tensor:
    """(N, N) first-order increase of client j's loss by client i's update: −Δᵢ·Δⱼ/lr (ConFREE, Equation 7)."""
    return -u.gram / lr


class LossChange(NamedTuple):
    """First-order change of the clients' summed loss by the plain mean; negative if it falls."""

    total: float  # including the effect of a client's own update: −|mean|²/lr (ConFREE, Equation 8)
    others: float  # effect of other clients' updates only: positive if they conflict more than they agree
    layers: Tensor  # (L,) ``others`` by layer (FedCALM, Equation 10)


def loss_change(u: ClientUpdates, lr: float) -> LossChange:
    """−Σ pᵢpⱼ Δᵢ·Δⱼ/lr over all pairs of clients present, and over pairs of different clients."""
    p = u.shares
    own = (u.grams.diagonal(dim1=1, dim2=2) * p**2).sum(1)
    layers = (own - u.lengths(p) ** 2) / lr
    return LossChange(-float(p @ u.gram @ p) / lr, float(layers.sum()), layers)


def improvement(u: ClientUpdates, coefficients: Tensor) -> Tensor:
    """(N,) first-order decrease of each client's loss by a combination, times the learning rate: d·Δⱼ.

    ``coefficients`` are a rule's, (N,), (1, N) or (L, N); the worst-off client has the smallest value.
    """
    return u.gains(coefficients)


def against(u: ClientUpdates, coefficients: Tensor) -> list[Id]:
    """Ids of clients present whose loss a combination increases to first order, beyond rounding."""
    rounding = COSINE_ROUNDING * u.lengths(coefficients).norm() * u.squares.sqrt()
    hurt = (improvement(u, coefficients) < -rounding) & (u.ages == 0)
    return [u.ids[i] for i in hurt.nonzero()[:, 0].tolist()]
