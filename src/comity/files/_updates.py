"""The clients' updates, computed from their files piece by piece within the memory limit: the first pass."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._memory import parse_bytes, show_bytes
from comity._random import key_bytes
from comity._threads import in_order, one_thread
from comity.files._checkpoint import Checkpoint
from comity.files._formats import StoredTensor
from comity.files._lora import Products
from comity.files._plan import Inputs, Table, column
from comity.rules import (
    LONGEST_SQUARE,
    ClientUpdates,
    DroppedWarning,
    LayerSketch,
    Members,
    Sketch,
    lower_products,
    mirrored,
    piece_width,
)

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with how many bytes are read, and how many will be."""

SPARE = 1e8  # bytes that threads and allocators keep, if there is room for it
LARGEST = 2**24  # bytes per piece at most: larger ones are no faster


@dataclass
class Piece:
    """Some columns of one tensor: a row for each client, and the base."""

    start: int
    rows: Sequence[Tensor | None]
    """As they are in the files; None for a bad client, whose updates are arbitrary."""
    base: Tensor | None
    length: int
    step: int
    dtype: torch.dtype
    bad: dict[int, ComityError] = field(default_factory=dict)
    """What is wrong with clients, by their places."""

    def blocks(self) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Columns, the updates there, and the base there: block after block, each in the processor's cache."""
        space = torch.empty(len(self.rows) * min(self.step, self.length), dtype=self.dtype)
        for start in range(0, self.length, self.step):
            columns = slice(start, min(start + self.step, self.length))
            width = columns.stop - start
            U = space[: len(self.rows) * width].view(-1, width)
            base = None if self.base is None else self.base[columns].to(self.dtype)
            for own, row in zip(U, self.rows, strict=True):
                own.copy_(row[columns]) if row is not None else own.zero_()
            if base is not None:
                U -= base
            yield columns, U, base


