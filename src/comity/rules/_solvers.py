"""Small convex problems on Gram matrices, each answered with its certificate.

One primal-dual interior-point method serves them all. It asks for no strictly convex objective, so duplicated, opposite
and collinear clients are ordinary input. Matrices come positive semidefinite with diagonals around 1.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

Array = NDArray[np.float64]


class Solution(NamedTuple):
    x: Array
    residual: float


def min_norm(G: Array) -> Solution:
    """The point of the convex hull nearest to 0, min wᵀGw on the simplex; the residual is wᵀGw − min(Gw)."""
    n = len(G)
    w = interior(G, np.zeros(n), np.full(n, 1 / n), total=1.0)
    w /= w.sum()
    g = times(G, w)
    return Solution(w, float(w @ g - g.min()))


def best_worst(G: Array, a: Array, rho: float) -> Solution:
    """The d = (a + x)U within rho of aU whose smallest d·Δⱼ is largest; the residual is the duality gap over max(1, |value|).

    The dual is min bᵀw + rho √(wᵀGw) on the simplex, b = Ga, and x points along w. Where that norm is 0 (0 lies in the
    hull, so no d does better than 0) w has no direction; the nearest d that hurts nobody is then as good as any.
    """
    n, b = len(G), times(G, a)
    w = interior(G, b, np.full(n, 1 / n), total=1.0, rho=rho)
    w /= w.sum()
    norm = np.sqrt(max(w @ times(G, w), 0.0))
    bound = b @ w + rho * norm
    tried = [(rho / norm) * w if norm > 1e-12 else np.zeros(n)]
    if norm < 1e-6:
        x = cone(G, b).x
        tried.append(x * min(1.0, rho / max(np.sqrt(max(x @ times(G, x), 0.0)), 1e-300)))
    worst = [float((b + times(G, x)).min()) for x in tried]
    best = int(np.argmax(worst))
    return Solution(tried[best], (bound - worst[best]) / max(1.0, abs(bound)))


def cone(G: Array, b: Array) -> Solution:
    """min ½xᵀGx + bᵀx for x ≥ 0, b = Ga: (a + x)U is the vector nearest to aU with no negative product with any row.

    The residual is the worst negative product, or the complementarity, whichever is larger.
    """
    scale = max(1.0, float(abs(b).max()))
    x = scale * interior(G, b / scale, np.ones(len(G)))
    g = times(G, x) + b
    return Solution(x, max(-g.min(), abs(x @ g), 0.0) / scale)


def box(G: Array, q: Array, upper: Array) -> Solution:
    """min ½xᵀGx + qᵀx for 0 ≤ x ≤ upper; the residual is the largest entry of the projected gradient."""
    unit = min(1.0, float(upper.max()))
    x = unit * interior(unit * G, q, np.minimum(upper / unit, 1.0) / 2, upper / unit)
    best, residual = x, np.inf
    for _ in range(20):  # projected Newton steps: from almost to exactly on the bounds
        x = np.clip(x, 0.0, upper)
        g = times(G, x) + q
        off = np.where(x <= 0, np.minimum(g, 0), np.where(x >= upper, np.maximum(g, 0), g))
        if abs(off).max() < residual:
            best, residual = x.copy(), float(abs(off).max())
        free = np.flatnonzero(((x > 0) & (x < upper)) | (off != 0))
        solve = _factor(G[np.ix_(free, free)] + 1e-13 * np.eye(len(free)))
        if residual <= 1e-15 or solve is None:
            break
        x[free] -= solve(g[free])
    return Solution(best, residual)


def box_sum(G: Array, lower: Array, upper: Array, start: Array) -> Solution:
    """min ½xᵀGx for lower ≤ x ≤ upper with the sum of ``start``, which lies inside; the residual is the duality gap."""
    room, total = upper - lower, float((start - lower).sum())
    x = lower + interior(G, times(G, lower), start - lower, room, total)
    g = times(G, x)
    order = np.argsort(g, kind="stable")
    best = lower.copy()  # the smallest gᵀx on this set: fill up the cheapest first
    best[order] += np.clip(total - (np.cumsum(room[order]) - room[order]), 0, room[order])
    return Solution(x, float(g @ (x - best)))


def interior(
    H: Array, q: Array, x: Array, upper: Array | None = None, total: float | None = None, rho: float | None = None
) -> Array:
    """min ½xᵀHx + qᵀx for 0 ≤ x (≤ upper, Σx = total), from a point inside; with rho, min rho √(xᵀHx) + qᵀx.

    Mehrotra's predictor and corrector on the slacks S of all bounds and their multipliers Z.
    """
    sign = np.array([[1.0], [-1.0]])[: 1 if upper is None else 2]
    S = x[None].copy() if upper is None else np.stack((x, upper - x))
    Z, nu = np.ones_like(S), 0.0
    best, error, worse = (x, S, Z), np.inf, 0
    for _ in range(100):
        Hx, K = times(H, x), H.copy()
        if rho is not None:
            norm = np.sqrt(x @ Hx + 1e-18)
            K = (rho / norm) * (K - np.outer(Hx / norm, Hx / norm))
            Hx = (rho / norm) * Hx
        dual = Hx + q + nu - (sign * Z).sum(0)
        primal = 0.0 if total is None else total - x.sum()
        gap = (S * Z).sum()
        now = max(abs(dual).max(), abs(primal), gap)
        best, worse = ((x, S, Z), 0) if now < error else (best, worse + 1)
        error = min(now, error)
        if error <= 1e-14 or worse == 5:
            break
        K.flat[:: len(q) + 1] += (Z / S).sum(0)
        solve = _factor(K)
        if solve is None:
            break
        v = None if total is None else solve(np.ones_like(q))
        C = -S * Z
        for corrector in (False, True):
            dx, dnu = solve((sign * C / S).sum(0) - dual), 0.0
            if v is not None:
                dnu = (dx.sum() - primal) / v.sum()
                dx = dx - dnu * v
            dS = sign * dx
            dZ = (C - Z * dS) / S
            step = 1 / max((-dS / S).max(), (-dZ / Z).max(), 1.0 if not corrector else 0.995)
            if not corrector:
                left = ((S + step * dS) * (Z + step * dZ)).sum()
                C = C - dS * dZ + (left / gap) ** 3 * gap / S.size
        step = min(1.0, 0.995 * step)
        x, S, Z, nu = x + step * dx, S + step * dS, Z + step * dZ, nu + step * dnu
    x, S, Z = best
    x = np.where(S[0] < Z[0], 0.0, x)
    return x if upper is None else np.where(S[1] < Z[1], upper, x)


def semidefinite(G: Array) -> Array:
    """G without the negative eigenvalues that float32 rounding may give a Gram matrix."""
    r = np.sqrt(G.diagonal())
    cosines = G / r / r[:, None]
    if _factor(cosines + 1e-14 * np.eye(len(G))) is not None:
        return G
    values, vectors = torch.linalg.eigh(torch.from_numpy(cosines))
    root = torch.from_numpy(r)[:, None] * vectors * values.clamp_min(0).sqrt()
    return np.asarray((root @ root.mT).numpy())


def times(G: Array, x: Array) -> Array:
    return np.einsum("ij,j->i", G, x)


def _factor(K: Array) -> Callable[[Array], Array] | None:
    """What solves Kx = b, or None if K is not positive definite."""
    if len(K) <= 64:
        L, info = dpotrf(K, lower=1)
        return None if info else lambda b: np.asarray(dpotrs(L, b, lower=1)[0])
    # SciPy's LAPACK splits larger matrices over every core it finds, and other splits are other bits
    factor, wrong = torch.linalg.cholesky_ex(torch.from_numpy(K))
    return None if wrong else lambda b: torch.cholesky_solve(torch.from_numpy(b)[:, None], factor)[:, 0].numpy()
