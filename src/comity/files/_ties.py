"""TIES on files: two passes find the threshold of each update, and merging is done piece by piece."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.files._updates import FileUpdates, Piece
from comity.rules import TIES

HALF = 16
"""Bits per counting pass: magnitudes of float32 have the same order as integers with the same bits."""


def mergers(rule: TIES, u: FileUpdates) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """Functions that merge some columns of each tensor from those of all good clients."""
    names = u.inputs.plan.merged
    if u.inputs.plan.pairs:
        raise ComityError("TIES compares single numbers, not products: leave out --lora products")
    groups = [[name] for name in names] if rule.scope == "layer" else [list(names)]
    found: dict[str, Callable[[Tensor], Tensor]] = {}
    for group in groups:
        kept = rule.kept(sum(u.inputs.template.entries[name].numel for name in group))
        least = _least_kept(u, group, kept)
        for name in group:
            found[name] = lambda U, least=least: rule.merge(U, least)  # type: ignore[misc]
    return found


def _least_kept(u: FileUpdates, names: list[str], kept: int) -> Tensor:
    """(N,) the ``kept``-th largest magnitude of each client in these tensors."""
    high, above = _bin_of(_counted(u, names, None), torch.full((len(u.good),), kept))
    low, _ = _bin_of(_counted(u, names, high), kept - above)
    return ((high << HALF) | low).to(torch.int32).view(torch.float32)


def _bin_of(counts: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) the bin of the ``wanted``-th largest number, and how many numbers are above that bin."""
    from_top = counts.flip(1).cumsum(1)
    place = (from_top < wanted[:, None]).sum(1)
    rows = torch.arange(len(counts))
    bins = counts.shape[1] - 1 - place
    return bins, from_top[rows, place] - counts[rows, bins]


def _counted(u: FileUpdates, names: list[str], high: Tensor | None) -> Tensor:
    """(N, bins) counts of magnitudes by upper half, or by lower half of those whose upper half is ``high``."""

    def count(piece: Piece) -> Tensor:
        found = torch.zeros(len(piece.rows), 1 << HALF, dtype=torch.int64)
        for _, U, _ in piece.blocks():
            for place, row in enumerate(U.abs().float().view(torch.int32)):
                upper = row >> HALF
                numbers = upper if high is None else row[upper == high[place]] & ((1 << HALF) - 1)
                found[place] += torch.bincount(numbers, minlength=1 << HALF)
        return found

    total = torch.zeros(len(u.good), 1 << HALF, dtype=torch.int64)
    for name in names:
        for some in u.sweep(name, u.good, count):
            total += some
    return total
