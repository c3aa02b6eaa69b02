"""PEFT adapters, and merging by their products ΔW = s·BA, which are never built: the factors suffice."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._memory import show_bytes
from comity.files._checkpoint import PREFIX, Checkpoint, read_json

if TYPE_CHECKING:
    from comity.files._updates import FileUpdates

FACTOR = re.compile(r"((.+)\.lora_(?:embedding_)?)A((?:\..+)?)")
"""PEFT's name of the factor A; B's name has B in its place."""


@dataclass(frozen=True)
class Pair:
    """The two factors of an adapted module: A is (rank, inputs), B is (outputs, rank)."""

    module: str
    A: str
    B: str

    def check(self, model: Checkpoint, template: Checkpoint) -> None:
        """Reject factors whose product has another shape than the template's. Their rank may differ."""
        if model.adapter.use_dora:
            raise model.wrong("it is a DoRA adapter (use_dora), which does more than its product; use --lora factors")
        A, B = model.entries[self.A].shape, model.entries[self.B].shape
        inputs, outputs = template.entries[self.A].shape[1:], template.entries[self.B].shape[:1]
        # B of a convolution is (outputs, rank, 1, 1)
        if len(A) < 2 or len(B) < 2 or A[0] != B[1] or any(size != 1 for size in B[2:]) or not A[0]:
            raise model.wrong(f"factors of {self.module!r} have shapes {A} and {B}, which have no product")
        if (A[1:], B[:1]) != (inputs, outputs):
            shape = (*outputs, *inputs)
            raise model.wrong(f"the product of {self.module!r} has shape {(*B[:1], *A[1:])}, not {shape}")

    def scale(self, model: Checkpoint) -> float:
        return model.adapter.scale(self.module, model.entries[self.A].shape[0])


def pairs_of(names: Iterable[str]) -> list[Pair]:
    """The pairs of factors among these tensors; B may be missing."""
    return [Pair(A[2], A[0], f"{A[1]}B{A[3]}") for A in map(FACTOR.fullmatch, names) if A]


def pairs_to_merge(template: Checkpoint, names: Sequence[str]) -> list[Pair]:
    """The pairs of factors among these tensors of an adapter."""
    template.adapter  # noqa: B018 - raises if this is no adapter
    pairs = pairs_of(names)
    if not pairs:
        raise template.wrong("none of its tensors are LoRA factors (lora_A, lora_B)")
    for pair in pairs:
        if pair.B not in names:
            raise template.wrong(f"tensor {pair.A!r} has no {pair.B!r} to be multiplied with")
        pair.check(template, template)
    return pairs


def check_scales(client: Checkpoint, template: Checkpoint, names: Sequence[str]) -> None:
    """Reject factors whose products are scaled differently: their factors could not be added."""
    for pair in pairs_of(template.entries):
        if not {pair.A, pair.B}.isdisjoint(names):
            rank, usual = template.entries[pair.A].shape[0], pair.scale(template)
            if (own := client.adapter.scale(pair.module, rank)) != usual:
                reason = f"its scale (lora_alpha over the rank) is {own:g} in {pair.module!r}, not {usual:g}"
                raise client.wrong(f"{reason}; --lora products takes that into account")


def config_with_ranks(template: Checkpoint, new: Mapping[str, int]) -> bytes:
    """The configuration of an adapter with new ranks. The scale of each module stays the same."""
    assert template.config is not None
    about = read_json(template.config, dict[str, Any])
    pairs = pairs_of(template.entries)
    ranks = {pair.module: new.get(pair.module, template.entries[pair.A].shape[0]) for pair in pairs}
    alphas = {pair.module: pair.scale(template) * template.adapter.strength(ranks[pair.module]) for pair in pairs}
    numbers: Mapping[str, float]
    for key, pattern, numbers in (("r", "rank_pattern", ranks), ("lora_alpha", "alpha_pattern", alphas)):
        about[key] = max(numbers.values())
        others = {module: number for module, number in numbers.items() if number != about[key]}
        about[pattern] = {f"^{re.escape(module.removeprefix(PREFIX))}": number for module, number in others.items()}
    return msgspec.json.format(msgspec.json.encode(about))


class Factors(NamedTuple):
    """A matrix as a product in float64, left (outputs, k) and right (k, inputs)."""

    left: Tensor
    right: Tensor


