"""What every rule is: coefficients from Gram matrices, and the steps around them."""

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._random import numpy_generator
from comity.rules._solvers import Array, Integers, Solution, gram, root
from comity.rules._threads import one_thread
from comity.rules._updates import Id, Rows, Updates

T = TypeVar("T")
Scope = Literal["model", "layer"]
Length = Literal["own", "mean"]

STILL = 1e-15  # a shorter update is none: its square is lost in float32


class SolverWarning(UserWarning):
    """A rule's certificate misses its target: the coefficients are not the optimum that they should be."""


class Block(NamedTuple):
    """What a rule sees of one layer, or of the whole model: the n members that moved there."""

    G: Array  # (n, n) Gram matrix, positive semidefinite, with mean diagonal 1
    A: Array  # a square root of it: AᵀA = G
    unit: float  # the length that 1 stands for
    present: int  # how many were to move, whether they did or not: what a mean divides by
    sizes: Array
    losses: Array | None
    ages: Integers  # rounds since each update was sent, 0 for those present
    place: int  # which layer; 0 for the model


class Weights(NamedTuple):
    """Coefficients (B, N), the residual (B,) of each row, and what else a rule says of each row."""

    coefficients: Tensor
    residuals: Tensor
    notes: dict[str, Tensor]


@dataclass(frozen=True)
class Outcome:
    """One step of a rule: the update, and what it is made of."""

    update: Tensor  # (P,)
    coefficients: Tensor  # (B, N) float64: B is 1, or the number of layers
    ids: tuple[Id, ...]  # whose they are: the members present, then absent ones that the rule remembers
    residual: float  # the worst certificate
    certificate: str  # what it says
    stretch: Tensor  # (L,) |this layer's update| / |the plain mean's|, nan where the mean is 0
    dropped: dict[Id, str]
    notes: dict[str, Tensor]
    updates: Updates  # what the coefficients weigh: the updates given, then those of absent clients


