"""The interface of updates for rules: N updates of one layout, however they are stored."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.rules._sketch import Sketch

Id = int | str

NO_ROWS = "these updates are not held in memory: their rows cannot be combined or remembered"
NO_CLIENTS_TO_ASK = (
    "steps are tried by asking clients for their losses, which only a run can do; "
    "here a rule other than Auto and a length other than search are needed"
)


class DroppedWarning(UserWarning):
    """An update was left out because it is not finite or has another shape than the others."""


@dataclass(frozen=True)
class Members:
    """The clients that sent the updates, in the order of the updates."""

    ids: tuple[Id, ...]
    sizes: Tensor
    """(N,) float64 number of samples; 0 for absent clients, which the plain mean leaves out."""
    losses: Tensor | None
    """(N,) float64 loss of the received model; nan for absent clients, None if no losses were given."""
    ages: Tensor
    """(N,) int64 rounds since each update was sent: 0 for clients present."""

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, places: Sequence[int]) -> "Members":
        losses = None if self.losses is None else self.losses[places]
        return Members(tuple(self.ids[i] for i in places), self.sizes[places], losses, self.ages[places])


class TriedSteps(NamedTuple):
    """Effect of several steps on the losses of the n clients that answered."""

    before: Tensor  # (n,) float64 loss without a step
    after: Tensor  # (n, S, F) float64 loss after each of S steps at each of F lengths
    samples: Tensor  # (n,) number of samples behind each client's losses


def shares_of(sizes: Tensor) -> Tensor:
    """Each size divided by their sum; 0 if all are 0."""
    return sizes / sizes.sum().clamp_min(torch.finfo(torch.float64).tiny)


class ClientUpdates(ABC):
    """N updates of one layout and their senders: the input of a rule.

    `Updates` holds them as rows in memory; `comity.files` leaves them in checkpoint files. Each subclass computes the
    Gram matrices in its own way.
    """

    def __init__(self, layout: Layout, members: Members, misshaped: Mapping[Id, str] | None = None) -> None:
        self.layout = layout
        self.members = members
        """All clients whose update has the right shape, usable or not."""
        self.misshaped = dict(misshaped or {})
        """All other clients, with the reason."""
        self.base: Tensor | None = None
        """The model that the clients present started from, if models were given."""
        self.sketch: Sketch | None = None
        """The sketch that estimates the Gram matrices, if they are estimated."""
        self.original = layout
        """Layout of the full updates, where ``layout`` is that of their sketches."""
        self.threads: int | None = None
        """Threads that read large matrices; torch's number by default."""
        self._products: Tensor | None = None

    @property
    def cosine_error(self) -> float:
        """Standard error of cosines near 0 if sketches estimate them, otherwise 0."""
        return 0.0 if self.sketch is None else self.sketch.error()

    @abstractmethod
    def _multiply(self, mean: bool = False) -> Tensor:
        """(L, M, M) float64 Gram matrices of all M members, including unusable ones."""

    @abstractmethod
    def _find_unusable(self) -> dict[int, str]:
        """Index and reason of each unusable update; uses the Gram matrices if they were computed."""

    def measure(self, mean: bool = False) -> None:
        """Compute the Gram matrices now. They also show which updates are unusable, without another pass.

        ``mean``: the plain mean will be needed too and may be computed in the same pass.
        """
        if self._products is None:
            self._products = self._multiply(mean)

    # Members with usable updates.

    @cached_property
    def _unusable(self) -> dict[int, str]:
        return self._find_unusable()

    @cached_property
    def _usable(self) -> list[int]:
        return [i for i in range(len(self.members)) if i not in self._unusable]

    @cached_property
    def _taking_part(self) -> Members:
        return self.members.only(self._usable)

    @property
    def ids(self) -> tuple[Id, ...]:
        return self._taking_part.ids

    @property
    def sizes(self) -> Tensor:
        """(N,) float64 number of samples; ones if no sizes were given."""
        return self._taking_part.sizes

    @property
    def losses(self) -> Tensor | None:
        """(N,) float64 loss before local training; None if no losses were given."""
        return self._taking_part.losses

    @property
    def ages(self) -> Tensor:
        """(N,) rounds since each update was sent: 0, or more for remembered updates."""
        return self._taking_part.ages

    @property
    def shares(self) -> Tensor:
        """(N,) float64 weights of the plain mean: by size, over clients present."""
        return shares_of(self.sizes)

    @property
    def dropped(self) -> dict[Id, str]:
        """Ids of the clients that were left out, with the reason."""
        return self.misshaped | {self.members.ids[i]: why for i, why in self._unusable.items()}

    def __len__(self) -> int:
        return len(self._usable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.layout})"

    # Products of updates.

    @cached_property
    def grams(self) -> Tensor:
        """(L, N, N) float64 Gram matrix of each layer."""
        self.measure()
        assert self._products is not None
        usable = self._usable
        return self._products if len(usable) == len(self.members) else self._products[:, usable][:, :, usable]

    @cached_property
    def gram(self) -> Tensor:
        """(N, N) float64 Gram matrix of the whole model."""
        return self.grams.sum(0)

    def flat(self, layer: int | None) -> Tensor | None:
        """(N, r) float64 factor A with A Aᵀ equal to the Gram matrix of a layer or the model, or None if r ≥ N."""
        return None

    @property
    def squares(self) -> Tensor:
        """(N,) float64 squared length of each update."""
        return self.gram.diagonal()

    def gains(self, coefficients: Tensor) -> Tensor:
        """(N,) product of each update with a combination, from coefficients (N,), (1, N) or (L, N)."""
        x = coefficients.reshape(-1, len(self))
        return torch.einsum("li,lij->j", x, self.grams) if len(x) > 1 else x[0] @ self.gram

    def lengths(self, coefficients: Tensor) -> Tensor:
        """(L,) length of a combination in each layer, from coefficients (N,), (1, N) or (L, N)."""
        return combined_lengths(self.grams, coefficients)

    def try_steps(self, steps: Iterable[Tensor], factors: Sequence[float]) -> TriedSteps:
        """Ask clients how these multiples of steps (P,) would change their losses."""
        raise ComityError(NO_CLIENTS_TO_ASK)

    def combine(self, coefficients: Tensor) -> Tensor:
        """(P,) combination of the updates with coefficients (N,), (1, N) or (L, N), one row per layer."""
        raise ComityError(NO_ROWS)


def combined_lengths(grams: Tensor, coefficients: Tensor) -> Tensor:
    """(B,) length of a combination under each of B Gram matrices, from coefficients (N,), (1, N) or (B, N)."""
    x = coefficients.expand(len(grams), -1)
    return ((x[:, :, None] * grams).sum(1) * x).sum(1).clamp_min(0).sqrt()


def capped(sizes: Tensor, share: float) -> Tensor:
    """Lower the largest sizes to a common bound, so that no size exceeds ``share`` of the sum.

    If there are too few clients for this, all sizes become equal.
    """
    if share >= 1 or not len(sizes):
        return sizes
    ordered = sizes.sort(descending=True).values
    for count in range(len(sizes)):  # number of the largest that are lowered
        rest = float(ordered[count:].sum())
        bound = share * rest / (1 - share * count) if share * count < 1 else 0.0
        if bound >= float(ordered[count]):
            return sizes if count == 0 else sizes.clamp(max=bound)
    return torch.full_like(sizes, float(ordered[-1]))
