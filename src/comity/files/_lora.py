"""Adapters merged by their products ΔW = s·BA, which are never built: factors are all that is needed."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity.files._checkpoint import Checkpoint
from comity.files._plan import Choice, Pair
from comity.files._reader import Reader


class Factors(NamedTuple):
    """A matrix as a product in float64, left (outputs, k) and right (k, inputs)."""

    left: Tensor
    right: Tensor


class Part(NamedTuple):
    """What one model brings to a merged product: so much of it."""

    share: float
    scale: float
    """Of its factors; the left one below has it in it."""
    product: Factors


class MergedFactors(NamedTuple):
    """The new factors of a module, as they are written."""

    A: Tensor
    B: Tensor
    length: float
    """Of the exact merged product, which may have a higher rank."""
    rest: Factors
    """The exact product less that of A and B: the rank that was cut off, and rounding."""


class Products:
    """Reads and combines products of factors, as `Reader` does tensors."""

    def __init__(self, reader: Reader, template: Checkpoint) -> None:
        self.reader, self.template = reader, template

    def gram(self, pair: Pair) -> Tensor:
        """(N, N) float64, since ⟨B₁A₁, B₂A₂⟩ = Σ (B₁ᵀB₂) ∘ (A₁A₂ᵀ)."""
        self._check_room(pair, range(len(self.reader.clients)), 2)
        base = self._base(pair)
        count, updates = len(self.reader.clients), {}
        for i in range(count):
            own = self._client(i, pair)
            if own is not None:
                updates[i] = own if base is None else minus(own, base)
        if not updates:
            return torch.zeros(count, count, dtype=torch.float64)
        left, right = stacked(list(updates.values()))
        owners = torch.cat([torch.full((update.right.shape[0],), i) for i, update in updates.items()])
        belongs = torch.nn.functional.one_hot(owners, count).double()
        return belongs.mT @ ((left.mT @ left) * (right @ right.mT)) @ belongs

    def merged(self, pair: Pair, coefficients: Tensor, choice: Choice) -> MergedFactors:
        """The base's product plus the combination of the updates, as factors again."""
        self._check_room(pair, self.reader.good, 6)
        parts = self._parts(pair, coefficients)
        # What adds nothing, as a base that begins with B = 0, would only take up ranks.
        adding = [part for part in parts if part.share and part.product.left.any()] or parts[:1]
        whole = stacked([Factors(part.product.left * part.share, part.product.right) for part in adding])
        A, B = self.template.entries[pair.A], self.template.entries[pair.B]
        scale = self._scale(self.template, pair)
        usual = choice.rank if isinstance(choice.rank, int) else A.shape[0]
        if choice.lora == "stack":
            new = Factors(whole.left / scale, whole.right)
        elif choice.lora == "residual":
            largest = max(part.product.right.shape[0] for part in parts)
            new = mean_of_factors(parts, scale, largest if choice.rank == "auto" else usual)
        else:
            best = truncated(whole, usual, torch.finfo(A.dtype).eps if choice.rank == "auto" else None)
            # Each factor takes √s of the scale, so that both stay of one size.
            new = Factors(best.left / scale**0.5, best.right / scale**0.5)
        new_A, new_B = new.right.to(A.dtype), new.left.to(B.dtype)
        if not torch.isfinite(new_A).all() or not torch.isfinite(new_B).all():
            raise ComityError(f"the factors of {pair.module!r} would not be finite as {A.kind}; nothing is written")
        rest = stacked((whole, Factors(new_B.double() * -scale, new_A.double())))
        return MergedFactors(
            new_A.reshape(-1, *A.shape[1:]), new_B.reshape(B.shape[0], -1, *B.shape[2:]), norm(whole), rest
        )

    def _parts(self, pair: Pair, coefficients: Tensor) -> list[Part]:
        """All that a merged product is the sum of."""
        parts = []
        base = self._base(pair)
        own_share = 1 - float(coefficients.sum())
        if base is not None and abs(own_share) > 1e-12:  # it is 0, but for rounding, where coefficients add up to 1
            parts.append(Part(own_share, self._scale(self.template, pair), base))
        for x, i in zip(coefficients.tolist(), self.reader.good, strict=True):
            own = self._client(i, pair)
            if own is None:
                raise ComityError(self.reader.bad[i])
            parts.append(Part(x, self._scale(self.reader.clients[i], pair), own))
        return parts

    def _base(self, pair: Pair) -> Factors | None:
        return None if self.reader.base is None else self._factors(self.reader.base, pair)

    def _client(self, i: int, pair: Pair) -> Factors | None:
        """None for a bad one."""
        if i in self.reader.bad:
            return None
        try:
            return self._factors(self.reader.clients[i], pair)
        except ComityError as error:
            self.reader.leave(i, error)
            return None

    def _factors(self, model: Checkpoint, pair: Pair) -> Factors:
        A, B = model.entries[pair.A], model.entries[pair.B]
        self.reader.advance(A.nbytes + B.nbytes)
        left = model.read(pair.B).double().view(B.shape[0], B.shape[1])
        right = model.read(pair.A).double().view(A.shape[0], -1)
        factors = Factors(left * self._scale(model, pair), right)
        if not all(torch.isfinite(factor).all() for factor in factors):
            raise model.wrong(f"the factors of {pair.module!r} are not finite")
        return factors

    def _scale(self, model: Checkpoint, pair: Pair) -> float:
        return model.scale(pair.module, model.entries[pair.A].shape[0])

    def _check_room(self, pair: Pair, rows: Sequence[int], copies: int) -> None:
        """Refuse a module whose factors, which are all held together, do not fit into memory."""
        models = self.reader.models(rows)
        needed = 8 * copies * sum(model.entries[name].numel for model in models for name in (pair.A, pair.B))
        if needed > self.reader.room:
            left = show_bytes(max(self.reader.room, 0))
            raise ComityError(
                f"the factors of {pair.module!r} need {show_bytes(needed)} of memory; {left} are left for them"
            )


