"""Sketches: short random projections of updates, from which products between updates are estimated.

A layer of n numbers is folded into 16 k buckets with random signs (a CountSketch), then multiplied by a Gaussian matrix
to k numbers. Products of sketches are unbiased estimates of the products of updates. Without the key, the sketches of
several clients reveal only these products, because a Gaussian matrix has no preferred direction.
"""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from comity._layout import Layer, Layout
from comity._options import Count, ShareBetween, convert
from comity._threads import in_order

Take = Callable[[slice, slice], Tensor]  # (rows, columns) of the updates

BUCKETS = 16  # times k: folding a layer adds 1/16 to the variance of the estimates
_TILE = 64  # rows multiplied at once, always this number: a sketch has the same bits by itself and among others,
_STEP = 16  # for matrices whose sides are multiples of this
_DRAWN = 1024  # rows of the Gaussian matrix drawn at once


@dataclass(frozen=True)
class Sketch:
    """A random linear map from each layer to k numbers; the same key gives the same map.

    The product of two sketches, divided by the lengths of the two updates, has standard error √((1+ρ²)/k), where ρ is
    the cosine between the updates. A layer of at most k numbers is only rotated, and its products are exact.
    """

    k: Count = 1024

    def __post_init__(self) -> None:
        convert(self.k, Count, "sketch")

    @classmethod
    def of(cls, size: float) -> "Sketch":
        """A sketch with ``size`` numbers per layer, or for ``size`` < 1 with this standard error of cosines near 0."""
        size = convert(size, Count | ShareBetween, "sketch")
        return cls(size if isinstance(size, int) else math.ceil(1 / size**2))

    def error(self, cosine: float = 0.0) -> float:
        """Standard error of an estimated cosine per layer; that of the whole model is at most this."""
        return math.sqrt((1 + cosine**2) / self.k)

    def exact(self, layout: Layout) -> list[bool]:
        """Whether the products are exact, for each layer."""
        return [layer.stop - layer.start <= self.k for layer in layout.layers]

    def needs(self, layout: Layout, count: int) -> int:
        """Upper bound on the memory in bytes: the folded updates of the widest layer and its matrix."""
        wide = [layer.stop - layer.start for layer in layout.layers if layer.stop - layer.start > self.k]
        return 8 * min(max(wide, default=0), BUCKETS * self.k) * (count + self.k)

    def sketch(self, update: Tensor, layout: Layout, key: bytes) -> Tensor:
        """(L, k) float64 sketch of one update (P,), linear in the update; memory for the map of one layer at a time."""
        return self.sketches(lambda _, columns: update[None, columns], 1, layout, key)[0]

    def sketches(self, take: Take, count: int, layout: Layout, key: bytes, threads: int | None = None) -> Tensor:
        """(N, L, k) float64 sketches of ``count`` updates, which ``take`` reads in pieces."""
        result = torch.zeros(count, len(layout), self.k, dtype=torch.float64)
        for place in range(len(layout)):
            drawn = LayerSketch(self.k, place, layout.layers[place], key, threads)
            result[:, place, : drawn.numbers] = drawn.sketched(take, count, threads)
        return result


