"""What the two halves of a method see of the engine."""

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
    """The run's optimiser for some tensors."""

    def step(self, grads: list[Tensor]) -> None: ...


class Client(Protocol):
    """One client at work, with a model that is lent to it."""

    id: int
    round: int
    data: ClientData
    model: Model
    keep: dict[str, Tensor]
    """What must survive until the client's next round. It never leaves the client."""
    origin: Tensor | None
    """The shared part that fitting started from."""
    train_loss: float
    """Mean loss of a batch in the last training. ``sgd`` sets it; a method with a loop of its own does so itself."""

    @property
    def lr(self) -> float:
        """This round's learning rate."""

    def random(self, purpose: str) -> torch.Generator:
        """A new generator of this client's own, for this round and purpose."""

    def batches(self, epochs: float | None = None, split: Split | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches, in the same order each time in a round, for the run's own amount of work by default."""

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
        """Train ``parts`` of the model, all by default, for ``epochs``, the run's own amount of work by default.

        ``pull=(anchor, strength)`` adds ``strength/2 · ‖parameters − anchor‖²`` to the loss; the anchor is a vector of
        the same parts. ``pull_apart`` keeps the pull out of the gradient, and so out of momentum: it is a step of its
        own beside the optimiser's. ``loss(x, y)`` replaces the cross-entropy; ``on_features`` is added to it.
        """

    def optimiser(self, params: Sequence[Tensor], lr: float | None = None) -> AbstractContextManager[Optimiser]:
        """The run's optimiser for these tensors, for a training loop of the method's own."""

    def loss(self, split: Split | None = None) -> float:
        """Mean loss of the model as it stands, on the training data by default."""


@dataclass(frozen=True)
class Combined:
    """What a rule made of the clients' vectors."""

    theta: Tensor
    applied: Outcome | None  # `None` where the vectors are empty

    @property
    def outcome(self) -> Outcome:
        """The rule's own account of its step."""
        if self.applied is None:
            raise ComityError("this method needs the rule's step, but its clients share nothing that a rule acts on")
        return self.applied


class Server(Protocol):
    """The server in the middle of a round."""

    theta: Tensor
    """The shared part: parameters first, then buffers."""
    layout: Layout
    """Of the parameters in ``theta``."""
    store: dict[str, Tensor]
    """What must survive until the next round."""
    round: int
    record: RoundRecord
    """What is known of this round so far. A method's own notes go into ``record.method``."""

    @property
    def clients(self) -> list[int]: ...

    @property
    def lr(self) -> float:
        """This round's local learning rate."""

    def random(self, purpose: str) -> torch.Generator:
        """A new generator for this round and purpose."""

    def ask(self, verb: Callable[[Client, Q], A], questions: Mapping[int, Q]) -> dict[int, A]:
        """Have each of these clients do a verb of the method; answers by client, without those that failed."""

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
        """What the rule makes of the clients' vectors: ``base`` (by default ``theta``) plus the combined update.

        The vectors are ``rows``, or by default each reply's ``theta``; sizes and losses are the replies'. Buffers,
        which lie behind the parameters of the layout, are averaged by size whatever the rule. A method that aggregates
        several times per round (for clusters) names each ``group``: the rule keeps a state for each. Another ``rule``
        than the run's own leaves no trace in the record.
        """
