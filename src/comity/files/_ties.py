"""TIES on files: how much of each update is kept is found in two passes, and the rest is done piece by piece."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.files._updates import FileUpdates, Piece
from comity.rules import TIES

HALF = 16
"""Bits that one pass counts by: magnitudes of float32 have the same order as whole numbers with the same bits."""


def mergers(rule: TIES, u: FileUpdates) -> Mapping[str, Callable[[Tensor], Tensor]]:
    """What makes the merged update of some columns of each tensor from those of all good clients."""
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
    high, above = _place(_counted(u, names, None), torch.full((len(u.good),), kept))
    low, _ = _place(_counted(u, names, high), kept - above)
    return ((high << HALF) | low).to(torch.int32).view(torch.float32)


def _place(counts: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) the bin that holds the number in place ``wanted`` from the top, and how many numbers lie above that bin."""
    from_top = counts.flip(1).cumsum(1)
    place = (from_top < wanted[:, None]).sum(1)
    rows = torch.arange(len(counts))
    bins = counts.shape[1] - 1 - place
    return bins, from_top[rows, place] - counts[rows, bins]


def _counted(u: FileUpdates, names: list[str], high: Tensor | None) -> Tensor:
    """(N, bins) how many magnitudes have each upper half, or each lower half of those whose upper half is ``high``."""

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