class LayerSketch:
    """The map of one layer. Columns may come in pieces: `fold` adds them to the buckets, `finish` multiplies."""

    def __init__(self, k: int, place: int, layer: Layer, key: bytes, threads: int | None = None) -> None:
        self.layer, self._seed = layer, hashlib.sha256(key).digest() + place.to_bytes(4, "little")
        n = layer.stop - layer.start
        self.buckets = min(n, BUCKETS * k)  # numbers per update after folding
        self.folds = n > self.buckets
        matrix = self._gaussian(k, threads) / math.sqrt(k) if n > k else self._rotation()
        self.numbers = min(n, k)  # numbers per update after the multiplication
        self._matrix = pad(matrix, (0, -self.numbers % _STEP, 0, -self.buckets % _STEP))

    def sketched(self, take: Take, count: int, threads: int | None = None) -> Tensor:
        """(N, k) sketches of ``count`` updates, or fewer columns for a smaller layer."""

        def some(start: int) -> Tensor:
            rows = slice(start, min(start + _TILE, count))
            folded = self.start(take(rows, slice(0, 0)))
            for columns in self._blocks(self.layer.start, self.layer.stop):
                self.fold(folded, take(rows, columns), columns.start)
            return self.finish(folded)

        return torch.cat(list(in_order(some, range(0, count, _TILE), threads)))

    def start(self, like: Tensor) -> Tensor:
        """(M, buckets) empty buckets for M updates with the type of ``like``."""
        exact = self._matrix.dtype == torch.float64
        precise = torch.float64 if exact else torch.promote_types(like.dtype, torch.float32)
        return torch.zeros(len(like), self.buckets, dtype=precise)

    def fold(self, folded: Tensor, piece: Tensor, start: int) -> None:
        """Add the columns from ``start`` on to the buckets; a bucket gets at most one number per block."""
        for columns in self._blocks(start, start + piece.shape[1]):
            part = piece[:, columns.start - start : columns.stop - start].to(folded)
            first = columns.start - self.layer.start
            block, first = divmod(first, self.buckets)
            signs, shift = self._signs(block) if self.folds else (None, 0)
            part = part if signs is None else part * signs[first : first + part.shape[1]].to(part.dtype)
            first = (first + shift) % self.buckets
            fits = min(part.shape[1], self.buckets - first)
            folded[:, first : first + fits] += part[:, :fits]
            folded[:, : part.shape[1] - fits] += part[:, fits:]

    def finish(self, folded: Tensor) -> Tensor:
        """(M, k) float64 sketches of folded updates, or fewer columns for a smaller layer."""
        matrix, parts = self._matrix.to(folded.dtype), []
        for tile in torch.split(folded, _TILE):
            whole = pad(tile, (0, -self.buckets % _STEP, 0, _TILE - len(tile)))
            parts.append((whole @ matrix)[: len(tile), : self.numbers].double())
        return torch.cat(parts)

    def _blocks(self, start: int, stop: int) -> Iterator[slice]:
        """Slices of the columns from ``start`` to ``stop``, cut at the boundaries of blocks."""
        while start < stop:
            end = min(stop, start + self.buckets - (start - self.layer.start) % self.buckets)
            yield slice(start, end)
            start = end

    def _signs(self, block: int) -> tuple[Tensor, int]:
        """±1 for each column of a block, and the block's shift in buckets (from 64 bits, so practically uniform)."""
        drawn = self._bytes(f"fold {block}", 8 + -(-self.buckets // 8))
        bits = np.unpackbits(np.frombuffer(drawn, np.uint8, offset=8))[: self.buckets]
        return torch.from_numpy(2 * bits.astype(np.float32) - 1), int.from_bytes(drawn[:8], "little") % self.buckets

    def _gaussian(self, k: int, threads: int | None = None) -> Tensor:
        """(buckets, k) standard normal numbers."""

        def draw(start: int) -> Tensor:
            rows = min(_DRAWN, self.buckets - start)
            drawn = np.frombuffer(self._bytes(f"normal {start}", 4 * (rows * k + rows * k % 2)), np.uint32)
            uniform = (drawn.astype(np.float32) + np.float32(0.5)) * np.float32(2**-32)
            half = len(drawn) // 2
            radius, angle = np.sqrt(-2 * np.log(uniform[:half])), np.float32(2 * np.pi) * uniform[half:]
            normal = np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[: rows * k]
            return torch.from_numpy(normal.reshape(rows, k))

        return torch.cat(list(in_order(draw, range(0, self.buckets, _DRAWN), threads)))

    def _rotation(self) -> Tensor:
        """(n, n) uniformly distributed random rotation or reflection of the layer."""
        Q, R = torch.linalg.qr(self._gaussian(self.buckets, 1).double())
        return torch.as_tensor(Q * R.diagonal().sign())

    def _bytes(self, purpose: str, count: int) -> bytes:
        return hashlib.shake_128(self._seed + purpose.encode()).digest(count)
