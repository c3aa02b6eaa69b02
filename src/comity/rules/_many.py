"""Solvers for many clients: Gram matrices that are never formed, and problems solved on a subset of columns."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MANY = 400  # clients above which solvers never factorise a matrix with one row per client
FEWEST_ADDED = 64  # columns added at once, unless half the active columns are more

TINY_DIAGONAL = 1e-3  # diagonal entries below this count as 0, for updates of length about 1


class Factored(NamedTuple):
    """AᵀA for an A with few rows; multiplication and linear systems use A only."""

    A: Array

    def __len__(self) -> int:
        return int(self.A.shape[1])

    def times(self, x: Array) -> Array:
        A = torch.from_numpy(self.A)
        return np.asarray((A.mT @ (A @ torch.from_numpy(x))).numpy())

    def only(self, places: Integers) -> "Array | Factored":
        """The submatrix with these rows and columns."""
        A = self.A[:, places]
        T = torch.from_numpy(A)
        return Factored(A) if len(places) > len(A) else np.asarray((T.mT @ T).numpy())

    def shifted(self, diagonal: Array) -> Callable[[Array], Array] | None:
        """A function that solves (AᵀA + D)x = b for a positive diagonal D, or None if rounding makes that impossible.

        y = Ax has few numbers (Woodbury): x = (b − Aᵀy)/D. Where D is close to 0 this divides rounding errors by
        rounding errors, so these entries are solved directly after the others have been eliminated.
        """
        smallest = np.sort(np.argsort(diagonal, kind="stable")[: 2 * len(self.A)])
        small = torch.from_numpy(smallest[diagonal[smallest] < TINY_DIAGONAL])
        A, D = torch.from_numpy(self.A), torch.from_numpy(diagonal)
        rest = torch.ones(len(D), dtype=torch.bool)
        rest[small] = False
        R, inverse = A[:, rest], 1 / D[rest]
        B = R * inverse.sqrt()
        L, wrong = torch.linalg.cholesky_ex(torch.eye(len(A), dtype=A.dtype) + B @ B.mT)
        V = torch.linalg.solve_triangular(L, A[:, small], upper=False)
        K, failed = torch.linalg.cholesky_ex(V.mT @ V + D[small].diag())
        if wrong or failed:
            return None

        def solve(given: Array) -> Array:
            b, x = torch.from_numpy(given), torch.empty(len(D), dtype=A.dtype)
            t = torch.linalg.solve_triangular(L, (R @ (inverse * b[rest]))[:, None], upper=False)
            x[small] = torch.cholesky_solve(b[small, None] - V.mT @ t, K)[:, 0]
            y = torch.linalg.solve_triangular(L.mT, V @ x[small, None] + t, upper=True)[:, 0]
            x[rest] = inverse * (b[rest] - R.mT @ y)
            return np.asarray(x.numpy())

        return solve


class Attempt(NamedTuple):
    """A solution on some of the columns, checked on all of them."""

    x: Array  # (n,) 0 for columns that were left out
    residual: float
    slack: Array  # (n,) negative for violated columns, which would change the solution


def from_few(attempt: Callable[[Integers], Attempt], first: Array, target: float) -> Attempt:
    """Solve a problem with many columns by column generation: the most violated columns are added.

    Starts from the columns with the lowest values in ``first``. Active columns stay; inactive ones may be removed.
    """
    places = np.sort(np.argsort(first, kind="stable")[:FEWEST_ADDED])
    best, stalled = Attempt(np.zeros_like(first), np.inf, first), 0
    while True:
        found = attempt(places)
        best, stalled = (found, 0) if found.residual < best.residual else (best, stalled + 1)
        slack = found.slack.copy()
        slack[places] = 0.0
        worst = np.argsort(slack, kind="stable")[: max(FEWEST_ADDED, np.count_nonzero(found.x) // 2)]
        worst = worst[slack[worst] < 0]
        if best.residual <= target or stalled == 20 or not len(worst):
            return best
        kept = places if stalled else np.flatnonzero(found.x)
        places = np.union1d(kept, worst)
