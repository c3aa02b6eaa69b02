"""Base class of rules: coefficients from Gram matrices, and the resulting step."""

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
"""Key in a rule's state after its first ``caution``."""
ZERO_LENGTH = 1e-15  # shorter updates count as 0: their square underflows in float32


MANY_COMPARED = 1_000
"""Clients per round from which exact products take several times as long as the rest of a round of a small network."""


class SolverWarning(UserWarning):
    """A solver missed its target accuracy: the coefficients may not be the optimum."""


class Weighed(NamedTuple):
    """Coefficients (B, N), the residual (B,) of each row, and the rule's notes per row or coefficient."""

    coefficients: Tensor
    residuals: Tensor
    notes: dict[str, Tensor]


@dataclass(frozen=True)
class Combination:
    """Coefficients of a step, and the certificate of their accuracy."""

    coefficients: Tensor
    """(B, N) float64: B is 1, or the number of layers."""
    ids: tuple[Id, ...]
    """Ids of the columns: clients present, then absent clients that the rule remembers."""
    residual: float
    """Certificate of the worst row."""
    certificate: str
    """Name of the quantity that the residual measures."""
    notes: dict[str, Tensor]
    """Further values that the rule reports: (B,), or (B, N) if they are per client."""
    updates: ClientUpdates
    """The updates that the coefficients weigh: those given, then those of absent clients."""

    @property
    def dropped(self) -> dict[Id, str]:
        """Ids of the clients that were left out, with the reason."""
        return self.updates.dropped


@dataclass(frozen=True)
class Outcome(Combination):
    """Result of one step of a rule: the combined update and how it was computed."""

    updates: Updates
    update: Tensor
    """(P,)"""
    length_ratio: Tensor
    """(L,) length of each layer's update divided by that of the plain mean, nan where the mean is 0."""


@dataclass_transform(field_specifiers=(field,))
class _Declared:
    """Makes every subclass a dataclass, so that its annotated attributes are its options."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(repr=False, eq=False)(cls)


class Rule(_Declared):
    """A rule that combines client updates into one update.

    To write a rule, implement ``solve``, which takes a `GramBlock` and returns coefficients with their residual.
    Annotated attributes are options: ``power: Positive = 1.0`` becomes ``--rule.power``.

    Options:
        scope: solve for the whole model, or for each layer
        length: length of the step: the rule's own (own), that of the plain mean (mean), a factor on the rule's own,
            FedExP's length (fedexp), or the length that is best for the clients (search)
    """

    certificate: ClassVar[str] = "none needed: a closed formula"
    target: ClassVar[float] = math.inf
    """Accuracy that the residual should reach; above it a `SolverWarning` is given."""
    needs_losses: ClassVar[bool] = False
    """Whether clients must report the loss of the received model on their data."""
    has_coefficients: ClassVar[bool] = True
    """Whether the step is a combination of updates. Runs need it; merging files does not."""

    _: KW_ONLY
    scope: Scope = "model"
    length: Length = "own"
    state: dict[str, Tensor] = field(default_factory=dict, init=False)
    """State between rounds: a rule with a saved and restored state continues exactly."""
    _drew_random = False

    def __post_init__(self) -> None:
        check(self, "rule")

    @property
    def needs_gram(self) -> bool:
        """Whether coefficients or the step length depend on the Gram matrices."""
        return type(self).solve is not Rule.solve or self.length in ("mean", "fedexp")

    @property
    def tries_steps(self) -> bool:
        """Whether clients are asked how a step would change their losses."""
        return self.length == "search"

    @property
    def choice(self) -> dict[str, float]:
        """Weights of the choices, if the rule tries several; the one with the largest weight made the last step."""
        return {}

    @property
    def verdicts(self) -> dict[str, tuple[float, int]]:
        """Mean loss change and number of harmed clients per choice, if the last step had a trial."""
        return {}

    @property
    def remembers(self) -> bool:
        """Whether the rule compares updates with earlier rounds, which sketches do not allow."""
        return False

    def coefficients(self, updates: ClientUpdates) -> Combination:
        """Recall absent clients, compute coefficients, check the certificate and set the length.

        Rules that draw random numbers draw new ones on each call. Only `apply` remembers the updates.
        """
        updates = self.recall(updates)
        if self.needs_losses and updates.members.losses is None:
            name = type(self).__name__
            raise ComityError(f"{name} needs the clients' losses: {name}()(updates, losses=[...])")
        if self.needs_gram and len(updates.members) <= MANY:
            updates.measure()  # needed anyway, and finds unusable updates without another pass
        self._drew_random = False
        coefficients, residuals, notes = self.weigh(updates)
        self._judge(residuals, updates.layout)
        if self._drew_random:
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
        """Compute the whole step: coefficients, the combined update, and the state for the next round."""
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
        """Combine an (N, P) matrix or a list of vectors into a vector, or a list of state dicts into a state dict."""
        u = Updates(updates, layout=layout, sizes=sizes, losses=losses, ids=ids)
        update = self.apply(u).update
        return u.layout.state_dict(update) if isinstance(updates[0], Mapping) else update

    # What a subclass may override.

    def solve(self, block: GramBlock) -> Solution:
        """Coefficients (n,) of one block's members, their residual, and optional notes."""
        raise NotImplementedError

    def weigh(self, updates: ClientUpdates) -> Weighed:
        """Coefficients (B, N) of the whole model or per layer.

        Each block is solved separately, without the members whose update is 0 there; their coefficient is 0.
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
            moved = np.flatnonzero(squares > ZERO_LENGTH**2)
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
        """Warning for the user if the step does not have the properties that the rule promises; otherwise empty."""
        return ""

    def caution_once(self, outcome: Combination) -> str:
        """The first ``caution`` of a run; empty after it."""
        words = "" if CAUTIONED in self.state else self.caution(outcome)
        if words:
            self.state[CAUTIONED] = torch.tensor(True)
        return words

    def recall(self, updates: ClientUpdates) -> ClientUpdates:
        """The updates, followed by those of absent clients that the rule remembers."""
        return updates

    def remember(self, updates: Updates, update: Tensor) -> None:
        """Store in ``state`` what the next round needs."""

    def random(self, *key: str | int) -> np.random.Generator:
        """Random generator for this call, seeded by the option ``seed`` (if any), the number of calls and ``key``.

        ``state`` counts the calls in which the rule drew random numbers.
        """
        self._drew_random = True
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
    """Reject a sketch for a rule that compares updates with earlier rounds."""
    if sketch is not None and rule.remembers:
        raise ComityError(f"{type(rule).__name__} remembers updates, and {NOT_OF_ONE_ROUND}: leave sketch out")


def advice_on_products(rule: Rule, clients: int, layers: int) -> str:
    """Advice if a rule would compare too many clients exactly; otherwise empty."""
    if not rule.needs_gram or clients < MANY_COMPARED:
        return ""
    instead = (
        "a smaller --participation compares fewer clients" if rule.remembers else "--sketch 1024 estimates the products"
    )
    return (
        f"{type(rule).__name__} compares the updates of {clients:,} clients exactly, in matrices of "
        f"{8 * layers * clients**2 / 1e9:.1f} GB and in time that grows with the cube of the clients: {instead}"
    )