def minus(own: Factors, base: Factors) -> Factors:
    """The difference of two products, from differences of their factors where ranks allow it: they keep more digits."""
    if own.right.shape == base.right.shape:
        left = torch.cat((own.left - base.left, base.left), 1)
        return Factors(left, torch.cat((own.right, own.right - base.right)))
    return Factors(torch.cat((own.left, -base.left), 1), torch.cat((own.right, base.right)))


def stacked(parts: Sequence[Factors]) -> Factors:
    """The sum of products, as one product."""
    return Factors(torch.cat([part.left for part in parts], 1), torch.cat([part.right for part in parts]))


def mean_of_factors(parts: Sequence[Part], scale: float, rank: int) -> Factors:
    """Left and right factors added up each for themselves, at one rank and for one scale of their product."""
    left = torch.zeros(len(parts[0].product.left), rank, dtype=torch.float64)
    right = torch.zeros(rank, parts[0].product.right.shape[1], dtype=torch.float64)
    for part in parts:
        own = slice(min(rank, part.product.right.shape[0]))
        left[:, own] += part.share / (part.scale * scale) ** 0.5 * part.product.left[:, own]
        right[own] += part.share * (part.scale / scale) ** 0.5 * part.product.right[own]
    return Factors(left, right)


def truncated(whole: Factors, rank: int, tolerance: float | None = None) -> Factors:
    """The nearest product of this rank, its singular values shared by both factors.

    With a tolerance the rank is the lowest whose product is as near as that, relative to the whole's length.
    """
    (Q, R), (P, S) = torch.linalg.qr(whole.left), torch.linalg.qr(whole.right.mT)
    U, sigma, Vh = torch.linalg.svd(R @ S.mT, full_matrices=False)
    if tolerance is not None:
        tails = sigma.square().flip(0).cumsum(0).flip(0).sqrt()
        rank = max(1, int((tails > tolerance * tails[0]).sum()))
    kept = min(rank, len(sigma))
    left, right = torch.zeros(len(Q), rank, dtype=Q.dtype), torch.zeros(rank, len(P), dtype=Q.dtype)
    left[:, :kept] = Q @ (U[:, :kept] * sigma[:kept].sqrt())
    right[:kept] = (sigma[:kept].sqrt()[:, None] * Vh[:kept]) @ P.mT
    return Factors(left, right)


def norm(whole: Factors) -> float:
    """The length of a product, without building it and without losing a small one between large factors."""
    R, S = torch.linalg.qr(whole.left, mode="r").R, torch.linalg.qr(whole.right.mT, mode="r").R
    return float(torch.linalg.matrix_norm(R @ S.mT))
