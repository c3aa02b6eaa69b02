"""Updates as rows of a matrix, in memory or mapped from a file, read in pieces of columns."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._threads import in_order
from comity.rules._updates import ClientUpdates, DroppedWarning, Id, Members

T = TypeVar("T")

LONGEST_SQUARE = 1e38  # the largest squared length that float32 holds
_WIDEST = 32_768  # columns in a piece: float32 sums stay short, and the product outweighs the call
_LARGEST = 2**22  # numbers in a piece: 16 MB of a matrix that may lie on disk
_NARROW = 4_096  # columns up to which products are float64
_MANY = 16  # pieces from which on several threads save more time than it takes to start them
_BAND = 256  # rows of a Gram matrix computed at once; what lies below the diagonal is mirrored


def piece_width(count: int) -> int:
    """How many columns of ``count`` rows are read at once. Products have the same bits wherever they are cut alike."""
    return max(1, min(_WIDEST, _LARGEST // max(1, count)))


class Piece(NamedTuple):
    layer: int
    columns: slice


class RowMatrix:
    """An (N, P) matrix whose rows may lie in several tensors.

    The first ``models`` rows are models: what counts is by how much they differ from ``base``, which is subtracted as
    they are read. Pieces never reach across two layers and are the same for any number of threads.
    """

    def __init__(
        self, tensors: Sequence[Tensor], base: Tensor | None = None, models: int = 0, threads: int | None = None
    ) -> None:
        self.tensors, self.base, self.models, self.threads = tuple(tensors), base, models, threads
        self.dtype, self.device = tensors[0].dtype, tensors[0].device

    def __len__(self) -> int:
        return sum(map(len, self.tensors))

    def row(self, i: int) -> Tensor:
        row = self._as_given(i)[0]
        return row if self.base is None or i >= self.models else row - self.base

    def only(self, places: Sequence[int]) -> "RowMatrix":
        models = sum(i < self.models for i in places)
        return RowMatrix([self._as_given(i) for i in places], self.base, models, self.threads)

    def joined(self, rows: Tensor) -> "RowMatrix":
        return RowMatrix((*self.tensors, rows), self.base, self.models, self.threads)

    def grams(self, layout: Layout) -> Tensor:
        """(L, N, N) float64: float32 products of pieces of columns, added up in float64."""
        count = len(self)
        grams = torch.zeros(len(layout), count, count, dtype=torch.float64)

        def product(piece: Piece) -> tuple[int, Tensor]:
            U = self._columns(piece.columns)
            # A layer with few columns may have a singular Gram matrix; in float64 it costs nothing and stays one.
            U = U.double() if U.shape[1] <= _NARROW else _at_least_float32(U)
            G = torch.zeros(count, count, dtype=U.dtype, device=U.device)
            for i in range(0, count, _BAND):
                torch.mm(U[i : i + _BAND], U[i:].mT, out=G[i : i + _BAND, i:])
            return piece.layer, G.cpu()

        for layer, G in self._sweep(layout, product):
            grams[layer] += G
        return grams.triu() + grams.triu(1).mT

    def squared_lengths(self, layout: Layout) -> Tensor:
        """(N,) float64."""
        squares = torch.zeros(len(self), dtype=torch.float64)
        norms = self._sweep(layout, lambda piece: torch.linalg.vector_norm(self._columns(piece.columns), dim=1))
        for lengths in norms:
            squares += lengths.cpu().double() ** 2
        return squares

    def combined(self, coefficients: Tensor, layout: Layout, places: list[int] | None) -> Tensor:
        """(M, P) from coefficients (1, M, n), or (L, M, n) with its own for each layer, of the rows at ``places``."""
        result = torch.zeros(coefficients.shape[1], layout.size, dtype=self.dtype, device=self.device)

        def combine(piece: Piece) -> None:
            U = _at_least_float32(self._columns(piece.columns))
            U = U if places is None else U[places]
            result[:, piece.columns] = coefficients[piece.layer if len(coefficients) > 1 else 0].to(U) @ U

        for _ in self._sweep(layout, combine):
            pass
        return result

    def _columns(self, columns: slice) -> Tensor:
        parts = [tensor[:, columns] for tensor in self.tensors]
        U = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.base is not None:
            U = U.clone() if len(parts) == 1 else U
            U[: self.models] -= self.base[columns]
        return U

    def _as_given(self, i: int) -> Tensor:
        """(1, P), a model where models were given."""
        for tensor in self.tensors:
            if i < len(tensor):
                return tensor[i : i + 1]
            i -= len(tensor)
        raise IndexError(i)

    def _sweep(self, layout: Layout, work: Callable[[Piece], T]) -> Iterator[T]:
        width = piece_width(len(self))
        pieces = [
            Piece(k, slice(start, min(start + width, layer.stop)))
            for k, layer in enumerate(layout.layers)
            for start in range(layer.start, layer.stop, width)
        ]
        return in_order(work, pieces, self.threads if len(pieces) >= _MANY else None)


Rows = Tensor | np.ndarray[Any, Any] | Sequence[Tensor] | Sequence[Mapping[str, Tensor]] | RowMatrix


class Updates(ClientUpdates):
    """N updates of one layout as rows: their matrix, its Gram matrices, and who sent them.

    ``rows`` is an (N, P) tensor or array (a memory-mapped one is read in pieces and never copied whole), a list of
    vectors, or a list of state dicts. With ``base`` they are models, and an update is what a model differs from it by.
    ``ages`` says how many rounds ago each was sent; absent clients, with an age above 0, come last, and their rows are
    updates in any case. ``threads`` read large matrices, torch's own number by default, and change no bit. A member
    whose shape is not the most common one, or that is not finite, is dropped and named in ``dropped``; the others stay.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        layout: Layout | None = None,
        sizes: Sequence[float] | Tensor | None = None,
        losses: Sequence[float] | Tensor | None = None,
        ids: Sequence[Id] | None = None,
        ages: Sequence[int] | Tensor | None = None,
        base: Tensor | None = None,
        threads: int | None = None,
    ) -> None:
        count = len(rows)
        if count == 0:
            raise ComityError("no updates were given; a rule needs at least one")
        ids = range(count) if ids is None else ids
        sizes = torch.ones(count) if sizes is None else sizes
        ages = torch.zeros(count, dtype=torch.int64) if ages is None else torch.as_tensor(ages)
        for name, values in (("ids", ids), ("sizes", sizes), ("losses", losses), ("ages", ages)):
            if values is not None and len(values) != count:
                raise ComityError(f"{name} has {len(values)} entries for {count} updates")
        tensors, layout, misshaped = _read(rows, layout)
        good = [i for i in range(count) if i not in misshaped]
        members = Members(
            ids=tuple(ids[i] for i in good),
            sizes=torch.as_tensor(sizes, dtype=torch.float64)[good],
            losses=None if losses is None else torch.as_tensor(losses, dtype=torch.float64)[good],
            ages=ages[good],
        )
        present = members.ages == 0
        models = int(present.sum())
        if not present[:models].all():
            raise ComityError(f"ages are {members.ages.tolist()}; clients that are present, with age 0, come first")
        if not ((members.sizes > 0) & members.sizes.isfinite())[:models].all():
            raise ComityError(f"sizes are {members.sizes.tolist()}; each must be positive")
        super().__init__(layout, members, {ids[i]: reason for i, reason in misshaped.items()})
        self._matrix = rows if isinstance(rows, RowMatrix) else RowMatrix(tensors, base, models, threads)
        _warn(self.misshaped)

    def _multiply(self) -> Tensor:
        return self._matrix.grams(self.layout)

    def _find_unusable(self) -> dict[int, str]:
        if self._products is not None:
            squares = self._products.diagonal(dim1=1, dim2=2).sum(0)
        else:
            squares = self._matrix.squared_lengths(self.layout)
        unusable = {}
        members = self.members
        for i in range(len(members)):
            if not squares[i] < LONGEST_SQUARE:
                wrong = int((~torch.isfinite(self._matrix.row(i))).sum())
                numbers = f"{wrong:,} of its {self.layout.size:,} numbers are not finite"
                unusable[i] = numbers if wrong else "its length is beyond float32"
            elif members.losses is not None and members.ages[i] == 0 and not torch.isfinite(members.losses[i]):
                unusable[i] = f"its loss is {float(members.losses[i])}"
        _warn({members.ids[i]: why for i, why in unusable.items()})
        return unusable

    def combine(self, coefficients: Tensor) -> Tensor:
        if not len(self):
            return self._combined(coefficients.new_zeros(1, 1, 0))[0]
        return self._combined(coefficients.reshape(-1, len(self))[:, None])[0]

    def mix(self, coefficients: Tensor) -> Tensor:
        return self._combined(coefficients[None])

    def _combined(self, coefficients: Tensor) -> Tensor:
        every = len(self) == len(self.members)
        return self._matrix.combined(coefficients, self.layout, None if every else self._usable)

    def row(self, i: int) -> Tensor:
        return self._matrix.row(self._usable[i])

    def only(self, chosen: Sequence[int]) -> "Updates":
        places = [self._usable[i] for i in sorted(chosen)]
        return self._with(self._matrix.only(places), self.members.only(places))

    def joined(self, ids: Sequence[Id], rows: Tensor, ages: Tensor) -> "Updates":
        own, count = self.members, len(ids)
        unknown = torch.full((count,), math.nan, dtype=torch.float64)
        members = Members(
            ids=(*own.ids, *ids),
            sizes=torch.cat((own.sizes, torch.zeros(count, dtype=torch.float64))),
            losses=None if own.losses is None else torch.cat((own.losses, unknown)),
            ages=torch.cat((own.ages, ages)),
        )
        both = self._with(self._matrix.joined(rows), members)
        both.misshaped = self.misshaped
        return both

    def _with(self, matrix: RowMatrix, members: Members) -> "Updates":
        return Updates(
            matrix,
            layout=self.layout,
            sizes=members.sizes,
            losses=members.losses,
            ids=members.ids,
            ages=members.ages,
        )