class Reader:
    """The differences between the clients' tensors and the base's, in float32 or float64, read in pieces.

    Without a base the files are updates themselves. A client that proves bad on the way (a number that is not finite, a
    broken archive) is an error, or is left out from there on if ``skip`` is set.
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
        # Pages of mapped files count as memory of the process until a file is mapped anew.
        files = [file for model in self.models(range(len(clients))) for file in model.files]
        sizes = [file.path.stat().st_size for file in files]
        self.room -= (mapped := self.room / 2)
        for file, size in zip(files, sizes, strict=True):
            file.mapped = mapped * size / max(1, sum(sizes))

    @property
    def good(self) -> list[int]:
        return [i for i in range(len(self.clients)) if i not in self.bad]

    def models(self, places: Iterable[int]) -> list[Checkpoint]:
        """The clients at these places, and the base if there is one."""
        return [*(self.clients[i] for i in places), *([] if self.base is None else [self.base])]

    def gram(self, name: str) -> Tensor:
        """(N, N) float64: the products of all clients' updates of one tensor; those of bad clients are arbitrary."""
        every = range(len(self.clients))
        products = torch.zeros(len(every), len(every), dtype=torch.float64)

        def multiply(piece: Piece) -> list[Tensor]:
            grams = [lower_products(U) for _, U, _ in piece.blocks()]
            self._judge(name, piece, torch.stack([G.diagonal().double() for G in grams]).sum(0))
            return grams

        for grams in self._sweep(name, every, multiply):
            for G in grams:  # one by one: a sum must not depend on how much is read at once
                products += G
        with one_thread():  # small as they are, torch would wake all cores for them
            return mirrored(products)

    def sketched(self, name: str, drawn: LayerSketch) -> Tensor:
        """(N, k) float64: the sketches of all clients' updates of one tensor; those of bad clients are arbitrary."""
        count, dtype = (
            len(self.clients),
            _precise(model.entries[name] for model in self.models(range(len(self.clients)))),
        )
        folded = drawn.start(torch.empty(count, 0, dtype=dtype))

        def fold(piece: Piece) -> None:
            squares = torch.zeros(count, dtype=torch.float64)
            for columns, U, _ in piece.blocks():
                squares += torch.linalg.vector_norm(U, dim=1).double() ** 2
                drawn.fold(folded, U, drawn.layer.start + piece.start + columns.start)
            self._judge(name, piece, squares)

        for _ in self._sweep(name, range(count), fold, most=1):
            pass
        return drawn.finish(folded)

    def combined(self, name: str, entry: StoredTensor, coefficients: Tensor) -> Iterator[Tensor]:
        """The new numbers of a tensor in pieces, in its dtype: the base plus the combined updates of good clients."""

        def combine(piece: Piece) -> Tensor:
            new = torch.empty(piece.length, dtype=entry.dtype)
            for columns, U, base in piece.blocks():
                total = coefficients.to(U) @ U
                new[columns] = total if base is None else total.add_(base)
            if not _is_finite(new):
                raise ComityError(f"tensor {name!r} would not be finite as {entry.kind}; nothing is written")
            return new

        return self._sweep(name, self.good, combine)

    def _sweep(
        self, name: str, places: Sequence[int], work: Callable[[Piece], T], most: int | None = None
    ) -> Iterator[T]:
        """``work`` on piece after piece, ``most`` of them at once, each read by the thread that works on it."""
        entries = [model.entries[name] for model in self.models(places)]
        dtype, column = _precise(entries), sum(entry.dtype.itemsize for entry in entries)
        length, step = entries[0].numel, piece_width(len(places))
        width, fit = self._cut(name, entries, len(places), dtype.itemsize, step)
        threads = min(fit, torch.get_num_threads() + 1)  # one waits for the disk while the others compute

        def one(start: int) -> tuple[int, dict[int, ComityError], T]:
            stop = min(start + width, length)
            bad: dict[int, ComityError] = {}
            rows: list[Tensor | None] = []
            for i in places:
                try:
                    rows.append(None if i in self.bad else self.clients[i].read(name, start, stop))
                except ComityError as error:
                    bad[i] = error
                    rows.append(None)
            base = None if self.base is None else self.base.read(name, start, stop)
            piece = Piece(start, rows, base, stop - start, step, dtype, bad)
            done = work(piece)
            return column * piece.length, bad, done

        for count, bad, done in in_order(one, range(0, length, width), most or threads):
            self.advance(count)
            for i, error in bad.items():
                self.drop(i, error)
            yield done

    def _cut(self, name: str, entries: Sequence[StoredTensor], count: int, size: int, step: int) -> tuple[int, int]:
        """How wide pieces may be, and how many fit into memory together; cut where `Updates` cuts its matrix."""
        whole = [entry.nbytes for entry in entries if entry.whole]
        left = self.room - sum(whole) - max(whole, default=0)  # one of them is being copied into row-major order
        # The pages of the files and new numbers that wait to be written; a block of updates, the base, and new ones.
        column = sum(entry.dtype.itemsize for entry in entries) + 4 * size
        block = (count + 3) * size
        fits = int(max((min(left, LARGEST) - step * block) // column, min(step, left // (column + block))))
        if fits < 1:
            needed, given = show_bytes(2 * (self.room - left + column + block)), show_bytes(max(2 * self.room, 0))
            raise ComityError(f"tensor {name!r} needs {needed} of memory at least; {given} are left for it")
        width = fits - fits % step if fits >= step else fits
        return width, max(1, int(left // (width * column + min(width, step) * block)))

    def _judge(self, name: str, piece: Piece, squares: Tensor) -> None:
        """Note clients whose numbers are not finite, which shows in the squared lengths of their rows."""
        doubtful = (~(squares < LONGEST_SQUARE)).nonzero().flatten().tolist()
        if doubtful and self.base is not None and piece.base is not None and not _is_finite(piece.base):
            raise self.base.wrong(f"tensor {name!r} is not finite; leave it as it is with --exclude {name!r}")
        for i in doubtful:
            if (row := piece.rows[i]) is not None:
                wrong = int((~torch.isfinite(row)).sum())
                reason = f"is not finite in {wrong:,} of its numbers" if wrong else "has an update too long for float32"
                piece.bad[i] = self.clients[i].wrong(f"tensor {name!r} {reason}")

    def drop(self, i: int, error: ComityError) -> None:
        """Continue without a client, if that is wanted and still possible."""
        if not self.skip:
            raise error
        self.bad.setdefault(i, str(error))


def _precise(entries: Iterable[StoredTensor]) -> torch.dtype:
    """The dtype that updates are computed in."""
    return reduce(torch.promote_types, (entry.dtype for entry in entries), torch.float32)


def _is_finite(numbers: Tensor) -> bool:
    """Whether all are: then so is their sum, unless they are very large."""
    total = numbers.sum(dtype=torch.promote_types(numbers.dtype, torch.float32))
    return math.isfinite(float(total)) or float(torch.linalg.vector_norm(numbers, math.inf)) < math.inf


class FileUpdates(ClientUpdates):
    """What rules and diagnoses look at, from one pass over the files, which also finds bad clients.

    No row is ever held as a whole. Layers are the merged tensors. If LoRA factors are merged by their products, these
    are layers instead.
    """

    def __init__(
        self,
        inputs: Inputs,
        sizes: Table | None,
        losses: Table | None,
        memory: str | float,
        skip_bad: bool,
        progress: Progress | None,
        passes: int,
        sketch: Sketch | None = None,
    ) -> None:
        plan, entries, count = inputs.plan, inputs.template.entries, len(inputs.clients)
        shapes = [(name, entries[name].shape) for name in plan.merged]
        shapes += [(pair.module, (entries[pair.B].shape[0], *entries[pair.A].shape[1:])) for pair in plan.pairs]
        room = parse_bytes(memory) - 3 * 8 * len(shapes) * count**2  # the Gram matrices, their parts, and their sum
        if sketch is not None:
            room -= sketch.needs(Layout(shapes), count)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(min(done, total), total)

        self.plan, self.reader = plan, Reader(inputs.base, inputs.clients, room, skip=skip_bad, advance=advance)
        self.products = Products(self.reader, inputs.template)
        models = self.reader.models(range(count))
        total = passes * sum(model.entries[name].nbytes for model in models for name in plan.names)
        weights, listed = column(sizes, inputs, "size"), column(losses, inputs, "loss")
        members = Members(
            ids=tuple(inputs.ids),
            sizes=torch.tensor([1.0] * count if weights is None else weights, dtype=torch.float64),
            losses=None if listed is None else torch.tensor(listed, dtype=torch.float64),
            ages=torch.zeros(count, dtype=torch.int64),
        )
        super().__init__(Layout(shapes), members, inputs.dropped)
        self.sketch = sketch
        self.measure()
        for reason in self.reader.bad.values():
            warnings.warn(f"left out: {reason}", DroppedWarning, stacklevel=3)

    def _multiply(self, mean: bool = False) -> Tensor:
        grams = [self._products_of(place, name) for place, name in enumerate(self.plan.merged)]
        grams += [self.products.gram(pair) for pair in self.plan.pairs]
        for name in self.plan.averaged:
            self.reader.gram(name)  # for the clients whose numbers are not finite in it
        if not self.reader.good:
            raise ComityError(f"no client is left: {next(iter(self.reader.bad.values()))}")
        return torch.stack(grams)

    def _products_of(self, place: int, name: str) -> Tensor:
        """(N, N) of one tensor: exact, or from sketches if these are shorter."""
        layer = self.layout.layers[place]
        if self.sketch is None or layer.stop - layer.start <= self.sketch.k:
            return self.reader.gram(name)
        sketches = self.reader.sketched(name, LayerSketch(self.sketch.k, place, layer, key_bytes(0, "files")))
        return mirrored(lower_products(sketches))

    def _find_unusable(self) -> dict[int, str]:
        return dict(self.reader.bad)
