"""Adapters through their products ΔW = s·BA, which are never built: all that is needed are the factors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity.files._checkpoint import Checkpoint
from comity.files._plan import Pair
from comity.files._reader import Reader


class Factors(NamedTuple):
    """A matrix as a product in float64, left (outputs, k) and right (k, inputs)."""

    left: Tensor
    right: Tensor


class Merged(NamedTuple):
    """New factors of a module, the length of the product that they stand for, and how far their own is from it.

    It is so by the rank that was cut off, and by the rounding to the dtypes of the files.
    """

    A: Tensor
    B: Tensor
    length: float
    error: float


class Products:
    """What `Reader` is for tensors, for the products of factors."""

    def __init__(self, reader: Reader, template: Checkpoint) -> None:
        self.reader, self.template = reader, template

    def gram(self, pair: Pair) -> Tensor:
        """(N, N) float64, since ⟨B₁A₁, B₂A₂⟩ = Σ (B₁ᵀB₂) ∘ (A₁A₂ᵀ)."""
        self._room(pair, range(len(self.reader.clients)), 2)
        base = self._base(pair)
        updates = []
        for i in range(len(self.reader.clients)):
            found = self._client(i, pair)
            updates.append(None if found is None else found if base is None else minus(found, base))
        some = [update for update in updates if update is not None]
        if not some:
            return torch.zeros(len(updates), len(updates), dtype=torch.float64)
        left, right = stacked(some)
        owners = torch.cat([torch.full((u.right.shape[0],), i) for i, u in enumerate(updates) if u is not None])
        belongs = torch.nn.functional.one_hot(owners, len(updates)).double()
        return belongs.mT @ ((left.mT @ left) * (right @ right.mT)) @ belongs

    def merged(self, pair: Pair, coefficients: Tensor) -> Merged:
        """The base's product with the updates' combination added, as factors of the template's rank again."""
        self._room(pair, self.reader.good, 6)
        parts = []
        base = self._base(pair)
        if base is not None:
            parts.append(Factors(base.left * (1 - coefficients.sum()), base.right))
        for x, i in zip(coefficients, self.reader.good, strict=True):
            found = self._client(i, pair)
            if found is None:
                raise ComityError(self.reader.bad[i])
            parts.append(Factors(found.left * x, found.right))
        whole = stacked(parts)
        A, B = self.template.entries[pair.A], self.template.entries[pair.B]
        rank = A.shape[0]
        scale = self._scale(self.template, pair)
        best, length = truncated(whole, rank)
        # √s to each factor, so that both stay of one size
        new_A = (best.right / scale**0.5).to(A.dtype)
        new_B = (best.left / scale**0.5).to(B.dtype)
        written = Factors(new_B.double() * -scale, new_A.double())
        error = norm(stacked((whole, written)))
        if not torch.isfinite(new_A).all() or not torch.isfinite(new_B).all():
            raise ComityError(f"the factors of {pair.module!r} would not be finite as {A.kind}; nothing is written")
        return Merged(new_A.reshape(-1), new_B.reshape(-1), length, error)

    def _base(self, pair: Pair) -> Factors | None:
        if self.reader.base is None:
            return None
        found = self._factors(self.reader.base, pair)
        if not all(torch.isfinite(factor).all() for factor in found):
            raise self.reader.base.wrong(f"the factors of {pair.module!r} are not finite")
        return found

    def _client(self, i: int, pair: Pair) -> Factors | None:
        """None for a bad one."""
        if i in self.reader.bad:
            return None
        client = self.reader.clients[i]
        try:
            found = self._factors(client, pair)
            if not all(torch.isfinite(factor).all() for factor in found):
                raise client.wrong(f"the factors of {pair.module!r} are not finite")
        except ComityError as error:
            self.reader.leave(i, error)
            return None
        return found

    def _factors(self, model: Checkpoint, pair: Pair) -> Factors:
        A, B = model.entries[pair.A], model.entries[pair.B]
        self.reader.advance(A.nbytes + B.nbytes)
        left = model.read(pair.B).double().view(B.shape[0], B.shape[1])
        right = model.read(pair.A).double().view(A.shape[0], -1)
        return Factors(left * self._scale(model, pair), right)

    def _scale(self, model: Checkpoint, pair: Pair) -> float:
        return model.scale(pair.module, model.entries[pair.A].shape[0])

    def _room(self, pair: Pair, rows: Sequence[int], copies: int) -> None:
        """Factors are small beside the model that they adapt; all of one module's are held together."""
        models = [self.reader.clients[i] for i in rows]
        models += [self.reader.base] if self.reader.base is not None else []
        needed = 8 * copies * sum(model.entries[name].numel for model in models for name in (pair.A, pair.B))
        if needed > self.reader.room:
            left = show_bytes(max(self.reader.room, 0))
            raise ComityError(
                f"the factors of {pair.module!r} need {show_bytes(needed)} of memory; {left} are left for them"
            )


def minus(found: Factors, base: Factors) -> Factors:
    """The difference of two products. Differences of factors come first, for those of products would lose digits."""
    if found.right.shape == base.right.shape:
        left = torch.cat((found.left - base.left, base.left), 1)
        return Factors(left, torch.cat((found.right, found.right - base.right)))
    return Factors(torch.cat((found.left, -base.left), 1), torch.cat((found.right, base.right)))


def stacked(parts: Sequence[Factors]) -> Factors:
    """The sum of products, as one product."""
    return Factors(torch.cat([part.left for part in parts], 1), torch.cat([part.right for part in parts]))


def truncated(whole: Factors, rank: int) -> tuple[Factors, float]:
    """The product of this rank that is nearest, singular values shared by both factors, and the length of the whole."""
    (Q, R), (P, S) = torch.linalg.qr(whole.left), torch.linalg.qr(whole.right.mT)
    U, sigma, Vh = torch.linalg.svd(R @ S.mT, full_matrices=False)
    kept = min(rank, len(sigma))
    left, right = torch.zeros(len(Q), rank, dtype=Q.dtype), torch.zeros(rank, len(P), dtype=Q.dtype)
    left[:, :kept] = Q @ (U[:, :kept] * sigma[:kept].sqrt())
    right[:kept] = (sigma[:kept].sqrt()[:, None] * Vh[:kept]) @ P.mT
    return Factors(left, right), float(torch.linalg.vector_norm(sigma))


def norm(whole: Factors) -> float:
    """The length of a product, without building it and without losing a small one between large factors."""
    R, S = torch.linalg.qr(whole.left, mode="r").R, torch.linalg.qr(whole.right.mT, mode="r").R
    return float(torch.linalg.matrix_norm(R @ S.mT))
