"""Updates as rows of a matrix, in memory or mapped from a file, read in pieces of columns."""

import math
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._threads import in_order
from comity.rules._folds import Folds
from comity.rules._many import MANY
from comity.rules._products import at_least_float32, layer_lengths, lower_products, mirrored, piece_width
from comity.rules._read import Rows, read
from comity.rules._sketch import Sketch
from comity.rules._updates import ClientUpdates, DroppedWarning, Id, Members, TriedSteps, shares_of

T = TypeVar("T")
Trial = Callable[[Sequence[Tensor], Sequence[float], Collection[Id]], TriedSteps]
"""Asks clients how multiples of steps (P,) would change their losses; the last argument names dropped clients."""

NOT_OF_ONE_ROUND = "sketches of two rounds cannot be compared"
LONGEST_SQUARE = 1e38  # the largest squared length that float32 holds
_MANY = 16  # pieces from which on several threads save more time than it takes to start them


class Updates(ClientUpdates):
    """N updates of one layout as rows, with their Gram matrices and their senders.

    - ``rows``: an (N, P) tensor or array (if memory-mapped, it is read in pieces and never copied as a whole), a list
      of vectors, or a list of state dicts. A row that is not finite, or whose shape is not the most common one, is
      dropped and named in ``dropped``. Rules that remember updates refer to the rows, so do not change them after
      ``apply``.
    - ``base``: the model that the clients started from, if the rows are models; updates are the differences from it.
    - ``ages``: number of rounds since each update was sent. Absent clients have an age above 0 and come last; their
      rows are updates even if there is a ``base``.
    - ``threads``: number of threads that read large matrices (default: torch's). Results do not depend on it.
    - ``trial``: function that asks clients how a step would change their losses, for rules that need it.
    - ``sketch``, ``key``: rules see sketches of the rows, drawn from ``key``; the rows themselves are combined.
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
        trial: Trial | None = None,
        sketch: Sketch | None = None,
        key: bytes = b"",
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
        self._tensors, layout, misshaped = read(rows, layout)
        good = [i for i in range(count) if i not in misshaped]
        members = Members(
            ids=tuple(ids[i] for i in good),
            sizes=torch.as_tensor(sizes, dtype=torch.float64)[good],
            losses=None if losses is None else torch.as_tensor(losses, dtype=torch.float64)[good],
            ages=ages[good],
        )
        present = members.ages == 0
        self._present, self._trial = int(present.sum()), trial
        if not present[: self._present].all():
            raise ComityError(f"ages are {members.ages.tolist()}; clients that are present, with age 0, come first")
        if not ((members.sizes > 0) & members.sizes.isfinite())[: self._present].all():
            raise ComityError(f"sizes are {members.sizes.tolist()}; each must be positive")
        super().__init__(layout, members, {ids[i]: reason for i, reason in misshaped.items()})
        self.base, self.threads = base, threads
        self.sketch, self._key = sketch, None if sketch is None else key
        self._mean: Tensor | None = None
        """(P,) mean of all members by size, if it was computed together with the Gram matrices."""
        _warn(self.misshaped)

    @cached_property
    def _squares(self) -> Tensor:
        """(M,) float64 squared length of each member's update."""
        if self._folds is not None:
            return self._folds.squares
        if self._products is not None:
            return self._products.diagonal(dim1=1, dim2=2).sum(0)
        squares = torch.zeros(len(self.members), dtype=torch.float64)
        for lengths in self._sweep(lambda U, *_: torch.linalg.vector_norm(U, dim=1)):
            squares += lengths.cpu().double() ** 2
        return squares

    def _find_unusable(self) -> dict[int, str]:
        members, unusable = self.members, {}
        losses = [0.0] * len(members) if members.losses is None else members.losses.tolist()
        for i, (square, loss) in enumerate(zip(self._squares.tolist(), losses, strict=True)):
            if not square < LONGEST_SQUARE:
                wrong = int((~torch.isfinite(self._row(i))).sum())
                numbers = f"{wrong:,} of its {self.layout.size:,} numbers are not finite"
                unusable[i] = numbers if wrong else "its length is beyond float32"
            elif i < self._present and not math.isfinite(loss):
                unusable[i] = f"its loss is {loss}"
        _warn({members.ids[i]: why for i, why in unusable.items()})
        return unusable

    def _multiply(self, mean: bool = False) -> Tensor:
        """(L, M, M) Gram matrices: float32 products of pieces of columns, summed in float64."""
        if self._folds is not None:
            flat = [self._folds.flat(layer).double() for layer in range(len(self.layout))]
            return mirrored(torch.stack([lower_products(rows) for rows in flat]))
        if self._seen is not self:
            return self._seen._multiply()
        count, shares = len(self.members), shares_of(self.members.sizes)[None]
        average = self._mean = self._zeros(1)[0] if mean else None
        grams = torch.zeros(len(self.layout), count, count, dtype=torch.float64)

        def multiply(U: Tensor, layer: int, columns: slice) -> tuple[int, Tensor]:
            if average is not None:
                U = at_least_float32(U)
                average[columns] = (shares.to(U) @ U)[0]
            return layer, lower_products(U).cpu()

        for layer, G in self._sweep(multiply):
            grams[layer] += G
        return mirrored(grams)

    @property
    def _seen(self) -> "Updates":
        """The updates that rules see: these rows, or their sketches."""
        return self if self._key is None else self._sketches

    @cached_property
    def _sketches(self) -> "SketchedUpdates":
        """Sketches of all members' rows."""
        assert self.sketch is not None
        assert self._key is not None
        drawn = self.sketch.sketches(self._some, len(self.members), self.layout, self._key, self.threads)
        return SketchedUpdates(drawn, self.sketch, self.layout, **vars(self.members))

    @cached_property
    def _folds(self) -> Folds | None:
        """Folded updates, which replace sketches if there are many members and nothing has to be hidden."""
        if self.sketch is None or self._key is None or len(self.members) <= MANY:
            return None
        shares = shares_of(self.members.sizes)
        rows, base = self._given, self.base
        folds = Folds(rows, base, self._present, self.layout, shares, self.sketch.k, self._key, self.threads)
        self._mean = folds.mean
        return folds

    def _some(self, rows: slice, columns: slice) -> Tensor:
        part = torch.stack([row[columns] for row in self._given[rows]])
        if self.base is not None:
            part[: max(0, self._present - rows.start)] -= self.base[columns]
        return part

    @property
    def squares(self) -> Tensor:
        return self._squares[self._usable]

    def gains(self, coefficients: Tensor) -> Tensor:
        if self._key is None:
            return super().gains(coefficients)
        step = self.combine(coefficients)  # exact, unlike what rules see: the rows are here
        if self._folds is not None:
            return self._folds.gains(step, self._usable)
        step = step.double()
        parts = self._sweep(lambda U, _, columns: (U.double() @ step[columns]).cpu())
        return sum(parts, torch.zeros(len(self.members), dtype=torch.float64))[self._usable]

    def flat(self, layer: int | None) -> Tensor | None:
        if self._folds is not None:
            folded = self._folds.flat(layer)
            return folded[self._usable].double() if folded.shape[1] <= 4 * len(self) else None
        seen = self._seen
        whole = slice(0, seen.layout.size)
        columns = whole if layer is None else slice(*seen.layout.layers[layer][2:])
        if len(self) <= MANY or columns.stop - columns.start >= len(self):
            return None
        return seen._take(columns)[self._usable].cpu().double()

    def lengths(self, coefficients: Tensor) -> Tensor:
        if self._folds is not None:
            return layer_lengths(self.layout, self.combine(coefficients))
        flat = [self.flat(layer) for layer in range(len(self.layout))]
        x = coefficients.expand(len(flat), -1)
        parts = [own @ rows for own, rows in zip(x, flat, strict=True) if rows is not None]
        if len(parts) < len(flat):
            return super().lengths(coefficients)
        return torch.stack([torch.linalg.vector_norm(part) for part in parts])

    def combine(self, coefficients: Tensor) -> Tensor:
        if not len(self):
            return self._combined(coefficients.new_zeros(1, 1, 0))[0]
        every = len(self) == len(self.members)
        if self._mean is not None and every and torch.equal(coefficients.reshape(-1), self.shares):
            return self._mean.clone()
        if self._folds is not None:
            return self._folds.combine(coefficients.reshape(-1, len(self)), self._usable)
        return self._combined(coefficients.reshape(-1, len(self))[:, None])[0]

    def mix(self, coefficients: Tensor) -> Tensor:
        """(M, P) several combinations at once, from coefficients (M, N)."""
        return self._combined(coefficients[None])

    def _combined(self, coefficients: Tensor) -> Tensor:
        """(M, P) from coefficients (1, M, N), or (L, M, N) with its own for each layer."""
        result, every = self._zeros(coefficients.shape[1]), len(self) == len(self.members)

        def combine(U: Tensor, layer: int, columns: slice) -> None:
            U = at_least_float32(U)
            U = U if every else U[self._usable]
            result[:, columns] = coefficients[layer if len(coefficients) > 1 else 0].to(U) @ U

        for _ in self._sweep(combine):
            pass
        return result

    def _zeros(self, count: int) -> Tensor:
        """(count, P) of zeros, like the rows."""
        like = self._tensors[0]
        return torch.zeros(count, self.layout.size, dtype=like.dtype, device=like.device)

    def try_steps(self, steps: Iterable[Tensor], factors: Sequence[float]) -> TriedSteps:
        if self._trial is None:
            return super().try_steps(steps, factors)
        return self._trial(list(steps), factors, self.dropped)

    def row(self, i: int) -> Tensor:
        """(P,) the update of ``ids[i]``."""
        return self._row(self._usable[i])

    def given(self, i: int) -> Tensor:
        """(P,) the row of ``ids[i]`` as given, not copied: an update, or a model if there is a ``base``."""
        return self._given[self._usable[i]]

    def only(self, chosen: Sequence[int], exact: bool = False) -> "Updates":
        """The updates of ``ids[i]`` for each ``i`` in ``chosen``, in the same order as here.

        With ``exact``, products are computed from the rows, even if those of all updates are estimated from sketches.
        """
        places = [self._usable[i] for i in sorted(chosen)]
        return self._with([self._given[i] for i in places], self.members.only(places), exact)

    def clipped(self, hold: Callable[[Tensor], Tensor] = lambda row: row) -> "Updates":
        """The same updates, with those longer than the median length scaled down to it.

        For an even number of updates, the median is the lower one of the two middle lengths. ``hold`` stores new rows.
        """
        usable = self._usable
        if not usable:
            return self
        lengths = self._squares[usable].sqrt()
        most = lengths.median()
        rows = [self._given[i] for i in usable]
        for place in (lengths > most).nonzero()[:, 0].tolist():
            row = self._row(usable[place]) * float(most / lengths[place])
            rows[place] = hold(row if self.base is None else row + self.base)
        clipped = self._with(rows, self.members.only(usable))
        clipped.misshaped = self.dropped
        return clipped

    def joined(self, ids: Sequence[Id], rows: Sequence[Tensor] | Tensor, ages: Tensor) -> "Updates":
        """These updates, followed by absent clients' updates of ``ages`` rounds ago, with size 0 in the plain mean."""
        own, count = self.members, len(ids)
        unknown = torch.full((count,), math.nan, dtype=torch.float64)
        members = Members(
            ids=(*own.ids, *ids),
            sizes=torch.cat((own.sizes, torch.zeros(count, dtype=torch.float64))),
            losses=None if own.losses is None else torch.cat((own.losses, unknown)),
            ages=torch.cat((own.ages, ages)),
        )
        both = self._with([*self._given, *rows], members)
        both.misshaped = self.misshaped
        return both

    def _with(self, rows: list[Tensor], members: Members, exact: bool = False) -> "Updates":
        how: dict[str, Any] = {"layout": self.layout, "base": self.base, "threads": self.threads, "trial": self._trial}
        if self._key is not None and not exact:
            how |= {"sketch": self.sketch, "key": self._key}
        return Updates(rows, **how, **vars(members))

    @cached_property
    def _given(self) -> list[Tensor]:
        """Each member's row (P,): a model if models were given."""
        return [row for tensor in self._tensors for row in tensor]

    def _row(self, i: int) -> Tensor:
        row = self._given[i]
        return row if self.base is None or i >= self._present else row - self.base

    def _take(self, columns: slice, room: Tensor | None = None) -> Tensor:
        """Some columns of all members' updates; if a copy is needed, it is made in the buffer ``room``."""
        parts = [tensor[:, columns] for tensor in self._tensors]
        if len(parts) == 1 and self.base is None:
            return parts[0]
        shape = (len(self.members), columns.stop - columns.start)
        U = torch.cat(parts, out=None if room is None else room[: math.prod(shape)].view(shape))
        if self.base is not None:
            U[: self._present] -= self.base[columns]
        return U

    def _sweep(self, work: Callable[[Tensor, int, slice], T]) -> Iterator[T]:
        """Apply ``work`` to pieces of columns. A piece lies in one layer and does not depend on the number of threads.

        Each thread uses one buffer for all its pieces: allocating each piece would fragment the memory.
        """
        width = piece_width(len(self.members))
        pieces = [
            (k, slice(start, min(start + width, layer.stop)))
            for k, layer in enumerate(self.layout.layers)
            for start in range(layer.start, layer.stop, width)
        ]
        most = len(self.members) * max((columns.stop - columns.start for _, columns in pieces), default=0)
        own = threading.local()

        def on(piece: tuple[int, slice]) -> T:
            layer, columns = piece
            if not hasattr(own, "room"):
                own.room = self._tensors[0].new_empty(most)
            return work(self._take(columns, own.room), layer, columns)

        return in_order(on, pieces, self.threads if len(pieces) >= _MANY else None)