def gram(u: "FileUpdates", pair: Pair) -> Tensor:
    """(N, N) float64 Gram matrix of products, from ⟨B₁A₁, B₂A₂⟩ = Σ (B₁ᵀB₂) ∘ (A₁A₂ᵀ)."""
    count = len(u.inputs.clients)
    _check_room(u, pair, range(count), 2)
    base = None if u.inputs.base is None else _factors(u, u.inputs.base, pair)
    updates = {}
    for i in u.good:
        try:
            own = _factors(u, u.inputs.clients[i], pair)
            updates[i] = own if base is None else minus(own, base)
        except ComityError as error:
            u.drop(i, error)
    if not updates:
        return torch.zeros(count, count, dtype=torch.float64)
    left, right = stacked(updates.values())
    owners = torch.cat([torch.full((update.right.shape[0],), i) for i, update in updates.items()])
    belongs = torch.nn.functional.one_hot(owners, count).double()
    return belongs.mT @ ((left.mT @ left) * (right @ right.mT)) @ belongs


def merge_products(
    u: "FileUpdates", pair: Pair, coefficients: Tensor, rank: int | str | None
) -> tuple[Tensor, Tensor, float, float]:
    """The base's product plus the combined updates, as factors A and B of a rank; ``"auto"`` keeps it exact.

    Also returns the norms of the exact product and of the error by truncation and rounding.
    """
    _check_room(u, pair, u.good, 6)
    template = u.inputs.template
    shares, models = coefficients.tolist(), [u.inputs.clients[i] for i in u.good]
    own_share = 1 - float(coefficients.sum())
    if u.inputs.base is not None and abs(own_share) > 1e-12:  # 0 up to rounding if coefficients sum to 1
        shares, models = [own_share, *shares], [u.inputs.base, *models]
    parts = [(share, _factors(u, model, pair)) for share, model in zip(shares, models, strict=True)]
    # parts that add nothing, such as a base with B = 0, would only use up ranks
    adding = [(share, product) for share, product in parts if share and product.left.any()] or parts[:1]
    whole = stacked([Factors(product.left * share, product.right) for share, product in adding])
    A, B = template.entries[pair.A], template.entries[pair.B]
    scale = pair.scale(template)
    tolerance = torch.finfo(A.dtype).eps if rank == "auto" else None
    best = truncated(whole, rank if isinstance(rank, int) else A.shape[0], tolerance)
    # each factor takes √s of the scale, so that both have similar size
    new_A, new_B = (best.right / scale**0.5).to(A.dtype), (best.left / scale**0.5).to(B.dtype)
    if not torch.isfinite(new_A).all() or not torch.isfinite(new_B).all():
        raise ComityError(f"the factors of {pair.module!r} would not be finite as {A.kind}; nothing is written")
    rest = stacked((whole, Factors(new_B.double() * -scale, new_A.double())))
    shapes = (-1, *A.shape[1:]), (B.shape[0], -1, *B.shape[2:])
    return new_A.reshape(shapes[0]), new_B.reshape(shapes[1]), norm(whole), norm(rest)


def _factors(u: "FileUpdates", model: Checkpoint, pair: Pair) -> Factors:
    A, B = model.entries[pair.A], model.entries[pair.B]
    u.advance(A.nbytes + B.nbytes)
    left = model.read(pair.B).double().view(B.shape[0], B.shape[1])
    right = model.read(pair.A).double().view(A.shape[0], -1)
    factors = Factors(left * pair.scale(model), right)
    if not all(torch.isfinite(factor).all() for factor in factors):
        raise model.wrong(f"the factors of {pair.module!r} are not finite")
    return factors


def _check_room(u: "FileUpdates", pair: Pair, rows: Iterable[int], copies: int) -> None:
    """Reject a module whose factors, which are held together, do not fit into memory."""
    needed = 8 * copies * sum(model.entries[name].numel for model in u.models(rows) for name in (pair.A, pair.B))
    if needed > u.room:
        left = show_bytes(max(u.room, 0))
        raise ComityError(
            f"the factors of {pair.module!r} need {show_bytes(needed)} of memory; {left} are left for them"
        )


def minus(own: Factors, base: Factors) -> Factors:
    """The difference of two products, from differences of their factors if ranks allow it: more exact."""
    if own.right.shape == base.right.shape:
        left = torch.cat((own.left - base.left, base.left), 1)
        return Factors(left, torch.cat((own.right, own.right - base.right)))
    return Factors(torch.cat((own.left, -base.left), 1), torch.cat((own.right, base.right)))


def stacked(parts: Iterable[Factors]) -> Factors:
    """The sum of products, as one product."""
    lefts, rights = zip(*parts, strict=True)
    return Factors(torch.cat(lefts, 1), torch.cat(rights))


def truncated(whole: Factors, rank: int, tolerance: float | None = None) -> Factors:
    """The closest product of this rank, with the singular values divided between both factors.

    With a tolerance the rank is the lowest with at most this relative error.
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
    """The norm of a product, without building it, exact also for a small product of large factors."""
    R, S = torch.linalg.qr(whole.left, mode="r").R, torch.linalg.qr(whole.right.mT, mode="r").R
    return float(torch.linalg.matrix_norm(R @ S.mT))
