"""The updates of all clients, a piece of a tensor at a time, in as little memory as is given."""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity._threads import in_order, one_thread
from comity.files._checkpoint import Checkpoint
from comity.files._file import StoredTensor
from comity.rules import LONGEST_SQUARE, LayerSketch, gram_matrix, piece_width

T = TypeVar("T")

MOST = 2**27  # bytes held at once, even where there is room for more: larger pieces are no faster
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
        self._spaces = [torch.empty(0, dtype=torch.uint8) for _ in clients]

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
        for piece in self._pieces_of(name, every):
            G = sum(piece.each(lambda U, _: gram_matrix(U)), torch.zeros_like(products))
            self._judge(name, piece, G.diagonal())
            products += G
        return products

    def sketched(self, name: str, drawn: LayerSketch) -> Tensor:
        """(N, k) float64: the sketches of all clients' updates of one tensor; those of bad clients mean nothing."""
        every = range(len(self.clients))
        folded = drawn.start(torch.empty(len(every), 0, dtype=self._precision(name)))
        start = drawn.layer.start
        for piece in self._pieces_of(name, every):
            squares = torch.zeros(len(every), dtype=torch.float64)
            for U in piece.each(lambda U, _: U.clone()):
                squares += torch.linalg.vector_norm(U, dim=1).double() ** 2
                drawn.fold(folded, U, start)
                start += U.shape[1]
            self._judge(name, piece, squares)
        return drawn.finish(folded)

    def combined(self, entry: StoredTensor, coefficients: Tensor) -> Iterator[Tensor]:
        """The new numbers of a tensor in pieces, in its dtype: the base plus the combined updates of good clients."""
        for piece in self._pieces_of(entry.name, self.good):
            new = torch.empty(piece.length, dtype=entry.dtype)
            if not all(piece.each(partial(_combine, coefficients.to(piece.dtype), piece.base, new))):
                raise ComityError(f"tensor {entry.name!r} would not be finite as {entry.kind}; nothing is written")
            yield new

    def _pieces_of(self, name: str, rows: Sequence[int]) -> Iterator["Piece"]:
        """A tensor of these clients, read piece by piece."""
        dtype = self._precision(name)
        for start, stop in self.pieces(name, rows):
            base = None if self.base is None else self._base(self.base, name, start, stop, dtype)
            numbers = list(in_order(partial(self._numbers, name, start, stop), rows))
            self.advance(sum(own.nbytes for own in numbers if own is not None))
            yield Piece(numbers, base, dtype, stop - start)

    def _numbers(self, name: str, start: int, stop: int, i: int) -> Tensor | None:
        """As they are in a client's file, in memory that the next piece uses again; ``None`` for a bad one."""
        if i in self.bad:
            return None
        needed = (stop - start) * self.clients[i].entries[name].dtype.itemsize
        if len(self._spaces[i]) < needed:
            self._spaces[i] = torch.empty(0, dtype=torch.uint8)  # given back before more is taken
            self._spaces[i] = torch.empty(needed, dtype=torch.uint8)
        try:
            return self.clients[i].read(name, start, stop, self._spaces[i])
        except ComityError as error:
            self.leave(i, error)
            return None

    def pieces(self, name: str, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Where to cut a tensor so that all its updates fit; at the places where `Updates` cuts its matrix."""
        entries = [model.entries[name] for model in self.models(rows)]
        size = self._precision(name).itemsize
        # Numbers that are not stored row by row are held whole, and laid out anew.
        whole = sum(2 * entry.nbytes for entry in entries if entry.stride is not None)
        # What is read, the base, the new numbers, and them in the file's dtype; and on each thread a block of updates.
        column = sum(entry.dtype.itemsize for entry in entries) + 3 * size
        block = torch.get_num_threads() * (len(rows) + 2) * size
        step, room = piece_width(len(rows)), min(self.room - whole, MOST)
        fits = int(max((room - step * block) // column, min(step, room // (column + block))))
        if fits < 1:
            needed, left = show_bytes(whole + column + block), show_bytes(max(self.room, 0))
            raise ComityError(f"tensor {name!r} needs {needed} of memory at least; {left} are left for it")
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

    def _judge(self, name: str, piece: "Piece", squares: Tensor) -> None:
        """Leave out clients whose numbers are not finite, which shows in the squared lengths of their rows."""
        for i, square in enumerate(squares.tolist()):
            if not square < LONGEST_SQUARE and i not in self.bad:
                numbers = piece.numbers[i]
                wrong = 0 if numbers is None else int((~torch.isfinite(numbers)).sum())
                reason = f"is not finite in {wrong:,} of its numbers" if wrong else "has an update too long for float32"
                self.leave(i, self.clients[i].wrong(f"tensor {name!r} {reason}"))

    def leave(self, i: int, error: ComityError) -> None:
        """Go on without a client, where that is wanted and still possible."""
        if not self.skip:
            raise error
        self.bad[i] = str(error)


class Piece:
    """Some of a tensor's numbers of several clients, as they are in their files, and of the base, widened."""

    def __init__(self, numbers: Sequence[Tensor | None], base: Tensor | None, dtype: torch.dtype, length: int) -> None:
        self.numbers, self.base, self.dtype, self.length = numbers, base, dtype, length

    def each(self, work: Callable[[Tensor, slice], T]) -> Iterator[T]:
        """``work`` on the updates of block after block, each made where it is used, in the processor's cache."""
        width, own = piece_width(len(self.numbers)), threading.local()

        def block(start: int) -> T:
            columns = slice(start, min(start + width, self.length))
            if not hasattr(own, "space"):
                own.space = torch.empty(len(self.numbers) * min(width, self.length), dtype=self.dtype)
            count = columns.stop - start
            U = own.space[: len(self.numbers) * count].view(len(self.numbers), count)
            for row, numbers in zip(U, self.numbers, strict=True):
                if numbers is not None:
                    row.copy_(numbers[columns])
                elif self.base is not None:
                    row.copy_(self.base[columns])
                else:
                    row.zero_()
            if self.base is not None:
                U -= self.base[columns]
            return work(U, columns)

        return in_order(block, range(0, self.length, width))


def _combine(x: Tensor, base: Tensor | None, new: Tensor, U: Tensor, columns: slice) -> bool:
    """Put ``x @ U`` plus the base into some columns of ``new``; whether all of that is finite in its dtype."""
    total = x @ U
    new[columns] = total if base is None else total.add_(base[columns])
    return is_finite(new[columns])


def is_finite(numbers: Tensor) -> bool:
    """Whether all are: then so is their sum, unless they are very large."""
    total = numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32))
    return math.isfinite(float(total)) or float(torch.linalg.vector_norm(numbers, math.inf)) < math.inf
