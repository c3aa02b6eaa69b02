"""Families of update matrices that the rules are tried on."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

quick = settings(deadline=None, derandomize=True, max_examples=25, database=None)

KINDS = (
    "random",
    "agreeing",
    "duplicated",
    "opposite",
    "collinear",
    "parallel",
    "zeros",
    "low rank",
    "orthogonal",
    "signs",
    "lengths",
    "one client",
)


def family(kind: str, n: int, seed: int, scale: float = 1.0) -> Tensor:
    """(N, P) float64 of the named kind, about n rows, with entries around ``scale``."""
    rng = np.random.default_rng(seed)
    U = rng.normal(size=(n, 2 * n + 1))
    if kind == "agreeing":
        U += 1.0
    elif kind == "duplicated":
        U = np.concatenate((U, U[: n // 2 + 1]))
    elif kind == "opposite":
        U = np.concatenate((U, -U[: n // 2 + 1]))
    elif kind == "collinear":
        U = rng.normal(size=(n, 1)) * U[:1]
    elif kind == "parallel":
        U = rng.uniform(0.1, 3, size=(n, 1)) * U[:1]
    elif kind == "zeros":
        U[: n // 2 + 1] = 0
    elif kind == "low rank":
        U = rng.normal(size=(n, max(1, n // 2))) @ rng.normal(size=(max(1, n // 2), 2 * n))
    elif kind == "orthogonal":
        U = np.linalg.qr(U.T)[0].T
    elif kind == "signs":
        U = np.sign(U[:, : max(1, n // 2)])
    elif kind == "lengths":
        U *= 10 ** rng.uniform(-6, 6, size=(n, 1))
    elif kind == "one client":
        U = U[:1]
    return scale * torch.from_numpy(np.ascontiguousarray(U))


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
