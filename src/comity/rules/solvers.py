"""Small convex problems on Gram matrices, each solved with a certificate.

Hull and cone problems are solved by Lawson and Hanson's active-set method on a square root A of the Gram matrix: AᵀA =
G, so the columns of A are the updates rotated into N dimensions. Problems with upper bounds are solved by an
interior-point method. Neither needs a regular G: duplicated, opposite and collinear clients are ordinary input. With
many clients the former are solved on a few columns at a time, the latter through A (`Factored`); the certificates are
the same.
"""

import math
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotrs

from comity.rules._many import FEWEST_ADDED, MANY, Attempt, Factored, from_few
from comity.rules._many import Array as Array
from comity.rules._many import Integers as Integers

TOUCHING = 1e-10  # relative distance below which two points are equal up to rounding


class Solution(NamedTuple):
    """The solution of a problem, an upper bound on its distance from the optimum, and optional notes.

    A note is a number, or one number per member.
    """

    x: Array
    residual: float
    notes: Mapping[str, float | Array] = MappingProxyType({})


residual = attrgetter("residual")


def norm(x: Array) -> float:
    return math.sqrt(x @ x)


def root(G: Array) -> Array:
    """A with AᵀA = G, without eigenvalues that are rounding errors (in float32 they may be negative)."""
    r = np.sqrt(G.diagonal())
    values, vectors = torch.linalg.eigh(torch.from_numpy(G / r / r[:, None]))
    values[values < 1e-12 * values[-1]] = 0
    if len(G) > MANY:
        values, vectors = values[values > 0], vectors[:, values > 0]
    return np.ascontiguousarray((vectors * values.sqrt()).mT.numpy() * r)


def gram(A: Array) -> Array:
    T = torch.from_numpy(A)
    return np.asarray((T.mT @ T).numpy())


def min_norm(A: Array) -> Solution:
    """w on the simplex such that Aw is the point of the columns' hull closest to 0; residual |Aw|² − min AᵀAw."""
    if A.shape[1] <= MANY:
        return _nearest_to_zero(A)

    def attempt(places: Integers) -> Attempt:
        x = np.zeros(A.shape[1])
        x[places] = _nearest_to_zero(A[:, places]).x
        y = times(A, x)
        slack = times(A.T, y) - y @ y
        return Attempt(x, -float(slack.min()), slack)

    best = from_few(attempt, times(A.T, A.mean(1)), 1e-13)
    return Solution(best.x, best.residual)


def _nearest_to_zero(A: Array) -> Solution:
    # min |Au|² + σ²(1 − Σu)² over u ≥ 0: the optimal u has the direction of w for any σ, most precisely for σ near |Aw|
    best, sigma = Solution(np.full(A.shape[1], 1 / A.shape[1]), np.inf), 1.0
    while True:
        stacked = np.vstack((A, np.full(A.shape[1], sigma)))
        lengths = np.sqrt((stacked * stacked).sum(0))
        u = nnls(stacked / lengths, np.append(np.zeros(len(A)), 1.0)) / lengths
        w = u / u.sum() if u.any() else best.x
        y = times(A, w)
        best = min(best, Solution(w, float(y @ y - times(A.T, y).min())), key=residual)
        if norm(y) > 1e-3 * sigma or sigma <= 1e-11:
            return best
        sigma = max(norm(y), 1e-11)


def cone(A: Array, d: Array) -> Solution:
    """x ≥ 0 such that d + Ax is the vector closest to d that has no negative product with a column.

    The residual is the most negative product or the complementarity, whichever is larger.
    """

    def certified(x: Array) -> Solution:
        g = times(A.T, d + times(A, x))
        return Solution(x, max(-g.min(), abs(x @ g), 0.0))

    best = certified(nnls(A, -d))
    if best.residual > 1e-12:  # columns that are perpendicular up to rounding mislead the active-set method
        G = gram(A)
        best = min(best, certified(box(G, times(A.T, d), np.full(len(G), 1e6)).x), key=residual)
    return best


