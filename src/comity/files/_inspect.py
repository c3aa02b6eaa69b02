"""What the Gram matrices of clients' files say: who is in conflict, who would be harmed, what a rule would change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from comity._options import Positive, convert
from comity.files._plan import Choice, Lora
from comity.files._updates import FileUpdates, Progress, collect, read_sizes
from comity.rules import (
    CALM,
    COSINE_ROUNDING,
    ConflictRate,
    ConFREE,
    Mean,
    Rule,
    Sketch,
    conflict_rate,
    cosines,
    improvement,
)


@dataclass(frozen=True)
class Verdict:
    """What a rule would do to each client, to first order, by a step as long as the mean's."""

    rule: str
    length: float
    """How many times as long as the mean's its own step is."""
    gains: Tensor
    """(N,) d·Δⱼ: by how much each client's loss falls, times the learning rate."""
    shares: Tensor
    """(N,) d·Δⱼ/|Δⱼ|²: the same over what the client's own update would bring it; nan for who did not move."""
    harmed: tuple[int, ...]
    """Whose loss would rise, worst share first."""

    @property
    def worst(self) -> int:
        return int(torch.where(self.shares.isnan(), torch.inf, self.shares).argmin())


@dataclass(frozen=True)
class Inspection:
    """What the clients' updates say."""

    source: str
    """The base's path, or that the files are updates."""
    ids: tuple[str, ...]
    layers: tuple[str, ...]
    numbers: tuple[int, ...]
    """In each layer."""
    conflict: ConflictRate
    cosines: Tensor
    lengths: Tensor
    """(N,) of the updates."""
    weight: Tensor
    """(L,) each layer's part of the squared length of all updates."""
    effects: Tensor
    """(N, N) Δᵢ·Δⱼ/|Δⱼ|²: what i's update alone would do to j, over what j's own would."""
    verdicts: tuple[Verdict, ...]
    dropped: dict[str, str]
    error: float
    """The standard error of a cosine near 0 where sketches tell, else 0."""
    lr: float | None
    """The clients' learning rate times local steps, if it was given: effects times |Δ|²/lr are changes of loss."""

    @property
    def mean(self) -> Verdict:
        return self.verdicts[0]

    def hurts(self) -> list[tuple[int, int, float]]:
        """Pairs i, j where i's update alone would raise j's loss, and by how much, the worst first."""
        against = (self.effects < 0) & (self.cosines < -COSINE_ROUNDING)
        pairs = [(i, j, float(self.effects[i, j])) for i, j in against.nonzero().tolist() if i != j]
        return sorted(pairs, key=lambda pair: pair[2])

    def loss(self, j: int, share: float) -> float | None:
        """The change of client j's loss that a share stands for, to first order, if the learning rate is known."""
        return None if self.lr is None else -share * float(self.lengths[j]) ** 2 / self.lr


def inspect(
    base: str | Path | None,
    clients: Sequence[str | Path],
    *,
    rules: Sequence[Rule] | None = None,
    lr: float | None = None,
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    lora: Lora = "factors",
    sizes: Mapping[str, float] | str | Path | None = None,
    memory: str | float = "2GB",
    skip_bad: bool = False,
    sketch: float | None = None,
    progress: Progress | None = None,
) -> Inspection:
    """Read the clients' files once and say what is in them; inputs as for `aggregate`.

    ``rules`` come after the plain mean, by default ConFREE and CALM. All are judged at the length of the mean, so that
    they are compared by where they lead and not by how far. With ``sketch`` the products of large tensors are estimated
    from so many random measurements of each, or below 1 from as many as give cosines this standard error: the work then
    grows with the number of clients and not with its square.
    """
    if lr is not None:
        convert(lr, Positive, "lr")
    seen = None if sketch is None else Sketch.of(sketch)
    inputs = collect(base, clients, Choice(only, exclude, "keep", lora), skip_bad)
    u = FileUpdates(inputs, read_sizes(sizes)[0], None, memory, skip_bad, progress, passes=1, sketch=seen)
    others = (ConFREE(), CALM()) if rules is None else rules
    squares = u.gram.diagonal()
    plain = float(torch.linalg.vector_norm(u.lengths(u.shares)))
    verdicts = []
    for rule in (Mean(), *others):
        coefficients = rule.coefficients(u).coefficients
        own = float(torch.linalg.vector_norm(u.lengths(coefficients)))
        gains = improvement(u, coefficients) * (plain / own if own else 0.0)
        shares = torch.where(squares > 0, gains / squares, torch.nan)
        harmed = (gains < -COSINE_ROUNDING * plain * squares.sqrt()).nonzero()[:, 0].tolist()
        worst_first = tuple(sorted(harmed, key=lambda j: float(shares[j])))
        verdicts.append(Verdict(type(rule).__name__, own / plain if plain else 0.0, gains, shares, worst_first))
    return Inspection(
        source="files are updates" if base is None else str(base),
        ids=tuple(map(str, u.ids)),
        layers=u.layout.names,
        numbers=tuple(layer.stop - layer.start for layer in u.layout.layers),
        conflict=conflict_rate(u),
        cosines=cosines(u),
        lengths=squares.sqrt(),
        weight=u.grams.diagonal(dim1=1, dim2=2).sum(1) / squares.sum().clamp_min(torch.finfo(torch.float64).tiny),
        effects=torch.where(squares > 0, u.gram / squares, 0.0),
        verdicts=tuple(verdicts),
        dropped={str(name): why for name, why in u.dropped.items()},
        error=0.0 if seen is None else seen.error(),
        lr=lr,
    )
