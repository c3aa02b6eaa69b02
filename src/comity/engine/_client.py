"""A client while it answers a request: its data, its state, and a model lent to it for this time."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from comity._random import generator
from comity.data import ClientData, Split
from comity.engine._optimiser import Optimiser, Training
from comity.engine._trainer import Autograd, Trainer, TrainingRequest
from comity.nn import FeatureLoss, Model


@dataclass(frozen=True)
class ClientState:
    """The state of a client between rounds. It never leaves the client."""

    method: dict[str, Tensor] = field(default_factory=dict)
    """``client.keep``: the method's state."""
    engine: dict[str, Tensor] = field(default_factory=dict)
    """The engine's state: the fitted model, BatchNorm's counters, the optimiser's state."""
    secret: dict[str, Tensor] = field(default_factory=dict)
    """Tensors for one round that are never written to a file: keys, seeds and shares of masks."""

    def flat(self, secret: bool = False) -> dict[str, Tensor]:
        """One flat dictionary with names such as ``method/personal``; ``secret`` tensors only if requested."""
        owners = {owner: kept for owner, kept in vars(self).items() if secret or owner != "secret"}
        return {f"{owner}/{name}": tensor for owner, kept in owners.items() for name, tensor in kept.items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "ClientState":
        """The inverse of ``flat``."""
        state = cls()
        for name, tensor in tensors.items():
            owner, _, key = name.partition("/")
            getattr(state, owner)[key] = tensor
        return state


@dataclass(kw_only=True)
class Client:
    """A client, as the client half of a method sees it; ``comity.methods.Client`` is the part that methods may use."""

    id: int
    data: ClientData
    model: Model
    keep: dict[str, Tensor]
    engine_keep: dict[str, Tensor]
    training: Training
    trainer: Trainer
    seed: int
    round: int
    verb: str
    secret: dict[str, Tensor] = field(default_factory=dict, init=False)
    """Tensors for one round that are never written to a file."""
    notes: dict[str, float] = field(default_factory=dict, init=False)
    """Measurements by extensions, by name."""
    origin: Tensor | None = field(default=None, init=False)
    train_loss: float = field(default=math.nan, init=False)
    _optimisers: int = field(default=0, init=False)
    _orders: dict[tuple[int, int], tuple[Tensor, list[int]]] = field(default_factory=dict, init=False)
    """Cached orders, by numbers of samples and batches: methods train several times on the same batches."""

    def state(self) -> ClientState:
        """The client's state after a request."""
        if len(self.model.counters):
            self.engine_keep["counters"] = self.model.counters
        return ClientState(self.keep, self.engine_keep, self.secret)

    def snapshot(self) -> ClientState:
        """A copy of the client's present state, which later changes do not affect."""
        return ClientState(dict(self.keep), dict(self.engine_keep))

    @property
    def lr(self) -> float:
        return self.training.rate(self.round)

    def random(self, purpose: str) -> torch.Generator:
        return generator(self.seed, purpose, self.verb, self.round, self.id)

    def batches(self, epochs: float | None = None, split: Split | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Shuffled batches, in the same order each time within a round, so that two trainings see the same batches.

        A last batch of one sample is left out unless it is the only batch, because BatchNorm needs two samples.
        """
        split = split or self.data.train
        for index in torch.split(*self.order(epochs, split)):
            yield split.x[index], split.y[index]

    def order(self, epochs: float | None = None, split: Split | None = None) -> tuple[Tensor, list[int]]:
        """Indices of the samples of all batches in sequence, and the size of each batch."""
        count = len(split or self.data.train)
        size = self.training.batch_size
        rest = count % size
        each = [size] * (count // size) + [rest] * (rest > 1 or rest == count == 1)
        if epochs is None and self.training.steps is not None:
            batches = self.training.steps if each else 0
        else:
            epochs = self.training.epochs if epochs is None else epochs
            batches = max(1, round(epochs * len(each))) if epochs and each else 0
        if (count, batches) not in self._orders:
            order, sizes, random = [torch.empty(0, dtype=torch.int64)], list[int](), self.random("batches")
            while len(sizes) < batches:
                some = each[: batches - len(sizes)]
                order.append(torch.randperm(count, generator=random)[: sum(some)])
                sizes += some
            self._orders[count, batches] = torch.cat(order), sizes
        return self._orders[count, batches]

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
        anchor, strength = pull or (None, 0.0)
        request = TrainingRequest(
            client=self,
            epochs=epochs,
            parts=parts,
            lr=self.lr if lr is None else lr,
            anchor=anchor,
            pull=strength,
            pull_apart=pull_apart,
            loss=loss,
            on_features=on_features,
        )
        trainer = self.trainer if loss is None and on_features is None else Autograd()
        self.train_loss = trainer.train(request)

    @contextmanager
    def optimiser(self, params: Sequence[Tensor], lr: float | None = None) -> Iterator[Optimiser]:
        """The run's optimiser for these tensors.

        If the run keeps the optimiser's state between rounds, the n-th optimiser of a verb continues with the state of
        the n-th optimiser in the client's last round.
        """
        steps = self.training.optimiser(params, self.lr if lr is None else lr)
        state = f"optimiser.{self.verb}.{self._optimisers}."
        self._optimisers += 1
        if kept := [self.engine_keep[name] for name in sorted(self.engine_keep) if name.startswith(state)]:
            steps.state = [tensor.clone() for tensor in kept]
        yield steps
        if self.training.optimizer_state == "keep":
            self.engine_keep |= {f"{state}{i:05d}": tensor for i, tensor in enumerate(steps.state)}

    @torch.inference_mode()
    def predict(self, split: Split) -> Tensor:
        """Log-probabilities (samples, classes), in evaluation mode.

        A model that diverged gives every class the probability 0, so that metrics stay defined.
        """
        predicted = torch.log_softmax(self.trainer.outputs(self.model, split.x), 1)
        return predicted.nan_to_num(nan=-math.inf, neginf=-math.inf)

    def loss(self, split: Split | None = None) -> float:
        split = split or self.data.train
        return float(losses(self.predict(split), split).mean())


def losses(predicted: Tensor, split: Split) -> Tensor:
    """The log-loss of each sample."""
    return torch.nn.functional.nll_loss(predicted, split.y, reduction="none")


def hits(predicted: Tensor, split: Split) -> Tensor:
    """Whether each sample was predicted correctly."""
    return predicted.argmax(1) == split.y