def best_worst(A: Array, a: Array, rho: float) -> Solution:
    """x ≥ 0 such that A(a + x), within rho of Aa, has the largest smallest product with a column.

    The dual is min gᵀAw + rho |Aw| on the simplex, g = Aa. For the τ with |Aw| = rho τ its w is that of the hull's
    min-norm point after a shift by τg, and as long as its support stays w is linear in τ: τ is the root of a quadratic.
    The residual is the duality gap over max(1, |value|).
    """
    g = times(A, a)
    if A.shape[1] <= MANY:
        return _best_worst(A, g, rho)

    def attempt(places: Integers) -> Attempt:
        found = _best_worst(A[:, places], g, rho)
        x = np.zeros_like(a)
        x[places] = found.x
        gains = times(A.T, g + times(A, x))
        bound = float(found.notes.get("bound", np.inf))  # an optimum on few columns is at least as good as on all
        return Attempt(x, (bound - float(gains.min())) / max(1.0, abs(bound)), gains - gains[places].min())

    best = from_few(attempt, times(A.T, g), 1e-11)
    return Solution(best.x, best.residual)


def _best_worst(A: Array, g: Array, rho: float) -> Solution:
    b = times(A.T, g)

    def certified(x: Array, bound: float) -> Solution:
        gap = (bound - float((b + times(A.T, times(A, x))).min())) / max(1.0, abs(bound))
        return Solution(x, gap, {"bound": bound})

    best = Solution(np.zeros(A.shape[1]), np.inf)
    high = 1.01 * float(np.sqrt((A * A).sum(0).max())) / rho
    low = 1e-14 * high
    tau = _root_of_quadratic(A, g, rho, low, high, norm(A.mean(1)) / rho)
    for attempt in range(50):
        w = min_norm(A + tau * g[:, None]).x
        reach = norm(times(A, w))
        if reach > 0:
            found = certified((rho / reach) * w, float(b @ w + rho * reach))
            best = min(best, found, key=residual)
        if attempt == 2 and best.residual > 1e-11:
            nearest = min_norm(A).x
            if norm(times(A, nearest)) <= 1e-13:
                # 0 is in the hull: the worst-off client gains at most 0, so a step without conflict is optimal, if it
                # is within reach
                x = cone(A, g).x
                x = x * min(1.0, rho / max(norm(times(A, x)), 1e-300))
                best = min(best, certified(x, float(b @ nearest + rho * norm(times(A, nearest)))), key=residual)
        if best.residual <= 1e-11:
            break
        low, high = (tau, high) if reach > rho * tau else (low, tau)
        tau = _root_of_quadratic(A[:, w > 0], g, rho, low, high, math.sqrt(low * high))
    return best


def _root_of_quadratic(A: Array, g: Array, rho: float, low: float, high: float, otherwise: float) -> float:
    """The τ in (low, high) with |Aw| = rho τ for the w, Σw = 1, that minimises |Aw + τg|."""
    solve = factor(gram(A) + 1.0)  # Σw is fixed, so (Σw)² may be added; regular if columns are affinely independent
    if solve is not None:
        ones, turned = solve(np.ones(A.shape[1])), solve(times(A.T, g))
        p = times(A, ones / ones.sum())  # Aw = p + τq
        q = times(A, ones * (turned.sum() / ones.sum()) - turned)
        u, v, z = rho**2 - float(q @ q), float(p @ q), float(p @ p)  # uτ² − 2vτ − z = 0
        height = math.sqrt(max(v * v + u * z, 0.0))
        for tau in ((v + height) / u, (v - height) / u) if u != 0 else ():
            if low < tau < high:
                return tau
    return otherwise


def geometric_median(A: Array, p: Array) -> Solution:
    """x on the simplex such that Ax has the least mean distance Σ pᵢ|Ax − Aᵢ| to the columns; p sums to 1.

    The residual is the duality gap: any y with |yᵢ| ≤ 1 and Σ pᵢyᵢ = 0 bounds the mean distance from below by Σ
    pᵢyᵢ·Aᵢ.
    """
    lengths = (A * A).sum(0)
    apart = np.sqrt(np.maximum(lengths + lengths[:, None] - 2 * gram(A), 0))
    first = int(times(apart, p).argmin())  # the best column: if a column is the median, it is this one
    toward = A - A[:, [first]]
    distances = np.sqrt((toward * toward).sum(0))
    touching = distances <= TOUCHING * np.sqrt(lengths)
    pulls = np.where(touching, 0.0, p / np.where(touching, 1.0, distances))
    pull, mass = times(toward, pulls), p[touching].sum()
    best = _certified_median(A, p, np.where(touching, p, 0.0) / mass)
    if norm(pull) > mass:  # the other columns pull it away: descend by a Weiszfeld step, then Newton steps
        z = A[:, first] + (1 - mass / norm(pull)) * pull / pulls.sum()
        for _ in range(100):
            toward = A - z[:, None]
            distances = np.maximum(np.sqrt((toward * toward).sum(0)), 1e-300)
            inverse = p / distances
            x = inverse / inverse.sum()
            best = min(best, _certified_median(A, p, x), key=residual)
            if best.residual <= 1e-15:
                break
            y = toward / distances
            gradient = -times(y, p)
            solve = factor(inverse.sum() * np.eye(len(z)) - gram((y * np.sqrt(inverse)).T))
            value, size = float(p @ distances), 1.0
            step = times(A, x) - z if solve is None else -solve(gradient)
            while size > 1e-9 and float(p @ np.sqrt(((toward - size * step[:, None]) ** 2).sum(0))) >= value:
                size /= 2
            z = z + size * step if size > 1e-9 else times(A, x)
    return best


