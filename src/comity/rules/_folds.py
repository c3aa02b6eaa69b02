"""Fast sketches of many updates in memory: each layer is folded into k buckets, without hiding anything."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from comity._layout import Layer, Layout
from comity._threads import in_order
from comity.rules._products import at_least_float32
from comity.rules._sketch import LayerSketch

T = TypeVar("T")

_TILE, _LARGEST = 64, 2**22  # rows and numbers read at once, so that they stay in the cache
_WIDEST = 2**14  # columns per float32 product
_NEAR = 1e-4  # cosines closer to 0 are recomputed in float64, so that every sign is correct


class Fold(LayerSketch):
    """CountSketch of one layer with k buckets instead of 16 k, without the Gaussian matrix that hides updates.

    Products of folded updates are unbiased, with at most the standard error of the full sketch.
    """

    def __init__(self, k: int, place: int, layer: Layer, key: bytes) -> None:
        self.layer, self._seed = layer, hashlib.sha256(key).digest() + place.to_bytes(4, "little")
        self.buckets, self.folds = min(layer.stop - layer.start, k), True
        self._drawn = [
            LayerSketch._signs(self, block) for block in range(-((layer.start - layer.stop) // self.buckets))
        ]
        self.offset = int.from_bytes(self._bytes("model", 8), "little") % k  # this layer's place in the model's sketch

    def _signs(self, block: int) -> tuple[Tensor, int]:
        return self._drawn[block]


class Folds:
    """Folded layers of many updates, their lengths and their plain mean, from one pass over the rows.

    Whole rows are read a few at a time: cutting thousands of rows into columns takes longer than multiplying them.
    """

    def __init__(
        self,
        rows: Sequence[Tensor],
        base: Tensor | None,
        present: int,
        layout: Layout,
        shares: Tensor,
        k: int,
        key: bytes,
        threads: int | None,
    ) -> None:
        """If ``base`` is given, the first ``present`` rows are models that started from it; the others are updates."""
        self._rows, self._base, self._present = rows, base, present if base is not None else 0
        self._layout, self._k, self._threads = layout, k, threads
        self._maps = [Fold(k, place, layer, key) for place, layer in enumerate(layout.layers)]
        kind = at_least_float32(rows[0][:0]).dtype
        self._layers = [torch.zeros(len(rows), one.buckets, dtype=kind) for one in self._maps]
        self._cached: tuple[Tensor, Tensor] | None = None
        lengths = torch.zeros(len(rows), dtype=torch.float64)

        def fold(places: slice, U: Tensor) -> Tensor:
            lengths[places] = torch.linalg.vector_norm(U, dim=1).cpu().double()
            for one, folded in zip(self._maps, self._layers, strict=True):
                one.fold(folded[places], U[:, one.layer.start : one.layer.stop].cpu(), one.layer.start)
            return shares[places].to(U) @ U

        self.mean = self._sum(fold, range(len(rows)))
        self.squares = lengths**2

    def flat(self, layer: int | None) -> Tensor:
        """(N, r) sketch with r ≤ k of one layer, or of the whole model (the sum of its layers' buckets)."""
        if layer is not None:
            return self._layers[layer]
        if sum(one.buckets for one in self._maps) <= self._k:
            return torch.cat(self._layers, dim=1)
        whole = self._layers[0].new_zeros(len(self._rows), self._k)
        for one, folded in zip(self._maps, self._layers, strict=True):
            fits = min(one.buckets, self._k - one.offset)
            whole[:, one.offset : one.offset + fits] += folded[:, :fits]
            whole[:, : one.buckets - fits] += folded[:, fits:]
        return whole

    def combine(self, coefficients: Tensor, places: Sequence[int]) -> Tensor:
        """(P,) rows combined with coefficients (1, N), or (L, N) with one row per layer; the last result is cached."""
        if self._cached is None or not torch.equal(self._cached[0], coefficients):

            def combine(some: slice, U: Tensor) -> Tensor:
                x = coefficients[:, some].to(U)
                if len(x) == 1:
                    return x[0] @ U
                layers = zip(x, self._layout.layers, strict=True)
                return torch.cat([own @ U[:, layer.start : layer.stop] for own, layer in layers])

            self._cached = coefficients.clone(), self._sum(combine, places)
        return self._cached[1].clone()

    def gains(self, step: Tensor, places: Sequence[int]) -> Tensor:
        """(N,) float64 product of each of these rows with a step (P,)."""

        def multiply(_: slice, U: Tensor) -> Tensor:
            pieces = zip(torch.split(U, _WIDEST, dim=1), torch.split(step.to(U), _WIDEST), strict=True)
            products = torch.stack([piece @ part for piece, part in pieces]).double().sum(0)
            near = products.abs() < _NEAR * step.norm() * torch.linalg.vector_norm(U, dim=1)
            if near.any():
                products[near] = U[near].double() @ step.double()
            return products.cpu()

        return torch.cat(list(self._tiles(multiply, places)))

    def _sum(self, work: Callable[[slice, Tensor], Tensor], places: Sequence[int]) -> Tensor:
        """(P,) sum over all tiles, added up in float64 and returned in the type of the rows."""
        total = torch.zeros(self._layout.size, dtype=torch.float64, device=self._rows[0].device)
        for part in self._tiles(work, places):
            total += part
        return total.to(self._rows[0].dtype)

    def _tiles(self, work: Callable[[slice, Tensor], T], places: Sequence[int]) -> Iterator[T]:
        """Apply ``work`` to tiles of these rows and their slice; the tiles do not depend on the number of threads."""
        count = max(1, min(_TILE, _LARGEST // max(1, self._layout.size)))
        own = threading.local()

        def on(start: int) -> T:
            if not hasattr(own, "room"):
                own.room = self._rows[0].new_empty(count, self._layout.size)
            some = places[start : start + count]
            for place, room in zip(some, own.room, strict=False):
                room.copy_(self._rows[place])
                if place < self._present:
                    room -= self._base
            return work(slice(start, start + len(some)), at_least_float32(own.room[: len(some)]))

        return in_order(on, range(0, len(places), count), self._threads)
