"""What every rule is: coefficients from Gram matrices, and the step that they make."""

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, dataclass_transform

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity._options import check
from comity._random import numpy_generator
from comity._threads import one_thread
from comity.rules._block import By as By
from comity.rules._block import GramBlock as GramBlock
from comity.rules._block import factored
from comity.rules._many import MANY
from comity.rules._products import layer_lengths
from comity.rules._read import Rows as Rows
from comity.rules._rows import NOT_OF_ONE_ROUND, Updates
from comity.rules._sketch import Sketch
from comity.rules._step import Length, with_length
from comity.rules._updates import ClientUpdates, Id
from comity.rules.solvers import Solution

Scope = Literal["model", "layer"]

CAUTIONED = "cautioned"
"""In a rule's state after its first ``caution``."""
STILL = 1e-15  # an update that is shorter counts as 0: its square is lost in float32


MANY_COMPARED = 1_000
"""Clients per round from which on exact products take several times as long as all else in a round of a small net."""


class SolverWarning(UserWarning):
    """A rule's certificate misses its target: the coefficients are not the optimum that they should be."""


class Weighed(NamedTuple):
    """Coefficients (B, N), the residual (B,) of each row, and what else a rule notes of each row or coefficient."""

    coefficients: Tensor
    residuals: Tensor
    notes: dict[str, Tensor]


@dataclass(frozen=True)
class Combination:
    """Who counts how much in a step, and how good that choice is."""

    coefficients: Tensor
    """(B, N) float64: B is 1, or the number of layers."""
    ids: tuple[Id, ...]
    """Whose they are: the clients present, then absent ones that the rule remembers."""
    residual: float
    """The certificate of the worst row."""
    certificate: str
    """What the residual measures."""
    notes: dict[str, Tensor]
    """What else the rule says: (B,), or (B, N) where it says it of each client."""
    updates: ClientUpdates
    """What the coefficients weigh: the updates given, then those of absent clients."""

    @property
    def dropped(self) -> dict[Id, str]:
        """Who was left out, and why."""
        return self.updates.dropped


@dataclass(frozen=True)
class Outcome(Combination):
    """One step of a rule: the update, and what it is made of."""

    updates: Updates
    update: Tensor
    """(P,)"""
    length_ratio: Tensor
    """(L,) the length of each layer's update over that of the plain mean's, nan where the mean is 0."""