def _certified_median(A: Array, p: Array, x: Array) -> Solution:
    toward = A - times(A, x)[:, None]
    distances = np.sqrt((toward * toward).sum(0))
    touched = distances <= TOUCHING * np.sqrt((A * A).sum(0))
    y = np.where(touched, 0.0, toward / np.where(touched, 1.0, distances))
    if touched.any():  # y is free there: use it to balance the others
        y[:, touched] = (-times(y, p) / p[touched].sum())[:, None]
    y = y - times(y, p)[:, None]
    y = y / max(1.0, float(np.sqrt((y * y).sum(0)).max()))
    return Solution(x, float(p @ distances) - float(p @ (y * A).sum(0)))


def box(G: Array | Factored, q: Array, upper: Array, by_few: bool = False) -> Solution:
    """min ½xᵀGx + qᵀx for 0 ≤ x ≤ upper; the residual is the largest entry of the projected gradient.

    ``by_few`` first solves it on a few of many columns at a time.
    """
    if by_few and isinstance(G, Factored):
        best = _box_by_few(G, q, upper)
    else:
        best = _projected_newton(G, q, upper, np.zeros_like(q))
    if best.residual > 1e-13:
        unit = min(1.0, float(upper.max()))
        scaled = Factored(math.sqrt(unit) * G.A) if isinstance(G, Factored) else unit * G
        x = unit * interior(scaled, q, np.minimum(upper / unit, 1.0) / 2, upper / unit)
        best = min(best, _projected_newton(G, q, upper, x), key=residual)
    return best


def _projected(g: Array, x: Array, upper: Array) -> Array:
    """The gradient g at x without the components that point out of the box."""
    return np.where(x <= 0, np.minimum(g, 0), np.where(x >= upper, np.maximum(g, 0), g))


