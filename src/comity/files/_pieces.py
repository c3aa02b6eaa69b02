"""One tensor of many files, a piece at a time, in as little memory as is given."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity._threads import in_order
from comity.files._checkpoint import Checkpoint
from comity.files._file import SHARED, view
from comity.rules import piece_width

MOST = 2**24  # bytes for a piece, even where there is room for more: larger ones are no faster
OPEN = 128 if SHARED else 0  # files held open at once
ALIGNED = 64  # bytes of which a row takes a multiple: the system copies to odd places at half its speed


class Stack:
    """One tensor of several clients, by their places, and of their base if there is one: a row each."""

    def __init__(self, name: str, clients: Mapping[int, Checkpoint], base: Checkpoint | None) -> None:
        self.name, self.base, self.places = name, base, list(clients)
        self._files = [model.home(name) for model in (*clients.values(), *([] if base is None else [base]))]
        self._entries = [file.entries[name] for file in self._files]
        self.length = self._entries[0].numel
        self.bytes = sum(entry.dtype.itemsize for entry in self._entries)
        """In the files, of one number of each."""
        self.ordered = any(entry.in_order for entry in self._entries)
        """Whether a piece can be read only after those before it."""
        self.stored = reduce(torch.promote_types, (entry.dtype for entry in self._entries))
        """What the numbers of all files fit into."""
        self.precise = torch.promote_types(self.stored, torch.float32)
        """What updates are computed in."""
        self._step = piece_width(len(self.places))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside, files stay open; no more than a process may hold, for clients times shards may be many."""
        with ExitStack() as kept:
            for file in self._files[:OPEN]:
                with suppress(ComityError):  # which reading will tell
                    kept.enter_context(file.kept())
            yield

    def cut(self, room: float) -> tuple[int, int]:
        """How wide pieces may be, and how many fit into memory together; cut where `Updates` cuts its matrix."""
        size = self.precise.itemsize
        # Numbers that are not stored row by row are held whole, and laid out anew.
        whole = sum(2 * entry.nbytes for entry in self._entries if entry.stride is not None)
        # What is read, and new numbers that wait to be written; a block of updates, the base, and new ones.
        column = (len(self._files) + 1) * self.stored.itemsize + 3 * size
        block = (len(self.places) + 3) * size
        left = room - whole
        fits = int(max((min(left, MOST) - self._step * block) // column, min(self._step, left // (column + block))))
        if fits < 1:
            needed = show_bytes(whole + column + block)
            raise ComityError(
                f"tensor {self.name!r} needs {needed} of memory at least; {show_bytes(max(room, 0))} are left for it"
            )
        width = fits - fits % self._step if fits >= self._step else fits
        return width, max(1, int(left // (width * column + min(width, self._step) * block)))

    def read(self, start: int, stop: int, space: Tensor, bad: Collection[int], threads: int) -> "Piece":
        """A piece, in ``space`` or in fresh memory if that is too small; numbers of bad clients are 0."""
        width = min(self._step, stop - start)
        row = math.ceil((stop - start) * self.stored.itemsize / ALIGNED) * ALIGNED
        size = len(self._files) * row
        needed = size + len(self.places) * width * self.precise.itemsize
        if len(space) < needed:
            space = torch.empty(needed, dtype=torch.uint8)
        numbers = space[:size].view(len(self._files), row).view(self.stored)[:, : stop - start]
        piece = Piece(start, numbers, space[size:needed].view(self.precise).view(-1, width), space)
        memory = view(space)

        def fill(k: int) -> None:
            client, entry, file = self.places[k] if k < len(self.places) else None, self._entries[k], self._files[k]
            try:
                if client in bad:
                    numbers[k].zero_()
                elif entry.dtype == self.stored:
                    file.read(self.name, start, stop, memory[k * row :][: (stop - start) * entry.dtype.itemsize])
                else:
                    own = torch.empty(stop - start, dtype=entry.dtype)
                    file.read(self.name, start, stop, view(own))
                    numbers[k] = own
            except ComityError as error:
                if client is None:
                    raise
                piece.bad[client] = error
                numbers[k].zero_()

        for _ in in_order(fill, range(len(self._files)), threads):
            pass
        return piece


@dataclass
class Piece:
    """Some numbers of a tensor, as they are in the files: a row for each client, and the last for the base."""

    start: int
    numbers: Tensor
    _updates: Tensor
    """(N, width): where a block of updates is put."""
    space: Tensor
    """The memory of all this, for the next piece."""
    bad: dict[int, ComityError] = field(default_factory=dict)
    """What is wrong with clients' numbers, by the clients' places."""

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Columns, the updates there, and the base there: block after block, each in the processor's cache."""
        count, width = self._updates.shape
        length = self.numbers.shape[1]
        base = self.numbers[count].to(self._updates.dtype) if len(self.numbers) > count else None
        for start in range(0, length, width):
            columns = slice(start, min(start + width, length))
            U = self._updates
            if columns.stop - start < width:
                U = U.view(-1)[: count * (columns.stop - start)].view(count, -1)
            U.copy_(self.numbers[:count, columns])
            own = None if base is None else base[columns]
            if own is not None:
                U -= own
            yield columns, U, own


def is_finite(numbers: Tensor) -> bool:
    """Whether all are: then so is their sum, unless they are very large."""
    total = numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32))
    return math.isfinite(float(total)) or float(torch.linalg.vector_norm(numbers, math.inf)) < math.inf
