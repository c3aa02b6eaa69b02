"""Diagnose conflict between clients' files from Gram matrices: who would be harmed, and the effect of rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from comity.files._plan import Choice, Lora, Table, collect
from comity.files._updates import FileUpdates, Progress
from comity.rules import CALM, COSINE_ROUNDING, ConflictRate, ConFREE, Mean, conflict_rate, cosines, improvement


@dataclass(frozen=True)
class Verdict:
    """First-order effect of a rule on each client, for a step of the mean's length."""

    rule: str
    length: float
    """Length of the rule's own step relative to the mean's."""
    shares: Tensor
    """(N,) d·Δⱼ/|Δⱼ|²: a client's gain relative to that of its own update; nan if it did not move."""
    harmed: tuple[int, ...]
    """Clients whose loss would rise, worst first."""

    @property
    def worst(self) -> int:
        return int(torch.where(self.shares.isnan(), torch.inf, self.shares).argmin())


@dataclass(frozen=True)
class Inspection:
    """The diagnosis of the clients' updates."""

    source: str
    """The base's path, or a note that the files are updates."""
    ids: tuple[str, ...]
    layers: tuple[str, ...]
    numbers: tuple[int, ...]
    """Parameters per layer."""
    conflict: ConflictRate
    cosines: Tensor
    weight: Tensor
    """(L,) each layer's share of the squared length of all updates."""
    effects: Tensor
    """(N, N) Δᵢ·Δⱼ/|Δⱼ|²: effect of i's update on j, relative to that of j's own."""
    verdicts: tuple[Verdict, ...]
    dropped: dict[str, str]

    @property
    def mean(self) -> Verdict:
        return self.verdicts[0]

    def hurts(self) -> list[tuple[int, int, float]]:
        """Pairs i, j where i's update would raise j's loss, with the effect, worst first."""
        against = (self.effects < 0) & (self.cosines < -COSINE_ROUNDING)
        pairs = [(i, j, float(self.effects[i, j])) for i, j in against.nonzero().tolist() if i != j]
        return sorted(pairs, key=lambda pair: pair[2])


def inspect(
    base: str | Path | None,
    clients: Sequence[str | Path],
    *,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    lora: Lora = "factors",
    sizes: Table | str | Path | None = None,
    memory: str | float = "2GB",
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """Read the clients' files once and diagnose conflict between them; inputs as for `aggregate`.

    The plain mean, ConFREE and CALM are all judged at the length of the mean, so that their directions are compared,
    not their step lengths.
    """
    inputs = collect(base, clients, Choice(only, exclude, "keep", lora), sizes, None, skip_bad)
    u = FileUpdates(inputs, memory, skip_bad, progress, passes=1)
    squares = u.gram.diagonal()
    plain = float(torch.linalg.vector_norm(u.lengths(u.shares)))
    verdicts = []
    for rule in (Mean(), ConFREE(), CALM()):
        coefficients = rule.coefficients(u).coefficients
        own = float(torch.linalg.vector_norm(u.lengths(coefficients)))
        gains = improvement(u, coefficients) * (plain / own if own else 0.0)
        shares = torch.where(squares > 0, gains / squares, torch.nan)
        harmed = (gains < -COSINE_ROUNDING * plain * squares.sqrt()).nonzero()[:, 0].tolist()
        worst_first = tuple(sorted(harmed, key=lambda j: float(shares[j])))
        verdicts.append(Verdict(type(rule).__name__, own / plain if plain else 0.0, shares, worst_first))
    return Inspection(
        source="files are updates" if base is None else str(base),
        ids=tuple(map(str, u.ids)),
        layers=u.layout.names,
        numbers=tuple(layer.stop - layer.start for layer in u.layout.layers),
        conflict=conflict_rate(u),
        cosines=cosines(u),
        weight=u.grams.diagonal(dim1=1, dim2=2).sum(1) / squares.sum().clamp_min(torch.finfo(torch.float64).tiny),
        effects=torch.where(squares > 0, u.gram / squares, 0.0),
        verdicts=tuple(verdicts),
        dropped={str(name): why for name, why in u.dropped.items()},
    )