class SketchedUpdates(Updates):
    """Updates of which only sketches (N, L, k) are known: rules find coefficients, and rows are combined elsewhere.

    The Gram matrices of the sketches estimate those of the updates. ``combine`` returns the sketch of the combination.

    ``sketch`` is the map that made the sketches, ``layout`` the layout of the updates. Further arguments are those of
    `Updates`.
    """

    def __init__(self, sketches: Tensor | Sequence[Tensor], sketch: Sketch, layout: Layout, **others: Any) -> None:
        rows = torch.stack(list(sketches)) if isinstance(sketches, Sequence) and sketches else torch.as_tensor(sketches)
        if rows.shape[1:] != (len(layout), sketch.k):
            wanted = f"{len(layout)} layers of {sketch.k} numbers"
            raise ComityError(f"sketches have shape {tuple(rows.shape[1:])}; with this layout they are {wanted}")
        super().__init__(rows.flatten(1), layout=Layout((layer.name, (sketch.k,)) for layer in layout.layers), **others)
        self.sketch, self.original = sketch, layout

    def given(self, i: int) -> Tensor:
        raise ComityError(NOT_OF_ONE_ROUND)

    def joined(self, ids: Sequence[Id], rows: Sequence[Tensor] | Tensor, ages: Tensor) -> Updates:
        raise ComityError(NOT_OF_ONE_ROUND)


def _warn(dropped: Mapping[Id, str]) -> None:
    for member, reason in dropped.items():
        warnings.warn(f"the update of client {member!r} is dropped: {reason}", DroppedWarning, stacklevel=3)
