"""N updates of one layout: everything a rule may look at."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.rules._threads import in_order

T = TypeVar("T")
Id = int | str
Rows = Tensor | np.ndarray[Any, Any] | Sequence[Tensor] | Sequence[Mapping[str, Tensor]]

WIDEST = 32_768  # columns in a piece: float32 sums stay short, and the product outweighs the call
LARGEST = 2**22  # numbers in a piece: 16 MB of a matrix that may lie on disk
LONGEST = 1e38  # squared length that float32 still holds
NARROW = 4_096  # columns up to which products are float64
MANY = 16  # pieces from which on threads that were asked for save more than it takes to start them
BAND = 256  # rows of a Gram matrix computed at once; what lies below the diagonal is mirrored


class DroppedWarning(UserWarning):
    """An update was left out: not finite, or not of the shape of the others."""


class Piece(NamedTuple):
    layer: int
    columns: slice


class Updates:
    """N updates of one layout: the matrix of their rows, its Gram matrices, and who sent them.

    ``rows`` is an (N, P) tensor or array (a memory-mapped one is read in pieces and never copied whole), a list of
    vectors, or a list of state dicts; with ``base`` they are models, and updates are what they differ from it by.
    ``threads`` read them if they are large, torch's own number by default; it changes no bit. A member whose shape is
    not the most common one, or that is not finite, is dropped and named in ``dropped``; the rest goes on.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        layout: Layout | None = None,
        sizes: Sequence[float] | Tensor | None = None,
        losses: Sequence[float] | Tensor | None = None,
        ids: Sequence[Id] | None = None,
        base: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        count = len(rows)
        if count == 0:
            raise ComityError("no updates were given; a rule needs at least one")
        ids = range(count) if ids is None else ids
        sizes = torch.ones(count) if sizes is None else sizes
        for name, values in (("ids", ids), ("sizes", sizes), ("losses", losses)):
            if values is not None and len(values) != count:
                raise ComityError(f"{name} has {len(values)} entries for {count} updates")
        self._parts, self.layout, misshaped = _read(rows, layout)
        good = [i for i in range(count) if i not in misshaped]
        self._ids = tuple(ids[i] for i in good)
        self._sizes = torch.as_tensor(sizes, dtype=torch.float64)[good]
        if not ((self._sizes > 0) & self._sizes.isfinite()).all():
            raise ComityError(f"sizes are {self._sizes.tolist()}; each must be positive")
        self._losses = None if losses is None else torch.as_tensor(losses, dtype=torch.float64)[good]
        self._ages = torch.zeros(len(good), dtype=torch.int64)
        self._base, self._based, self._threads = base, len(good), threads
        self._dropped = {ids[i]: reason for i, reason in misshaped.items()}
        _warn(self._dropped)

    # Who takes part. The finite ones are told from the rest when first asked for: with the Gram matrices, which say it
    # for nothing, or by a pass over the rows when a rule needs no Gram matrix.

    @cached_property
    def _kept(self) -> list[int]:
        if "_products" in self.__dict__:
            squares = self._products.diagonal(dim1=1, dim2=2).sum(0)
        else:
            squares = torch.zeros(len(self._ids), dtype=torch.float64)
            for length in self._sweep(lambda piece: torch.linalg.vector_norm(self._take(piece.columns), dim=1)):
                squares += length.cpu().double() ** 2
        kept, lost = [], {}
        for i, name in enumerate(self._ids):
            if not squares[i] < LONGEST:
                wrong = int((~torch.isfinite(self._row(i))).sum())
                numbers = f"{wrong:,} of its {self.layout.size:,} numbers are not finite"
                lost[name] = numbers if wrong else "its length is beyond float32"
            elif self._losses is not None and self._ages[i] == 0 and not torch.isfinite(self._losses[i]):
                lost[name] = f"its loss is {float(self._losses[i])}"
            else:
                kept.append(i)
        _warn(lost)
        self._dropped |= lost
        return kept

    @property
    def ids(self) -> tuple[Id, ...]:
        return tuple(self._ids[i] for i in self._kept)

    @property
    def sent(self) -> tuple[Id, ...]:
        """Who sent an update of the right shape, finite or not."""
        return self._ids

    @property
    def sizes(self) -> Tensor:
        """(N,) float64; ones when none were given."""
        return self._sizes[self._kept]

    @property
    def losses(self) -> Tensor | None:
        """(N,) float64, before local training; None when none were given."""
        return None if self._losses is None else self._losses[self._kept]

    @property
    def ages(self) -> Tensor:
        """(N,) how many rounds ago each update was sent: 0, or more for those that a rule remembers."""
        return self._ages[self._kept]

    @property
    def shares(self) -> Tensor:
        """(N,) float64, the weights of the plain mean: by size, over those present."""
        sizes = self.sizes
        return sizes / sizes.sum().clamp_min(torch.finfo(torch.float64).tiny)

    @property
    def dropped(self) -> dict[Id, str]:
        """Who was left out, and why."""
        self._kept  # noqa: B018 - finds those that are not finite
        return self._dropped

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"Updates({len(self)} of {self.layout})"

    # What they are.

    @cached_property
    def grams(self) -> Tensor:
        """(L, N, N) float64, one a layer: float32 products of pieces of columns, added up in float64."""
        products, kept = self._products, self._kept
        return products if len(kept) == len(self._ids) else products[:, kept][:, :, kept]

    @cached_property
    def gram(self) -> Tensor:
        """(N, N) float64, the whole model's."""
        return self.grams.sum(0)

    def combine(self, coefficients: Tensor) -> Tensor:
        """(P,) the updates combined with coefficients (N,), (1, N), or (L, N): for each layer its own."""
        return self._combined(
            coefficients.reshape(-1, len(self))[:, None] if len(self) else coefficients.new_zeros(1, 1, 0)
        )[0]

    def mix(self, coefficients: Tensor) -> Tensor:
        """(M, P) several combinations at once, from coefficients (M, N)."""
        return self._combined(coefficients[None])

    def row(self, i: int) -> Tensor:
        """(P,) the update of ``ids[i]``."""
        return self._row(self._kept[i])

    def only(self, chosen: Sequence[int]) -> "Updates":
        """Those of ``ids[i]`` for ``i`` in ``chosen``."""
        kept = [self._kept[i] for i in chosen]
        few = object.__new__(Updates)
        few._parts, few.layout = tuple(self._part(i) for i in kept), self.layout
        few._ids, few._sizes = tuple(self._ids[i] for i in kept), self._sizes[kept]
        few._losses = None if self._losses is None else self._losses[kept]
        few._ages, few._dropped, few._threads = self._ages[kept], {}, self._threads
        few._base, few._based = self._base, sum(i < self._based for i in kept)
        return few

    def joined(self, ids: Sequence[Id], rows: Tensor, ages: Tensor) -> "Updates":
        """These and the updates that absent clients sent ``ages`` rounds ago; the plain mean stays that of these."""
        both = object.__new__(Updates)
        both._parts, both.layout = (*self._parts, rows), self.layout
        both._base, both._based, both._threads = self._base, self._based, self._threads
        both._ids = (*self._ids, *ids)
        both._sizes = torch.cat((self._sizes, torch.zeros(len(ids), dtype=torch.float64)))
        unknown = torch.full((len(ids),), math.nan, dtype=torch.float64)
        both._losses = None if self._losses is None else torch.cat((self._losses, unknown))
        both._ages = torch.cat((self._ages, ages))
        both._dropped = self._dropped
        return both

    # How it is read: in pieces of columns, none across two layers, the same pieces whatever the number of threads.

    @cached_property
    def _products(self) -> Tensor:
        count = len(self._ids)
        grams = torch.zeros(len(self.layout), count, count, dtype=torch.float64)

        def product(piece: Piece) -> tuple[int, Tensor]:
            U = self._take(piece.columns)
            # a layer with few columns may have a singular Gram matrix; in float64 it costs nothing and stays one
            U = U.double() if U.shape[1] <= NARROW else _at_least_float32(U)
            G = torch.zeros(count, count, dtype=U.dtype, device=U.device)
            for i in range(0, count, BAND):
                torch.mm(U[i : i + BAND], U[i:].mT, out=G[i : i + BAND, i:])
            return piece.layer, G.cpu()

        for layer, G in self._sweep(product):
            grams[layer] += G
        return grams.triu() + grams.triu(1).mT

    def _combined(self, coefficients: Tensor) -> Tensor:
        rows = None if len(self) == len(self._ids) else self._kept
        result = torch.zeros(coefficients.shape[1], self.layout.size, dtype=self.dtype, device=self._parts[0].device)

        def combination(piece: Piece) -> None:
            U = _at_least_float32(self._take(piece.columns, rows))
            result[:, piece.columns] = coefficients[piece.layer if len(coefficients) > 1 else 0].to(U) @ U

        for _ in self._sweep(combination):
            pass
        return result

    @property
    def dtype(self) -> torch.dtype:
        return self._parts[0].dtype

    def _take(self, columns: slice, rows: list[int] | None = None) -> Tensor:
        parts = [part[:, columns] for part in self._parts]
        U = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self._base is not None:
            U = U.clone() if len(parts) == 1 else U
            U[: self._based] -= self._base[columns]
        return U if rows is None else U[rows]

    def _row(self, i: int) -> Tensor:
        row = self._part(i)[0]
        return row if self._base is None or i >= self._based else row - self._base

    def _part(self, i: int) -> Tensor:
        """(1, P) as it was given."""
        for part in self._parts:
            if i < len(part):
                return part[i : i + 1]
            i -= len(part)
        raise IndexError(i)

    def _sweep(self, work: Callable[[Piece], T]) -> Iterator[T]:
        width = max(1, min(WIDEST, LARGEST // max(1, len(self._ids))))
        pieces = [
            Piece(k, slice(start, min(start + width, layer.stop)))
            for k, layer in enumerate(self.layout.layers)
            for start in range(layer.start, layer.stop, width)
        ]
        return in_order(work, pieces, self._threads if len(pieces) >= MANY else None)


def _at_least_float32(U: Tensor) -> Tensor:
    return U if U.dtype == torch.float64 else U.float()


def _read(rows: Rows, layout: Layout | None) -> tuple[tuple[Tensor, ...], Layout, dict[int, str]]:
    """Matrices whose rows are the updates in order, their layout, and which members do not fit it."""
    if isinstance(rows, np.ndarray | Tensor):
        matrix = _tensor(rows)
        if matrix.ndim != 2:
            raise ComityError(f"updates have shape {tuple(matrix.shape)}; give an (N, P) matrix or a list of vectors")
        layout = layout or Layout([("update", (matrix.shape[1],))])
        if matrix.shape[1] != layout.size:
            raise ComityError(f"updates have {matrix.shape[1]:,} columns; their layout has {layout.size:,} numbers")
        return (matrix,), layout, {}
    vectors: list[Tensor] = []
    misshaped: dict[int, str] = {}
    if isinstance(rows[0], Mapping):
        dicts = [{name: _tensor(tensor) for name, tensor in cast(Mapping[str, Tensor], row).items()} for row in rows]
        layout = layout or Counter(map(Layout.of, dicts)).most_common(1)[0][0]
        for i, member in enumerate(dicts):
            try:
                if extra := member.keys() - set(layout.names):
                    raise ValueError(f"layer {min(extra)!r} is not in the others")
                vectors.append(layout.vector(member))
            except ValueError as difference:
                misshaped[i] = str(difference)
    else:
        tensors = [_tensor(member) for member in rows]
        layout = layout or Layout([("update", Counter(tuple(t.shape) for t in tensors).most_common(1)[0][0])])
        for i, tensor in enumerate(tensors):
            if tuple(tensor.shape) == (layout.size,):
                vectors.append(tensor)
            else:
                misshaped[i] = f"it has shape {tuple(tensor.shape)}, not {(layout.size,)}"
    like = vectors[0] if vectors else torch.zeros(layout.size)
    return tuple(vector.to(like)[None] for vector in vectors) or (torch.zeros(0, layout.size),), layout, misshaped


def _tensor(values: Any) -> Tensor:
    with warnings.catch_warnings():  # torch warns of arrays that are mapped read-only; nothing here writes to them
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.as_tensor(values).detach()
    if not tensor.is_floating_point():
        raise ComityError(f"an update holds {tensor.dtype} numbers; rules combine floating ones (leave counters out)")
    return tensor


def _warn(dropped: Mapping[Id, str]) -> None:
    for member, reason in dropped.items():
        warnings.warn(f"the update of client {member!r} is dropped: {reason}", DroppedWarning, stacklevel=3)