class Rule:
    """How the updates of clients become one update.

    A rule of your own gives ``solve`` (a `Block` in, coefficients and their residual out) and keeps the arguments of
    its ``__init__`` under their own names.
    """

    certificate: ClassVar[str] = "none needed: a closed formula"
    target: ClassVar[float] = np.inf  # a residual above it is warned of
    counts = False  # whether the state holds the number of calls: random orders depend on it
    needs_gram = True
    needs_losses: ClassVar[bool] = False  # whether clients must say how the received model does on their data

    def __init__(self, *, scope: Scope = "model", length: Length = "own") -> None:
        self.scope = one_of("scope", scope, get_args(Scope))
        self.length = one_of("length", length, get_args(Length))
        self.state: dict[str, Tensor] = {"calls": torch.tensor(0)} if self.counts else {}

    def solve(self, block: Block) -> Solution:
        """Coefficients (n,) of one block's members, their residual, and notes if there are any."""
        raise NotImplementedError

    def weigh(self, G: Tensor, u: Updates) -> Weights:
        """Coefficients (B, N) for the Gram matrices (B, N, N) of the model or of its layers; 0 for who did not move."""
        coefficients = torch.zeros(G.shape[:2], dtype=torch.float64)
        residuals = torch.zeros(len(G), dtype=torch.float64)
        notes: dict[str, Tensor] = {}
        ages, sizes, losses = u.ages.numpy(), u.sizes.numpy(), None if u.losses is None else u.losses.numpy()
        present = ages == 0
        for place, whole in enumerate(G.numpy()):
            moved = np.flatnonzero(whole.diagonal() > STILL**2)
            if not present[moved].any():
                continue
            unit = float(np.sqrt(whole.diagonal()[moved].mean()))
            A = root(whole[np.ix_(moved, moved)] / unit**2)
            found = self.solve(
                Block(
                    G=gram(A),
                    A=A,
                    unit=unit,
                    present=int(present.sum()),
                    sizes=sizes[moved],
                    losses=None if losses is None else losses[moved],
                    ages=ages[moved],
                    place=place,
                )
            )
            coefficients[place, torch.from_numpy(moved)] = torch.from_numpy(found.x)
            residuals[place] = found.residual
            for name, value in found.notes.items():
                notes.setdefault(name, torch.full((len(G),), math.nan, dtype=torch.float64))[place] = value
        return Weights(coefficients, residuals, notes)

    def apply(self, u: Updates) -> Outcome:
        """The whole step: the absent recalled, coefficients, length, combination, state."""
        u = self.recall(u)
        G = torch.empty(0) if not self.needs_gram else u.grams if self.scope == "layer" else u.gram[None]
        with one_thread():
            coefficients, residuals, notes = self.weigh(G, u)
        self._judge(residuals, u.layout)
        if self.length == "mean":
            longer = _lengths(G, u.shares) / _lengths(G, coefficients)
            coefficients = coefficients * torch.where(longer.isfinite(), longer, 0.0)[:, None]
        combined = u.combine(coefficients)
        update = self.finish(combined)
        if self.needs_gram:
            plain = _lengths(u.grams, u.shares)
        else:
            same = torch.equal(coefficients, u.shares[None])
            plain = _norms(u.layout, combined if same else u.combine(u.shares))
        self.remember(u)
        if self.counts:
            self.state["calls"] = self.state["calls"] + 1
        return Outcome(
            update=update,
            coefficients=coefficients,
            ids=u.ids,
            residual=float(residuals.max()),
            certificate=self.certificate,
            stretch=torch.where(plain > 0, _norms(u.layout, update) / plain, math.nan),
            dropped=u.dropped,
            notes=notes,
            updates=u,
        )

    def __call__(
        self,
        updates: Rows,
        *,
        sizes: Sequence[float] | Tensor | None = None,
        losses: Sequence[float] | Tensor | None = None,
        ids: Sequence[Id] | None = None,
        layout: Layout | None = None,
    ) -> Any:
        """An (N, P) matrix or a list of vectors in, a vector out; a list of state dicts in, a state dict out."""
        u = Updates(updates, layout=layout, sizes=sizes, losses=losses, ids=ids)
        update = self.apply(u).update
        return u.layout.state_dict(update) if isinstance(updates[0], Mapping) else update

    # What a rule may add around its coefficients.

    def recall(self, u: Updates) -> Updates:
        """The updates, with those of absent clients if the rule remembers any."""
        return u

    def finish(self, update: Tensor) -> Tensor:
        """The step taken for the combined update."""
        return update

    def remember(self, u: Updates) -> None:
        """Keep in ``state`` what the next round needs."""

    def random(self, *key: str | int) -> np.random.Generator:
        """Random numbers of this call: they depend on the rule's seed, the number of calls so far, and ``key``."""
        seed: int = self.seed  # type: ignore[attr-defined]
        return numpy_generator(seed, type(self).__name__, int(self.state["calls"]), *key)

    def _judge(self, residuals: Tensor, layout: Layout) -> None:
        missed = (~(residuals <= self.target)).nonzero()[:, 0].tolist()
        if missed:
            worst = max(missed, key=lambda k: float(residuals[k]))
            where = f" in layer {layout.names[worst]}" if self.scope == "layer" else ""
            more = f" and in {len(missed) - 1} more" if len(missed) > 1 else ""
            warnings.warn(
                f"{self!r}: {self.certificate} {residuals[worst]:.0e} exceeds {self.target:.0e}{where}{more}",
                SolverWarning,
                stacklevel=3,
            )

    def __repr__(self) -> str:
        shown = []
        for name, parameter in list(inspect.signature(type(self).__init__).parameters.items())[1:]:
            value = getattr(self, name)
            if parameter.kind is parameter.VAR_KEYWORD:
                shown += [f"{key}={option!r}" for key, option in value.items()]
            elif value != parameter.default:
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def one_of(name: str, given: T, allowed: Sequence[Any]) -> T:
    if given not in allowed:
        raise ComityError(f"{name} is {given!r}; it may be {' or '.join(map(repr, allowed))}")
    return given


def within(name: str, given: float, low: float, high: float = np.inf, *, open_above: bool = False) -> float:
    if not (low <= given < high if open_above else low <= given <= high):
        allowed = f"{low:g} ≤ {name}" + ("" if high == np.inf else f" {'<' if open_above else '≤'} {high:g}")
        raise ComityError(f"{name} is {given!r}; it must satisfy {allowed}")
    return given


def _lengths(G: Tensor, x: Tensor) -> Tensor:
    """|xU| in each block, from the Gram matrices."""
    x = x.expand(len(G), -1)
    return ((x[:, :, None] * G).sum(1) * x).sum(1).clamp_min(0).sqrt()


def _norms(layout: Layout, vector: Tensor) -> Tensor:
    """(L,) the length of each layer."""
    norm = torch.linalg.vector_norm
    with one_thread():  # pieces in the rows' own precision, put together in float64
        pieces = [torch.split(layer.reshape(-1), 2**16) for layer in layout.split(vector)]
        lengths = [norm(torch.stack([norm(piece) for piece in layer]).double()) for layer in pieces]
    return torch.stack(lengths).cpu()
