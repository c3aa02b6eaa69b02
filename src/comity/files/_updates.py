"""Updates that stay in their files, read piece by piece within the memory limit."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._memory import parse_bytes, show_bytes
from comity._threads import in_order, one_thread
from comity.files import _lora
from comity.files._checkpoint import Checkpoint
from comity.files._formats import StoredTensor
from comity.files._plan import Inputs
from comity.rules import LONGEST_SQUARE, ClientUpdates, DroppedWarning, lower_products, mirrored, piece_width

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with the bytes read so far, and in total."""

SPARE = 1e8  # bytes that threads and allocators keep, if there is room
LARGEST = 2**24  # maximum bytes per piece: larger ones are no faster


class Piece(NamedTuple):
    """Some columns of one tensor, as stored in the files."""

    rows: list[Tensor | None]
    """One row per client; None for a bad client, whose updates are arbitrary."""
    base: Tensor | None
    length: int
    dtype: torch.dtype
    """The dtype of updates."""
    bad: dict[int, ComityError]
    """Errors of clients, by index."""

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Yield columns, updates and base of one block after another, each in the processor's cache.

        Blocks are cut like the matrix of `Updates`, so that sums have the same bits.
        """
        count = len(self.rows)
        step = min(piece_width(count), self.length)
        space = torch.empty(count * step, dtype=self.dtype)
        for start in range(0, self.length, step):
            columns = slice(start, min(start + step, self.length))
            U = space[: count * (columns.stop - start)].view(count, -1)
            for own, row in zip(U, self.rows, strict=True):
                own.copy_(row[columns]) if row is not None else own.zero_()
            base = None if self.base is None else self.base[columns].to(self.dtype)
            if base is not None:
                U -= base
            yield columns, U, base


class FileUpdates(ClientUpdates):
    """The differences between the clients' tensors and the base's; without a base the files are updates.

    One pass over the files gives the Gram matrices and finds bad clients: numbers that are not finite, a broken
    archive. A bad client is an error, or is left out from then on while ``skip_bad`` is set. Layers are the merged
    tensors, or the products if LoRA factors are merged by their products.
    """

    def __init__(
        self, inputs: Inputs, memory: str | float, skip_bad: bool, progress: Progress | None, passes: int
    ) -> None:
        plan, entries, count = inputs.plan, inputs.template.entries, len(inputs.clients)
        self.inputs, self.skip_bad = inputs, skip_bad
        self.bad: dict[int, str] = {}
        self._progress, self._done = progress, 0
        models = self.models(range(count))
        self._total = passes * sum(model.entries[name].nbytes for model in models for name in plan.names)
        shapes = [(name, entries[name].shape) for name in plan.merged]
        shapes += [(pair.module, (entries[pair.B].shape[0], *entries[pair.A].shape[1:])) for pair in plan.pairs]
        memory = parse_bytes(memory) - 3 * 8 * len(shapes) * count**2  # the Gram matrices, their parts, and their sum
        # half is for the pages of mapped files, which count as memory of the process until a file is mapped again
        self.room = (memory - min(SPARE, memory / 2)) / 2
        sizes_on_disk = {file: file.path.stat().st_size for model in models for file in model.files}
        for file, size in sizes_on_disk.items():
            file.mapped = self.room * size / max(1, sum(sizes_on_disk.values()))
        super().__init__(Layout(shapes), inputs.members, inputs.dropped)
        self.measure()
        for reason in self.bad.values():
            warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)

    @property
    def good(self) -> list[int]:
        return [i for i in range(len(self.inputs.clients)) if i not in self.bad]

    def models(self, places: Iterable[int]) -> list[Checkpoint]:
        """The clients at these indices, and the base if there is one."""
        return [*(self.inputs.clients[i] for i in places), *([] if self.inputs.base is None else [self.inputs.base])]

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)

    def drop(self, i: int, error: ComityError) -> None:
        """Continue without a client, if that is allowed and still possible."""
        if not self.skip_bad:
            raise error
        self.bad.setdefault(i, str(error))

    def combined(
        self, name: str, coefficients: Tensor, merge: Callable[[Tensor], Tensor] | None = None
    ) -> Iterator[Tensor]:
        """The new numbers of a tensor in pieces, in its dtype: the base plus the combined updates of good clients.

        ``merge`` combines columns for a rule without coefficients.
        """
        entry = self.inputs.template.entries[name]

        def combine(piece: Piece) -> Tensor:
            new = torch.empty(piece.length, dtype=entry.dtype)
            for columns, U, base in piece.blocks():
                total = coefficients.to(U) @ U if merge is None else merge(U).to(U)
                new[columns] = total if base is None else total.add_(base)
            if not _is_finite(new):
                raise ComityError(f"tensor {name!r} would not be finite as {entry.kind}; nothing is written")
            return new

        return self.sweep(name, self.good, combine)

    def _multiply(self, mean: bool = False) -> Tensor:
        grams = [self._gram(name) for name in self.inputs.plan.merged]
        grams += [_lora.gram(self, pair) for pair in self.inputs.plan.pairs]
        for name in self.inputs.plan.averaged:
            self._gram(name)  # finds clients whose numbers are not finite in it
        if not self.good:
            raise ComityError(f"no client is left: {next(iter(self.bad.values()))}")
        return torch.stack(grams)

    def _find_unusable(self) -> dict[int, str]:
        return dict(self.bad)

    def _gram(self, name: str) -> Tensor:
        """(N, N) float64 products of all clients' updates of one tensor; those of bad clients are arbitrary."""
        every = range(len(self.inputs.clients))
        products = torch.zeros(len(every), len(every), dtype=torch.float64)

        def multiply(piece: Piece) -> list[Tensor]:
            grams = [lower_products(U) for _, U, _ in piece.blocks()]
            self._judge(name, piece, torch.stack([G.diagonal().double() for G in grams]).sum(0))
            return grams

        for grams in self.sweep(name, every, multiply):
            for G in grams:  # one by one: a sum must not depend on how much is read at once
                products += G
        with one_thread():  # for such small ones torch would wake all cores
            return mirrored(products)

    def _judge(self, name: str, piece: Piece, squares: Tensor) -> None:
        """Note clients with numbers that are not finite, which shows in the squared lengths of their rows."""
        doubtful = (~(squares < LONGEST_SQUARE)).nonzero().flatten().tolist()
        if doubtful and self.inputs.base is not None and piece.base is not None and not _is_finite(piece.base):
            raise self.inputs.base.wrong(f"tensor {name!r} is not finite; leave it as it is with --exclude {name!r}")
        for i in doubtful:
            if (row := piece.rows[i]) is not None:
                wrong = int((~torch.isfinite(row)).sum())
                reason = f"has NaN or infinite entries ({wrong:,})" if wrong else "has an update too long for float32"
                piece.bad[i] = self.inputs.clients[i].wrong(f"tensor {name!r} {reason}")

    def sweep(self, name: str, places: Sequence[int], work: Callable[[Piece], T]) -> Iterator[T]:
        """Apply ``work`` to piece after piece, several in parallel, each read by the thread that works on it."""
        entries = [model.entries[name] for model in self.models(places)]
        dtype = reduce(torch.promote_types, (entry.dtype for entry in entries), torch.float32)
        length, size = entries[0].numel, sum(entry.itemsize for entry in entries)
        width, fit = self._cut(name, entries, len(places), dtype.itemsize)
        threads = min(fit, torch.get_num_threads() + 1)  # one waits for the disk while the others compute

        def one(start: int) -> tuple[int, dict[int, ComityError], T]:
            stop = min(start + width, length)
            base = None if self.inputs.base is None else self.inputs.base.read(name, start, stop)
            piece = Piece([], base, stop - start, dtype, {})
            for i in places:
                try:
                    piece.rows.append(None if i in self.bad else self.inputs.clients[i].read(name, start, stop))
                except ComityError as error:
                    piece.bad[i] = error
                    piece.rows.append(None)
            return piece.length, piece.bad, work(piece)

        for columns, bad, done in in_order(one, range(0, length, width), threads):
            self.advance(columns * size)
            for i, error in bad.items():
                self.drop(i, error)
            yield done

    def _cut(self, name: str, entries: Sequence[StoredTensor], count: int, size: int) -> tuple[int, int]:
        """Width of pieces, and how many fit into memory together."""
        step = piece_width(count)
        whole = [entry.nbytes for entry in entries if entry.whole]
        left = self.room - sum(whole) - max(whole, default=0)  # one of them is being copied into row-major order
        # per column: pages of the files and new numbers to be written; a block of updates
        column = sum(entry.itemsize for entry in entries) + 4 * size
        block = (count + 3) * size
        fits = int(max((min(left, LARGEST) - step * block) // column, min(step, left // (column + block))))
        if fits < 1:
            needed, given = show_bytes(2 * (self.room - left + column + block)), show_bytes(max(2 * self.room, 0))
            raise ComityError(f"tensor {name!r} needs {needed} of memory at least; {given} are left for it")
        width = fits - fits % step if fits >= step else fits
        return width, max(1, int(left // (width * column + min(width, step) * block)))


def _is_finite(numbers: Tensor) -> bool:
    """Whether all numbers are finite: then so is their sum, unless they are very large."""
    total = numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32))
    return math.isfinite(float(total)) or float(torch.linalg.vector_norm(numbers, math.inf)) < math.inf
