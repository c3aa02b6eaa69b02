"""Interfaces of the engine for the two halves of a method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.data import ClientData, Split
from comity.methods._messages import Payload, Reply
from comity.nn import FeatureLoss, Model
from comity.results import RoundRecord
from comity.rules import Outcome, Rule

Q = TypeVar("Q", bound=Payload)
A = TypeVar("A", bound=Payload)


class Optimiser(Protocol):
    """The run's optimiser for given tensors."""

    def step(self, grads: list[Tensor]) -> None: ...


class Client(Protocol):
    """One client during local work, with a borrowed model."""

    id: int
    round: int
    data: ClientData
    model: Model
    keep: dict[str, Tensor]
    """State that must survive until the client's next round. It never leaves the client."""
    origin: Tensor | None
    """The shared part that fitting started from."""
    train_loss: float
    """Mean batch loss of the last training. ``sgd`` sets it; a method with its own training loop sets it itself."""

    @property
    def lr(self) -> float:
        """This round's learning rate."""

    def random(self, purpose: str) -> torch.Generator:
        """A new generator for this client, round and purpose."""

    def batches(self, epochs: float | None = None, split: Split | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches, in the same order on each call within a round; by default for the run's amount of work."""

    def sgd(
        self,
        epochs: float | None = None,
        *parts: str,
        pull: tuple[Tensor, float] | None = None,
        pull_apart: bool = False,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        on_features: FeatureLoss | None = None,
        lr: float | None = None,
    ) -> None:
        """Train ``parts`` of the model (default: all) for ``epochs`` (default: the run's amount of work).

        ``pull=(anchor, strength)`` adds ``strength/2 · ‖parameters − anchor‖²`` to the loss; the anchor is a vector of
        the same parts. ``pull_apart`` applies the pull as a separate step after the optimiser's, outside gradient and
        momentum. ``loss(x, y)`` replaces the cross-entropy; ``on_features`` is added to it.
        """

    def optimiser(self, params: Sequence[Tensor], lr: float | None = None) -> AbstractContextManager[Optimiser]:
        """The run's optimiser for these tensors, for a method with its own training loop."""

    def loss(self, split: Split | None = None) -> float:
        """Mean loss of the current model, by default on the training data."""


@dataclass(frozen=True)
class Combined:
    """Result of aggregating the clients' vectors."""

    theta: Tensor
    applied: Outcome | None  # None if the vectors are empty

    @property
    def outcome(self) -> Outcome:
        """The rule's outcome of this step."""
        if self.applied is None:
            raise ComityError("this method needs the rule's step, but its clients share nothing that a rule acts on")
        return self.applied


class Server(Protocol):
    """The server during a round."""

    theta: Tensor
    """The shared part: parameters first, then buffers."""
    layout: Layout
    """Layout of the parameters in ``theta``."""
    store: dict[str, Tensor]
    """State that must survive until the next round."""
    round: int
    record: RoundRecord
    """Record of this round so far. A method's own notes go into ``record.method``."""

    @property
    def clients(self) -> list[int]: ...

    @property
    def lr(self) -> float:
        """This round's local learning rate."""

    def random(self, purpose: str) -> torch.Generator:
        """A new generator for this round and purpose."""

    def ask(self, verb: Callable[[Client, Q], A], questions: Mapping[int, Q]) -> dict[int, A]:
        """Ask each of these clients to run a verb of the method; returns answers by client, without failed ones."""

    def aggregate(
        self,
        replies: Mapping[int, Reply],
        rows: Mapping[int, Tensor] | None = None,
        *,
        base: Tensor | None = None,
        layout: Layout | None = None,
        rule: Rule | None = None,
        group: str = "",
    ) -> Combined:
        """Apply the rule to the clients' vectors: returns ``base`` (default ``theta``) plus the combined update.

        The vectors are ``rows``, or by default each reply's ``theta``; sizes and losses come from the replies. Buffers,
        which follow the parameters of the layout, are averaged by size under every rule. A method that aggregates
        several times per round (for clusters) names each ``group``: the rule keeps one state per group. A ``rule``
        other than the run's own is not recorded.
        """
