"""The updates of all clients, a piece of a tensor at a time, in as little memory as is given."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity._threads import in_order, one_thread
from comity.files._checkpoint import Checkpoint
from comity.files._file import StoredTensor
from comity.rules import LONGEST_SQUARE, LayerSketch, gram_matrix, piece_width

MOST = 2**28  # bytes of updates held at once, even where there is room for more: larger pieces are no faster
SPARE = 1e8  # bytes for what threads and allocators keep to themselves, where there is room for it


class Reader:
    """By how much the clients' tensors differ from those of their base, in float32 or float64, read in pieces.

    Without a base the files are updates themselves. A client that proves bad on the way (a number that is not finite, a
    broken archive) stops everything, or is left out from there on where ``skip`` is set.
    """

    def __init__(
        self,
        base: Checkpoint | None,
        clients: Sequence[Checkpoint],
        memory: float,
        *,
        skip: bool = False,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.base, self.clients, self.skip, self.advance = base, clients, skip, advance
        self.room = memory - min(SPARE, memory / 2)
        self.bad: dict[int, str] = {}
        self._space = torch.empty(0, dtype=torch.uint8)

    @property
    def good(self) -> list[int]:
        return [i for i in range(len(self.clients)) if i not in self.bad]

    def models(self, places: Sequence[int]) -> list[Checkpoint]:
        """The clients at these places, and the base if there is one."""
        return [*(self.clients[i] for i in places), *([] if self.base is None else [self.base])]

    def gram(self, name: str) -> Tensor:
        """(N, N) float64: the products of all clients' updates of one tensor; those of bad clients mean nothing."""
        every = range(len(self.clients))
        products = torch.zeros(len(self.clients), len(self.clients), dtype=torch.float64)
        for start, stop in self.pieces(name, every):
            U, _ = self.updates(name, start, stop, every)
            G = gram_matrix(U)
            self._judge(name, U, G.diagonal())
            products += G
        return products

    def sketched(self, name: str, drawn: LayerSketch) -> Tensor:
        """(N, k) float64: the sketches of all clients' updates of one tensor; those of bad clients mean nothing."""
        every = range(len(self.clients))
        folded: Tensor | None = None
        for start, stop in self.pieces(name, every):
            U, _ = self.updates(name, start, stop, every)
            self._judge(name, U, torch.linalg.vector_norm(U, dim=1).double() ** 2)
            folded = drawn.start(U) if folded is None else folded
            drawn.fold(folded, U, drawn.layer.start + start)
        assert folded is not None
        return drawn.finish(folded)

    def combined(self, entry: StoredTensor, coefficients: Tensor) -> Iterator[Tensor]:
        """The new numbers of a tensor in pieces, in its dtype: the base plus the combined updates of good clients."""
        rows = self.good
        width = piece_width(1)
        for start, stop in self.pieces(entry.name, rows):
            U, base = self.updates(entry.name, start, stop, rows)
            new = torch.empty(stop - start, dtype=entry.dtype)
            combine = partial(_combine, coefficients.to(U), U, base, new, width)
            if not all(in_order(combine, range(0, stop - start, width))):
                raise ComityError(f"tensor {entry.name!r} would not be finite as {entry.kind}; nothing is written")
            yield new

    def updates(self, name: str, start: int, stop: int, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """(n, stop − start) updates, in memory that the next call uses again, and the base they start from."""
        dtype = self._precision(name)
        base = None if self.base is None else self._base(self.base, name, start, stop, dtype)
        needed = len(rows) * (stop - start) * dtype.itemsize
        if len(self._space) < needed:
            self._space = torch.empty(0, dtype=torch.uint8)  # given back before more is taken
            self._space = torch.empty(needed, dtype=torch.uint8)
        U = self._space[:needed].view(dtype).view(len(rows), stop - start)

        def load(place: int) -> int:
            i, row = rows[place], U[place]
            try:
                if i in self.bad:
                    row.zero_()
                    return 0
                numbers = self.clients[i].read(name, start, stop)
                row.copy_(numbers)
                if base is not None:
                    row -= base
                return numbers.nbytes
            except ComityError as error:
                self.leave(i, error)
                row.zero_()
                return 0

        for count in in_order(load, range(len(rows))):
            self.advance(count)
        return U, base

    def pieces(self, name: str, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Where to cut a tensor so that all its updates fit; at the places where `Updates` cuts its matrix."""
        entries = [model.entries[name] for model in self.models(rows)]
        size = self._precision(name).itemsize
        # Numbers that are not stored row by row are held whole, and laid out anew.
        whole = sum(2 * entry.nbytes for entry in entries if entry.stride is not None)
        # The updates, the base, their sum, its copy in the file's dtype, and what is being read.
        column = len(rows) * size + 3 * size + torch.get_num_threads() * 8
        fits = int(min(self.room - whole, MOST) // column)
        if fits < 1:
            needed, left = show_bytes(whole + column), show_bytes(max(self.room, 0))
            raise ComityError(f"tensor {name!r} needs {needed} of memory at least; {left} are left for it")
        step = piece_width(len(rows))
        width = fits - fits % step if fits >= step else fits
        numel = entries[0].numel
        return ((start, min(start + width, numel)) for start in range(0, numel, width))

    def _precision(self, name: str) -> torch.dtype:
        models = self.models(range(len(self.clients)))
        return torch.float64 if any(model.entries[name].kind == "F64" for model in models) else torch.float32

    def _base(self, base: Checkpoint, name: str, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        numbers = base.read(name, start, stop)
        self.advance(numbers.nbytes)
        with one_thread():
            wide = numbers.to(dtype)
            whole = is_finite(wide)
        if not whole:
            raise base.wrong(f"tensor {name!r} is not finite; leave it as it is with --exclude {name!r}")
        return wide

    def _judge(self, name: str, U: Tensor, squares: Tensor) -> None:
        """Leave out clients whose numbers are not finite, which shows in the squared lengths of their rows."""
        for i, square in enumerate(squares.tolist()):
            if not square < LONGEST_SQUARE and i not in self.bad:
                wrong = int((~torch.isfinite(U[i])).sum())
                reason = f"is not finite in {wrong:,} of its numbers" if wrong else "has an update too long for float32"
                self.leave(i, self.clients[i].wrong(f"tensor {name!r} {reason}"))

    def leave(self, i: int, error: ComityError) -> None:
        """Go on without a client, where that is wanted and still possible."""
        if not self.skip:
            raise error
        self.bad[i] = str(error)


def _combine(x: Tensor, U: Tensor, base: Tensor | None, new: Tensor, width: int, start: int) -> bool:
    """Put ``x @ U`` plus the base into some columns of ``new``; whether all of that is finite in its dtype."""
    columns = slice(start, start + width)
    total = x @ U[:, columns]
    new[columns] = total if base is None else total.add_(base[columns])
    return is_finite(total, new.dtype)


def is_finite(numbers: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether all are, and stay so as another dtype; `torch.isfinite` would take several times their memory."""
    largest = float(torch.linalg.vector_norm(numbers, math.inf))
    return largest <= torch.finfo(dtype or numbers.dtype).max
