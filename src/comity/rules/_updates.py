"""What a rule may look at: N updates of one layout, in whatever form they are held."""

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
NOBODY_TO_ASK = (
    "steps are tried by asking clients for their losses, which only a run can do; "
    "here a rule other than Auto and a length other than search are needed"
)


class DroppedWarning(UserWarning):
    """An update was left out: not finite, or not of the shape of the others."""


@dataclass(frozen=True)
class Members:
    """Who sent the updates, in their order."""

    ids: tuple[Id, ...]
    sizes: Tensor
    """(N,) float64, how many samples each has; 0 for absent clients, whom the plain mean leaves out."""
    losses: Tensor | None
    """(N,) float64, of the model as received; nan for absent clients, None when none were given."""
    ages: Tensor
    """(N,) int64, how many rounds ago each update was sent: 0 for those present."""

    def __len__(self) -> int:
        return len(self.ids)

    def only(self, places: Sequence[int]) -> "Members":
        losses = None if self.losses is None else self.losses[places]
        return Members(tuple(self.ids[i] for i in places), self.sizes[places], losses, self.ages[places])


class TriedSteps(NamedTuple):
    """What several steps do to the losses of the n clients that answered."""

    before: Tensor  # (n,) float64, without a step
    after: Tensor  # (n, S, F) float64, after each of S steps at each of F lengths
    samples: Tensor  # (n,) on how many samples each client's losses are


def shares_of(sizes: Tensor) -> Tensor:
    """Each size over their sum; 0 where all are 0."""
    return sizes / sizes.sum().clamp_min(torch.finfo(torch.float64).tiny)


class ClientUpdates(ABC):
    """N updates of one layout and who sent them: everything that a rule looks at.

    `Updates` holds them as rows in memory; `comity.files` leaves them in checkpoint files. Each form has its own way to
    the Gram matrices.
    """

    def __init__(self, layout: Layout, members: Members, misshaped: Mapping[Id, str] | None = None) -> None:
        self.layout = layout
        self.members = members
        """Everybody whose update has the right shape, usable or not."""
        self.misshaped = dict(misshaped or {})
        """Everybody else, and what is wrong with the shape."""
        self.base: Tensor | None = None
        """Where the clients present began, if models were given."""
        self.sketch: Sketch | None = None
        """What the Gram matrices are estimated with, if they are."""
        self.original = layout
        """That of the updates, where the layout is that of their sketches."""
        self.threads: int | None = None
        """How many read large matrices; torch's own number by default."""
        self._products: Tensor | None = None

    @property
    def cosine_error(self) -> float:
        """Standard error of cosines near 0 where sketches estimate them; 0 where they are exact."""
        return 0.0 if self.sketch is None else self.sketch.error()

    @abstractmethod
    def _multiply(self, mean: bool = False) -> Tensor:
        """(L, M, M) float64, the Gram matrices of all M members, those that cannot be used included."""

    @abstractmethod
    def _find_unusable(self) -> dict[int, str]:
        """The places of members whose updates cannot be used, and why; the Gram matrices help if they are there."""

    def measure(self, mean: bool = False) -> None:
        """Compute the Gram matrices now. They also tell who cannot be used, which otherwise takes a pass of its own.

        ``mean``: the plain mean will be asked for too, and may be made on the way.
        """
        if self._products is None:
            self._products = self._multiply(mean)

    # Who takes part: the members whose updates can be used.

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
        """(N,) float64; ones when none were given."""
        return self._taking_part.sizes

    @property
    def losses(self) -> Tensor | None:
        """(N,) float64, before local training; None when none were given."""
        return self._taking_part.losses

    @property
    def ages(self) -> Tensor:
        """(N,) how many rounds ago each update was sent: 0, or more for those that a rule remembers."""
        return self._taking_part.ages

    @property
    def shares(self) -> Tensor:
        """(N,) float64, the weights of the plain mean: by size, over those present."""
        return shares_of(self.sizes)

    @property
    def dropped(self) -> dict[Id, str]:
        """Who was left out, and why."""
        return self.misshaped | {self.members.ids[i]: why for i, why in self._unusable.items()}

    def __len__(self) -> int:
        return len(self._usable)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} of {self.layout})"

    # Their products.

    @cached_property
    def grams(self) -> Tensor:
        """(L, N, N) float64, the Gram matrix of each layer."""
        self.measure()
        assert self._products is not None
        usable = self._usable
        return self._products if len(usable) == len(self.members) else self._products[:, usable][:, :, usable]

    @cached_property
    def gram(self) -> Tensor:
        """(N, N) float64, the Gram matrix of the whole model."""
        return self.grams.sum(0)

    def flat(self, layer: int | None) -> Tensor | None:
        """(N, r) float64 with the products of a layer, or of the model, if there are many clients and r is below N."""
        return None

    @property
    def squares(self) -> Tensor:
        """(N,) float64, the squared length of each update."""
        return self.gram.diagonal()

    def gains(self, coefficients: Tensor) -> Tensor:
        """(N,) the product of each update with a combination, from coefficients (N,), (1, N) or (L, N)."""
        x = coefficients.reshape(-1, len(self))
        return torch.einsum("li,lij->j", x, self.grams) if len(x) > 1 else x[0] @ self.gram

    def lengths(self, coefficients: Tensor) -> Tensor:
        """(L,) how long a combination is in each layer, from coefficients (N,), (1, N) or (L, N)."""
        return combined_lengths(self.grams, coefficients)

    def try_steps(self, steps: Iterable[Tensor], factors: Sequence[float]) -> TriedSteps:
        """What these multiples of steps (P,) would do to the clients' losses, by asking them."""
        raise ComityError(NOBODY_TO_ASK)

    def combine(self, coefficients: Tensor) -> Tensor:
        """(P,) the updates combined with coefficients (N,), (1, N), or (L, N): for each layer its own."""
        raise ComityError(NO_ROWS)


def combined_lengths(grams: Tensor, coefficients: Tensor) -> Tensor:
    """(B,) how long the combination is in each of B Gram matrices, from coefficients (N,), (1, N) or (B, N)."""
    x = coefficients.expand(len(grams), -1)
    return ((x[:, :, None] * grams).sum(1) * x).sum(1).clamp_min(0).sqrt()


def capped(sizes: Tensor, share: float) -> Tensor:
    """The sizes, the largest ones lowered to one bound such that none is more than ``share`` of their sum.

    Where that cannot be, because there are too few, all count the same.
    """
    if share >= 1 or not len(sizes):
        return sizes
    ordered = sizes.sort(descending=True).values
    for count in range(len(sizes)):  # so many of the largest are lowered
        rest = float(ordered[count:].sum())
        bound = share * rest / (1 - share * count) if share * count < 1 else 0.0
        if bound >= float(ordered[count]):
            return sizes if count == 0 else sizes.clamp(max=bound)
    return torch.full_like(sizes, float(ordered[-1]))
