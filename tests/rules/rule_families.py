"""Families of update matrices that the rules are tried on."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from comity import rules as R

quick = settings(deadline=None, derandomize=True, max_examples=25, database=None)

KINDS = (
    *("random", "agreeing", "duplicated", "opposite", "collinear", "parallel", "zeros", "low rank", "orthogonal"),
    *("signs", "lengths", "one client"),
)


def family(kind: str, n: int, seed: int, scale: float = 1.0) -> Tensor:
    """(N, P) float64 of the named kind, about n rows, with entries around ``scale``."""
    rng = np.random.default_rng(seed)
    U, some, half = rng.normal(size=(n, 2 * n + 1)), n // 2 + 1, max(1, n // 2)
    made = {
        "random": lambda: U,
        "agreeing": lambda: U + 1.0,
        "duplicated": lambda: np.concatenate((U, U[:some])),
        "opposite": lambda: np.concatenate((U, -U[:some])),
        "collinear": lambda: rng.normal(size=(n, 1)) * U[:1],
        "parallel": lambda: rng.uniform(0.1, 3, size=(n, 1)) * U[:1],
        "zeros": lambda: np.where(np.arange(n)[:, None] < some, 0, U),
        "low rank": lambda: rng.normal(size=(n, half)) @ rng.normal(size=(half, 2 * n)),
        "orthogonal": lambda: np.linalg.qr(U.T)[0].T,
        "signs": lambda: np.sign(U[:, :half]),
        "lengths": lambda: U * 10 ** rng.uniform(-6, 6, size=(n, 1)),
        "one client": lambda: U[:1],
    }
    return scale * torch.from_numpy(np.ascontiguousarray(made[kind]()))


matrices = st.builds(
    family,
    st.sampled_from(KINDS),
    st.integers(1, 8),
    st.integers(0, 10_000),
    st.sampled_from((1e-6, 1e-3, 1.0, 1e3, 1e6)),
)
"""Every family, at scales from 1e-6 to 1e6."""

tame = st.builds(
    family, st.sampled_from([kind for kind in KINDS if kind != "lengths"]), st.integers(1, 7), st.integers(0, 10_000)
)
"""Without lengths 1e12 apart, and of scale 1: for independent solvers, which are not made for more."""


def close(a: Tensor, b: Tensor, U: Tensor, tolerance: float = 1e-9) -> bool:
    """Whether two combinations of the rows of U are the same but for rounding, which is relative to the longest row."""
    return float((a - b).norm()) <= tolerance * max(float(U.norm(dim=1).max()), float(a.norm()))


ALL = [
    R.Mean(),
    R.Projection(),
    R.Projection(order="sequential"),
    R.ConFREE(),
    R.CALM(),
    R.CALM(scale="layer"),
    R.MGDA(),
    R.MGDA(normalise=True, length="mean"),
    R.FedMGDAPlus(),
    R.FedMGDAPlus(norm_restore=True),
    R.FedFV(),
    R.FairDescent(),
    R.MGDA(cap=0.4),
    R.UPGrad(),
    R.CAGrad(),
    R.GeometricMedian(),
]


def losses_of(U: Tensor) -> Tensor:
    """Losses that go with the rows, so that they move with them."""
    return 1 + (U.abs().sum(1) / U.abs().sum(1).max().clamp_min(1e-300))


def conflict(u: Tensor, v: Tensor) -> bool:
    return float(u @ v) < -1e-7 * float(u.norm() * v.norm())


def equation_9(U: Tensor, weights: Tensor | None = None) -> Tensor:
    projected = []
    for i in range(len(U)):
        p = U[i].clone()
        for j in range(len(U)):
            if j != i and conflict(U[i], U[j]):
                p -= (U[i] @ U[j]) / (U[j] @ U[j]) * U[j]
        projected.append(p)
    return torch.stack(projected).mean(0) if weights is None else weights @ torch.stack(projected)