@dataclass_transform(field_specifiers=(field,))
class _Declared:
    """Makes every subclass a dataclass, so that its annotated attributes are its options."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(repr=False, eq=False)(cls)


class Rule(_Declared):
    """How the updates of clients become one update.

    A rule of your own gives ``solve``, which takes a `GramBlock` and returns coefficients with their residual. Its
    annotated attributes are its options: ``power: Positive = 1.0`` becomes ``--rule.power``.

    Options:
        scope: the whole model at once, or each layer by itself
        length: of the step: the rule's own, that of the plain mean, a factor on the rule's own, what FedExP gives the
            mean, or what clients find best when they are asked (search)
    """

    certificate: ClassVar[str] = "none needed: a closed formula"
    target: ClassVar[float] = math.inf
    """A residual above it is warned of."""
    needs_losses: ClassVar[bool] = False
    """Whether clients must say how the received model does on their data."""
    has_coefficients: ClassVar[bool] = True
    """Whether the step is a combination of updates. A run needs one; files are merged without."""

    _: KW_ONLY
    scope: Scope = "model"
    length: Length = "own"
    state: dict[str, Tensor] = field(default_factory=dict, init=False)
    """What the rule remembers between rounds: saved and set again, it continues as if it had never stopped."""
    _drew = False

    def __post_init__(self) -> None:
        check(self, "rule")

    @property
    def needs_gram(self) -> bool:
        """Whether coefficients or the step length depend on the Gram matrices."""
        return type(self).solve is not Rule.solve or self.length in ("mean", "fedexp")

    @property
    def tries_steps(self) -> bool:
        """Whether clients are asked what a step would do to their losses."""
        return self.length == "search"

    @property
    def choice(self) -> dict[str, float]:
        """What a rule that chooses among others has to choose from, with weights; the heaviest made the last step."""
        return {}

    @property
    def verdicts(self) -> dict[str, tuple[float, int]]:
        """If clients judged these choices in the last step: the mean change of their losses, and how many it harms."""
        return {}

    @property
    def remembers(self) -> bool:
        """Whether it compares updates with those of earlier rounds, of which sketches say nothing."""
        return False

    def coefficients(self, updates: ClientUpdates) -> Combination:
        """Recall absent clients, weigh all members, judge the certificate and set the length.

        A rule that draws random numbers draws others the next time. Updates are not remembered: `apply` does that.
        """
        updates = self.recall(updates)
        if self.needs_losses and updates.members.losses is None:
            name = type(self).__name__
            raise ComityError(f"{name} needs the clients' losses: {name}()(updates, losses=[...])")
        if self.needs_gram and len(updates.members) <= MANY:
            updates.measure()  # needed in any case, and tells who cannot be used without a pass of its own
        self._drew = False
        coefficients, residuals, notes = self.weigh(updates)
        self._judge(residuals, updates.layout)
        if self._drew:
            self.state["calls"] = torch.tensor(self._calls + 1)
        return Combination(
            coefficients=with_length(self.length, coefficients, self.scope, updates),
            ids=updates.ids,
            residual=float(residuals.max()),
            certificate=self.certificate,
            notes=notes,
            updates=updates,
        )

    def apply(self, updates: Updates) -> Outcome:
        """The whole step: coefficients, the update that they make, and what the rule remembers for the next round."""
        chosen = self.coefficients(updates)
        used = chosen.updates
        assert isinstance(used, Updates)
        update = used.combine(chosen.coefficients)
        if self.needs_gram:
            plain = used.lengths(used.shares)
        else:
            is_plain = torch.equal(chosen.coefficients, used.shares[None])
            plain = layer_lengths(used.layout, update if is_plain else used.combine(used.shares))
        self.remember(used, update)
        length_ratio = torch.where(plain > 0, layer_lengths(used.layout, update) / plain, math.nan)
        return Outcome(**vars(chosen), update=update, length_ratio=length_ratio)

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

    # What a rule says of its own.

    def solve(self, block: GramBlock) -> Solution:
        """Coefficients (n,) of one block's members, their residual, and notes if there are any."""
        raise NotImplementedError

    def weigh(self, updates: ClientUpdates) -> Weighed:
        """Coefficients (B, N) for the whole model, or for each of its layers.

        Each block is solved by itself, without the members whose update is 0 there; their coefficient is 0.
        """
        layers = range(len(updates.layout)) if self.scope == "layer" else [None]
        coefficients = torch.zeros(len(layers), len(updates), dtype=torch.float64)
        residuals = torch.zeros(len(layers), dtype=torch.float64)
        notes: dict[str, Tensor] = {}
        ages, shares = updates.ages.numpy(), updates.shares.numpy()
        losses = np.full(len(ages), math.nan) if updates.losses is None else updates.losses.numpy()
        present = ages == 0
        for layer, place in enumerate(layers):
            squares, factor = factored(updates, place)
            moved = np.flatnonzero(squares > STILL**2)
            if not present[moved].any():
                continue
            unit = float(np.sqrt(squares[moved].mean()))
            with one_thread():
                block = GramBlock(
                    A=factor(moved, unit),
                    unit=unit,
                    present=int(present.sum()),
                    shares=shares[moved],
                    losses=losses[moved],
                    ages=ages[moved],
                    layer=layer,
                    sketched=updates.sketch is not None and len(moved) > MANY,
                    threads=updates.threads,
                )
                solution = self.solve(block)
            coefficients[layer, torch.from_numpy(moved)] = torch.from_numpy(solution.x)
            residuals[layer] = solution.residual
            for name, value in solution.notes.items():
                if isinstance(value, np.ndarray):
                    row = notes.setdefault(name, torch.zeros_like(coefficients))[layer]
                    row[torch.from_numpy(moved)] = torch.from_numpy(value)
                else:
                    notes.setdefault(name, torch.full((len(layers),), math.nan, dtype=torch.float64))[layer] = value
        return Weighed(coefficients, residuals, notes)

    def caution(self, outcome: Combination) -> str:
        """What a user should know of a step that is not what the rule promises; empty where it is."""
        return ""

    def caution_once(self, outcome: Combination) -> str:
        """The first ``caution`` of a run."""
        words = "" if CAUTIONED in self.state else self.caution(outcome)
        if words:
            self.state[CAUTIONED] = torch.tensor(True)
        return words

    def recall(self, updates: ClientUpdates) -> ClientUpdates:
        """The updates, followed by those of absent clients if the rule remembers any."""
        return updates

    def remember(self, updates: Updates, update: Tensor) -> None:
        """Keep in ``state`` what the next round needs."""

    def random(self, *key: str | int) -> np.random.Generator:
        """Random numbers of this call, from the option ``seed`` if there is one, the calls so far and ``key``.

        ``state`` counts the calls in which a rule draws random numbers.
        """
        self._drew = True
        return numpy_generator(getattr(self, "seed", 0), type(self).__name__, self._calls, *key)

    @property
    def _calls(self) -> int:
        return int(self.state.get("calls", 0))

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
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name)
            if parameter.kind is parameter.VAR_KEYWORD:
                shown += [f"{key}={option!r}" for key, option in value.items()]
            elif value != parameter.default:
                shown.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


def check_sketch(sketch: Sketch | None, rule: Rule) -> None:
    """Reject a sketch for a rule that compares updates with those of earlier rounds."""
    if sketch is not None and rule.remembers:
        raise ComityError(f"{type(rule).__name__} remembers updates, and {NOT_OF_ONE_ROUND}: leave sketch out")


def advice_on_products(rule: Rule, clients: int, layers: int) -> str:
    """What to do where a rule would compare so many clients exactly; empty where that is sensible."""
    if not rule.needs_gram or clients < MANY_COMPARED:
        return ""
    instead = (
        "a smaller --participation compares fewer clients" if rule.remembers else "--sketch 1024 estimates the products"
    )
    return (
        f"{type(rule).__name__} compares the updates of {clients:,} clients exactly, in matrices of "
        f"{8 * layers * clients**2 / 1e9:.1f} GB and in time that grows with the cube of the clients: {instead}"
    )
