"""The updates of all clients, a piece of a layer at a time, in as little memory as is given."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity.files._checkpoint import Checkpoint
from comity.files._file import Entry
from comity.rules import Updates
from comity.rules._threads import in_order, one_thread
from comity.rules._updates import LARGEST, LONGEST, WIDEST

MOST = 2**28  # bytes of updates held at once, even where there is room for more: larger pieces are no faster
SPARE = 1e8  # bytes for what threads and allocators keep to themselves, where there is room for it


class Reader:
    """Differences between clients and their base, in float32 or float64, read in pieces.

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

    def gram(self, name: str) -> Tensor:
        """(N, N) float64: the products of the updates of one tensor, of all clients; those of bad ones mean nothing."""
        every = range(len(self.clients))
        products = torch.zeros(len(self.clients), len(self.clients), dtype=torch.float64)
        for start, stop in self.pieces(name, every):
            U, _ = self.updates(name, start, stop, every)
            G = Updates(U)._products[0]
            self._judge(name, U, G.diagonal())
            products += G
        return products

    def check(self, name: str) -> None:
        """Whether a tensor that no rule sees is finite everywhere."""
        every = range(len(self.clients))
        for start, stop in self.pieces(name, every):
            U, _ = self.updates(name, start, stop, every)
            self._judge(name, U, torch.linalg.vector_norm(U, dim=1) ** 2)

    def combined(self, entry: Entry, coefficients: Tensor) -> Iterator[Tensor]:
        """The new numbers of a tensor in pieces: the base and the updates of the good clients, as the entry's kind."""
        rows = self.good
        for start, stop in self.pieces(entry.name, rows):
            U, base = self.updates(entry.name, start, stop, rows)
            x, new = coefficients.to(U), torch.empty(stop - start, dtype=entry.dtype)

            def combine(
                first: int, U: Tensor = U, base: Tensor | None = base, x: Tensor = x, new: Tensor = new
            ) -> bool:
                part = slice(first, first + WIDEST)
                total = x @ U[:, part]
                new[part] = total if base is None else total.add_(base[part])
                return finite(total, new.dtype)

            if not all(in_order(combine, range(0, stop - start, WIDEST))):
                raise ComityError(f"tensor {entry.name!r} would not be finite as {entry.kind}; nothing is written")
            yield new

    def updates(self, name: str, start: int, stop: int, rows: Sequence[int]) -> tuple[Tensor, Tensor | None]:
        """(n, stop − start) updates, in memory that the next call uses again, and the base they start from."""
        dtype = self._precision(name)
        base = None if self.base is None else self._base(name, start, stop, dtype)
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
        entries = [self.clients[i].entries[name] for i in rows]
        entries += [self.base.entries[name]] if self.base is not None else []
        size = self._precision(name).itemsize
        # numbers that are not row by row are held whole, and laid out anew
        whole = sum(2 * entry.nbytes for entry in entries if entry.stride is not None)
        threads = torch.get_num_threads()
        # the updates, the base, their sum, its copy in the file's dtype, and what is being read
        column = len(rows) * size + 3 * size + threads * 8
        fits = int(min(self.room - whole, MOST) // column)
        if fits < 1:
            needed, left = show_bytes(whole + column), show_bytes(max(self.room, 0))
            raise ComityError(f"tensor {name!r} needs {needed} of memory at least; {left} are left for it")
        step = max(1, min(WIDEST, LARGEST // max(1, len(rows))))
        width = fits - fits % step if fits >= step else fits
        numel = entries[0].numel
        return ((start, min(start + width, numel)) for start in range(0, numel, width))

    def _precision(self, name: str) -> torch.dtype:
        models = (*self.clients, *([self.base] if self.base is not None else []))
        return torch.float64 if any(model.entries[name].kind == "F64" for model in models) else torch.float32

    def _base(self, name: str, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        assert self.base is not None
        numbers = self.base.read(name, start, stop)
        self.advance(numbers.nbytes)
        with one_thread():
            base = numbers.to(dtype)
            whole = finite(base)
        if not whole:
            raise self.base.wrong(f"tensor {name!r} is not finite; leave it as it is with --exclude {name!r}")
        return base

    def _judge(self, name: str, U: Tensor, squares: Tensor) -> None:
        """Who is not finite shows in the squared length of a row."""
        for i, square in enumerate(squares.tolist()):
            if not square < LONGEST and i not in self.bad:
                wrong = int((~torch.isfinite(U[i])).sum())
                told = f"is not finite in {wrong:,} of its numbers" if wrong else "has an update too long for float32"
                self.leave(i, self.clients[i].wrong(f"tensor {name!r} {told}"))

    def leave(self, i: int, error: ComityError) -> None:
        """Go on without a client, where that is wanted and still possible."""
        if not self.skip:
            raise error
        self.bad[i] = str(error)


def finite(numbers: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether all are, and stay so as another dtype; `torch.isfinite` would take several times their memory."""
    largest = float(torch.linalg.vector_norm(numbers, math.inf))
    return largest <= torch.finfo(dtype or numbers.dtype).max


def total_bytes(base: Checkpoint | None, clients: Sequence[Checkpoint], names: Sequence[str]) -> int:
    """What one pass over these tensors reads."""
    models = (*clients, *([base] if base is not None else []))
    return sum(model.entries[name].nbytes for model in models for name in names)
