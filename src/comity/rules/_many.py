"""What solvers do with many clients: Gram matrices that are never made, and problems with few of the columns."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

MANY = 400  # clients above which a solver goes this way: no factorisation of a matrix with a row for each
FEWEST_ADDED = 64  # columns that join at once, or half as many as already count

NEXT_TO_NOTHING = 1e-3  # of a diagonal, beside a Gram matrix of updates about 1 long


class Factored(NamedTuple):
    """AᵀA for a flat A: products go through A, and so do solutions of equations."""

    A: Array

    def __len__(self) -> int:
        return int(self.A.shape[1])

    def times(self, x: Array) -> Array:
        A = torch.from_numpy(self.A)
        return np.asarray((A.mT @ (A @ torch.from_numpy(x))).numpy())

    def only(self, places: Integers) -> "Array | Factored":
        """The rows and columns of these places."""
        A = self.A[:, places]
        T = torch.from_numpy(A)
        return Factored(A) if len(places) > len(A) else np.asarray((T.mT @ T).numpy())

    def shifted(self, diagonal: Array) -> Callable[[Array], Array] | None:
        """What solves (AᵀA + D)x = b for a positive diagonal D, or None if rounding forbids it.

        y = Ax has few numbers (Woodbury): x = (b − Aᵀy)/D. Where D is next to nothing that is rounding over rounding;
        these places are solved for themselves, after the others have been eliminated.
        """
        smallest = np.sort(np.argsort(diagonal, kind="stable")[: 2 * len(self.A)])
        small = torch.from_numpy(smallest[diagonal[smallest] < NEXT_TO_NOTHING])
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
    """A solution on some of the columns, judged on all."""

    x: Array  # (n,) 0 for all others
    residual: float
    slack: Array  # (n,) below 0 where a column is violated: with it the solution would be another


def from_few(attempt: Callable[[Integers], Attempt], first: Array, target: float) -> Attempt:
    """The solution of a problem with many columns from solutions with few of them: those violated most join.

    It begins with the columns that are lowest in ``first``. A column that counts stays; one that does not may leave.
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