def _box_by_few(G: Factored, q: Array, upper: Array) -> Solution:
    """Solve ``box`` on a subset: of the columns at a bound, only the most violated ones are added."""
    x, best, stalled = np.zeros_like(q), Solution(np.zeros_like(q), np.inf), 0
    while True:
        g = times(G, x) + q
        off = abs(_projected(g, x, upper))
        best, stalled = (Solution(x, float(off.max())), 0) if off.max() < best.residual else (best, stalled + 1)
        if best.residual <= 1e-14 or stalled == 5:
            return best
        inside = np.flatnonzero((x > 0) & (x < upper))
        worst = np.argsort(-off, kind="stable")[: max(FEWEST_ADDED, np.count_nonzero(x) // 2)]
        places = np.union1d(inside, worst[off[worst] > 0])
        some, x = G.only(places), x.copy()
        x[places] = box(some, g[places] - times(some, x[places]), upper[places]).x


def _projected_newton(G: Array | Factored, q: Array, upper: Array, x: Array) -> Solution:
    """Solve ``box`` by guessing the active bounds: exact once the guess is right, as it is near the solution."""
    best, worse = Solution(x, np.inf), 0
    for _ in range(50):
        g = times(G, x) + q
        x = np.where(x < g, 0.0, np.where(upper - x < -g, upper, x))
        g = times(G, x) + q
        off = _projected(g, x, upper)
        now = Solution(x.copy(), float(abs(off).max()))
        best, worse = (now, 0) if now.residual < best.residual else (best, worse + 1)
        free = np.flatnonzero(((x > 0) & (x < upper)) | (off != 0))
        block = G.only(free) if isinstance(G, Factored) else G[np.ix_(free, free)]
        solve = _shifted(block, np.full(len(free), 1e-10))  # the shift avoids steps where G is flat
        if best.residual <= 1e-15 or worse == 3 or solve is None:
            break
        x[free] = np.clip(x[free] - solve(g[free]), 0.0, upper[free])
    return best


def box_sum(G: Array | Factored, lower: Array, upper: Array, start: Array) -> Solution:
    """min ½xᵀGx for lower ≤ x ≤ upper with Σx = Σ ``start`` (a feasible point); the residual is the duality gap."""
    room, total = upper - lower, float((start - lower).sum())
    x = lower + interior(G, times(G, lower), start - lower, room, total)
    g = times(G, x)
    order = np.argsort(g, kind="stable")
    best = lower.copy()  # the minimum of gᵀx on this set: fill the cheapest entries first
    best[order] += np.clip(total - (np.cumsum(room[order]) - room[order]), 0, room[order])
    return Solution(x, float(g @ (x - best)))


def interior(H: Array | Factored, q: Array, x: Array, upper: Array, total: float | None = None) -> Array:
    """min ½xᵀHx + qᵀx for 0 ≤ x ≤ upper (and Σx = total), from an interior point.

    Mehrotra's predictor-corrector on the slacks S of the bounds and their multipliers Z; stops at rounding accuracy.
    """
    sign = np.array([[1.0], [-1.0]])
    S = np.stack((x, upper - x))
    Z, nu = np.ones_like(S), 0.0
    best, least, stalled = (x, S, Z), np.inf, 0
    for _ in range(100):
        dual = times(H, x) + q + nu - (sign * Z).sum(0)
        primal = 0.0 if total is None else total - x.sum()
        gap = (S * Z).sum()
        best, stalled = ((x, S, Z), 0) if gap < least else (best, stalled + 1)
        least = min(gap, least)
        error = max(abs(dual).max(), abs(primal), np.minimum(S, Z).max())
        solve = _shifted(H, (Z / S).sum(0))
        if error <= 1e-13 * max(1.0, x.max()) or stalled == 3 or solve is None:
            break
        along = None if total is None else solve(np.ones_like(q))
        C = -S * Z
        for last in (False, True):
            dx, dnu = solve((sign * C / S).sum(0) - dual), 0.0
            if along is not None:
                dnu = (dx.sum() - primal) / along.sum()
                dx = dx - dnu * along
            dS = sign * dx
            dZ = (C - Z * dS) / S
            step = 1 / max((-dS / S).max(), (-dZ / Z).max(), 0.995)
            if not last:
                step = min(step, 1.0)
                left = ((S + step * dS) * (Z + step * dZ)).sum()
                C = C - dS * dZ + (left / gap) ** 3 * gap / S.size
        step = min(1.0, 0.995 * step)
        x, S, Z, nu = x + step * dx, S + step * dS, Z + step * dZ, nu + step * dnu
    x, S, Z = best
    return np.where(S[0] < 1e-6 * Z[0], 0.0, np.where(S[1] < 1e-6 * Z[1], upper, x))


def _shifted(H: Array | Factored, diagonal: Array) -> Callable[[Array], Array] | None:
    """A function that solves (H + D)x = b, or None if the matrix is not positive definite."""
    if isinstance(H, Factored):
        return H.shifted(diagonal)
    K = H.copy()
    K.flat[:: len(K) + 1] += diagonal
    return factor(K)


def nnls(A: Array, b: Array) -> Array:
    """x ≥ 0 that minimises |Ax − b|; 0 if the method gives up, which the certificate then shows."""
    from scipy.optimize import nnls as lawson_hanson  # 0.2 s, which most runs do without

    try:
        return np.asarray(lawson_hanson(A, b, maxiter=30 * A.shape[1])[0])
    except RuntimeError:
        return np.zeros(A.shape[1])


def times(A: Array | Factored, x: Array) -> Array:
    """Ax without BLAS, which splits larger products over all cores: another split gives other bits."""
    if isinstance(A, Factored):
        return A.times(x)
    return np.asarray(np.einsum("ij,j->i", A, x))


def factor(K: Array) -> Callable[[Array], Array] | None:
    """A function that solves Kx = b, or None if K is not positive definite."""
    if len(K) <= 64:
        L, wrong = dpotrf(K, lower=1)
        return None if wrong else lambda b: np.asarray(dpotrs(L, b, lower=1)[0])
    # larger matrices go to torch, whose thread count we set; see `times`
    L, wrong = torch.linalg.cholesky_ex(torch.from_numpy(K))
    return None if wrong else lambda b: np.asarray(torch.cholesky_solve(torch.from_numpy(b)[:, None], L)[:, 0].numpy())
