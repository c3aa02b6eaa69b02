"""A client at work: its data, what it keeps, and a model lent to it while it works."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from comity._random import generator
from comity.data import ClientData, Split
from comity.engine._lockstep import Job, Seat, train
from comity.engine._optimiser import Optimiser, Training
from comity.nn import Model, chain_of


@dataclass
class Client:
    """What the client half of a method sees."""

    id: int
    data: ClientData
    keep: dict[str, Tensor]
    model: Model
    training: Training
    seed: int
    round: int
    verb: str
    seat: Seat | None = None
    """Where it sits, when others train beside it."""
    origin: Tensor | None = field(default=None, init=False)
    """The shared part that fitting started from."""
    train_loss: float = field(default=math.nan, init=False)
    """Mean loss of a batch in the last training."""
    _optimisers: int = field(default=0, init=False)

    @property
    def lr(self) -> float:
        """This round's learning rate."""
        return self.training.rate(self.round)

    def random(self, purpose: str) -> torch.Generator:
        """A new generator of this client's own, for this round and purpose."""
        return generator(self.seed, purpose, self.verb, self.round, self.id)

    def batches(self, epochs: int = 1, split: Split | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches, in the same order each time in a round, so that two trainings differ by what they do alone.

        A last batch of one sample is left out when it is not the only one: BatchNorm needs two.
        """
        split = split or self.data.train
        for index in self.orders(epochs, split):
            yield split.x[index], split.y[index]

    def orders(self, epochs: int, split: Split | None = None) -> Iterator[Tensor]:
        """Which samples are in each batch."""
        count = len(split or self.data.train)
        size, random = self.training.batch_size, self.random("batches")
        for _ in range(epochs):
            order = torch.randperm(count, generator=random)
            for start in range(0, count, size):
                index = order[start : start + size]
                if len(index) > 1 or start == 0 or size == 1:
                    yield index

    def sgd(
        self,
        epochs: int | None = None,
        *parts: str,
        pull: tuple[Tensor, float] | None = None,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        lr: float | None = None,
    ) -> None:
        """Train ``parts`` of the model, all of them by default, for ``epochs`` (the run's own number by default).

        ``pull=(anchor, strength)`` adds ``strength/2 · ‖parameters − anchor‖²`` to the loss; the anchor is a vector of
        the same parts. ``loss(x, y)`` replaces the cross-entropy.
        """
        model = self.model
        epochs = self.training.epochs if epochs is None else epochs
        if loss is None and self.training.plain and chain_of(model.net) is not None:
            job = Job(self, epochs, parts, self.lr if lr is None else lr, *(pull or (None, 0.0)))
            if self.seat is None:
                train([job])
            else:
                self.seat.train(job)
            self.train_loss = job.loss
            return
        total, count = torch.zeros(()), 0
        with model.training(*parts) as params, self.optimiser(params, lr) as steps:
            anchor = [] if pull is None else model.split(pull[0], *parts)[: len(params)]
            for x, y in self.batches(epochs):
                value = (loss or model.loss)(x, y)
                grads = list(torch.autograd.grad(value, params))
                if pull is not None:
                    with torch.no_grad():
                        torch._foreach_add_(grads, torch._foreach_sub(params, anchor), alpha=pull[1])
                steps.step(grads)
                total += value.detach()
                count += 1
        self.train_loss = float(total) / max(count, 1)

    @contextmanager
    def optimiser(self, params: Sequence[Tensor], lr: float | None = None) -> Iterator[Optimiser]:
        """The run's optimiser for these tensors. Where the run keeps its state between rounds, the n-th optimiser of a
        round goes on where the n-th of the client's last round stopped.
        """
        steps = self.training.optimiser(params, self.lr if lr is None else lr)
        state = f"optimiser.{self._optimisers}."
        self._optimisers += 1
        if kept := [self.keep[name] for name in sorted(self.keep) if name.startswith(state)]:
            steps.state = [tensor.clone() for tensor in kept]
        yield steps
        if self.training.optimizer_state == "keep":
            self.keep |= {f"{state}{i:05d}": tensor for i, tensor in enumerate(steps.state)}

    @torch.inference_mode()
    def losses(self, split: Split, model: Model | None = None) -> tuple[Tensor, Tensor]:
        """Loss and correctness of each sample, in evaluation mode."""
        net = (model or self.model).net.eval()
        logits = torch.cat([net(x) for x in torch.split(split.x, 512)])
        return (
            torch.nn.functional.cross_entropy(logits, split.y, reduction="none"),
            logits.argmax(1) == split.y,
        )

    def loss(self, split: Split | None = None) -> float:
        """Mean loss of the model as it stands, on the training data by default."""
        return float(self.losses(split or self.data.train)[0].mean())
