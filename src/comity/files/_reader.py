"""The updates of all clients, a piece of a tensor at a time, in as little memory as is given."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._threads import in_order, one_thread
from comity.files._checkpoint import Checkpoint
from comity.files._file import StoredTensor
from comity.files._pieces import Piece, Stack, is_finite
from comity.rules import LONGEST_SQUARE, LayerSketch, lower_products, mirrored

T = TypeVar("T")

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
        self._spaces: deque[Tensor] = deque()  # of pieces, used again: fresh memory costs more than reading

    @property
    def good(self) -> list[int]:
        return [i for i in range(len(self.clients)) if i not in self.bad]

    def models(self, places: Sequence[int]) -> list[Checkpoint]:
        """The clients at these places, and the base if there is one."""
        return [*(self.clients[i] for i in places), *([] if self.base is None else [self.base])]

    def stack(self, name: str, places: Sequence[int]) -> Stack:
        """One tensor of these clients."""
        return Stack(name, {i: self.clients[i] for i in places}, self.base)

    def gram(self, name: str) -> Tensor:
        """(N, N) float64: the products of all clients' updates of one tensor; those of bad clients mean nothing."""
        every = range(len(self.clients))
        products = torch.zeros(len(every), len(every), dtype=torch.float64)

        def multiply(piece: Piece) -> list[Tensor]:
            grams = [lower_products(U) for _, U, _ in piece.blocks()]
            self._judge(name, piece, torch.stack([G.diagonal().double() for G in grams]).sum(0))
            return grams

        for grams in self._sweep(self.stack(name, every), multiply):
            for G in grams:  # one by one: a sum must not depend on how much is read at once
                products += G
        with one_thread():  # small as they are, torch would wake all cores for them
            return mirrored(products)

    def sketched(self, name: str, drawn: LayerSketch) -> Tensor:
        """(N, k) float64: the sketches of all clients' updates of one tensor; those of bad clients mean nothing."""
        stack = self.stack(name, range(len(self.clients)))
        folded = drawn.start(torch.empty(len(self.clients), 0, dtype=stack.precise))

        def fold(piece: Piece) -> None:
            squares = torch.zeros(len(folded), dtype=torch.float64)
            for columns, U, _ in piece.blocks():
                squares += torch.linalg.vector_norm(U, dim=1).double() ** 2
                drawn.fold(folded, U, drawn.layer.start + piece.start + columns.start)
            self._judge(name, piece, squares)

        for _ in self._sweep(stack, fold, most=1):
            pass
        return drawn.finish(folded)

    def combined(self, entry: StoredTensor, coefficients: Tensor) -> Iterator[Tensor]:
        """The new numbers of a tensor in pieces, in its dtype: the base plus the combined updates of good clients."""

        def combine(piece: Piece) -> Tensor:
            new = torch.empty(piece.numbers.shape[1], dtype=entry.dtype)
            for columns, U, base in piece.blocks():
                total = coefficients.to(U) @ U
                new[columns] = total if base is None else total.add_(base)
            if not is_finite(new):
                raise ComityError(f"tensor {entry.name!r} would not be finite as {entry.kind}; nothing is written")
            return new

        return self._sweep(self.stack(entry.name, self.good), combine)

    def _sweep(self, stack: Stack, work: Callable[[Piece], T], most: int | None = None) -> Iterator[T]:
        """``work`` on piece after piece, ``most`` of them at once, each read by the thread that works on it."""
        width, fit = stack.cut(self.room)
        threads = min(fit, torch.get_num_threads() + 1)  # one reads while the others compute

        def one(start: int) -> tuple[int, dict[int, ComityError], T]:
            try:
                space = self._spaces.pop()
            except IndexError:
                space = torch.empty(0, dtype=torch.uint8)
            stop = min(start + width, stack.length)
            piece = stack.read(start, stop, space, self.bad, threads if stack.ordered else 1)
            done = work(piece)
            self._spaces.append(piece.space)
            return stack.bytes * (stop - start), piece.bad, done

        with stack.opened():
            starts = range(0, stack.length, width)
            for count, bad, done in in_order(one, starts, 1 if stack.ordered else most or threads):
                self.advance(count)
                for i, error in bad.items():
                    self.leave(i, error)
                yield done

    def _judge(self, name: str, piece: Piece, squares: Tensor) -> None:
        """Note clients whose numbers are not finite, which shows in the squared lengths of their rows."""
        doubtful = (~(squares < LONGEST_SQUARE)).nonzero().flatten().tolist()
        if doubtful and self.base is not None and not is_finite(piece.numbers[-1]):
            raise self.base.wrong(f"tensor {name!r} is not finite; leave it as it is with --exclude {name!r}")
        for i in doubtful:
            if i not in piece.bad:
                wrong = int((~torch.isfinite(piece.numbers[i])).sum())
                reason = f"is not finite in {wrong:,} of its numbers" if wrong else "has an update too long for float32"
                piece.bad[i] = self.clients[i].wrong(f"tensor {name!r} {reason}")

    def leave(self, i: int, error: ComityError) -> None:
        """Go on without a client, where that is wanted and still possible."""
        if not self.skip:
            raise error
        self.bad.setdefault(i, str(error))