def gram_matrix(rows: Tensor) -> Tensor:
    """(N, N) float64, the products of the rows of an (N, P) matrix, with the bits of `Updates.gram`."""
    return RowMatrix([rows]).grams(Layout([("update", (rows.shape[1],))]))[0]


def _at_least_float32(U: Tensor) -> Tensor:
    return U if U.dtype == torch.float64 else U.float()


def _read(rows: Rows, layout: Layout | None) -> tuple[Sequence[Tensor], Layout, dict[int, str]]:
    """Matrices of those rows that have the layout, the layout, and why the others do not have it, by their place."""
    if isinstance(rows, RowMatrix):
        assert layout is not None
        return rows.tensors, layout, {}
    if isinstance(rows, np.ndarray | Tensor):
        matrix = _tensor(rows)
        if matrix.ndim != 2:
            raise ComityError(f"updates have shape {tuple(matrix.shape)}; give an (N, P) matrix or a list of vectors")
        layout = layout or Layout([("update", (matrix.shape[1],))])
        if matrix.shape[1] != layout.size:
            raise ComityError(f"updates have {matrix.shape[1]:,} columns; their layout has {layout.size:,} numbers")
        return [matrix], layout, {}
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
    alike = [vector.to(vectors[0])[None] for vector in vectors]
    return alike or [torch.zeros(0, layout.size)], layout, misshaped


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
