"""How ``client.sgd`` trains: one of three ways, chosen once for a run.

``autograd`` trains any model with any optimiser. ``chain`` is plain SGD written out for a chain of plain layers
(``comity.nn.Descent``). ``stacked`` is the same for several clients as one, whose weights lie in one tensor. All agree
to float rounding, and the bits of ``chain`` and ``stacked`` are the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from comity._errors import ComityError
from comity.nn import Descent, Model, Step, chain_of, lines, stack_size

if TYPE_CHECKING:
    from comity.engine._client import Client
    from comity.engine._optimiser import Training

TrainerName = Literal["autograd", "chain", "stacked"]

BLOCK = 2_000_000
"""Bytes of samples to lay out at once for the steps to come."""


@dataclass(eq=False, kw_only=True)
class TrainingRequest:
    """A training that a client asks for."""

    client: "Client"
    epochs: int
    parts: tuple[str, ...]
    lr: float
    anchor: Tensor | None = None
    """What the parameters are pulled towards, with strength ``pull``."""
    pull: float = 0.0
    pull_apart: bool = False
    """Whether the pull is a step of its own beside the optimiser's; plain SGD makes the same of both."""
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """In place of the cross-entropy; for autograd alone."""

    @property
    def batch(self) -> int:
        return min(self.client.training.batch_size, len(self.client.data.train))

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests that agree in this can be met as one."""
        return self.parts, self.lr, self.anchor is None, self.pull, self.batch


class Trainer(Protocol):
    def train(self, request: TrainingRequest) -> float:
        """Train the client's model; the mean loss of a batch."""


class Autograd:
    """Gradients by torch, steps by the run's optimiser."""

    def train(self, request: TrainingRequest) -> float:
        client, model, parts = request.client, request.client.model, request.parts
        total, count = torch.zeros(()), 0
        with model.training(*parts) as params, client.optimiser(params, request.lr) as steps:
            anchor = [] if request.anchor is None else model.split(request.anchor, *parts)[: len(params)]
            for x, y in client.batches(request.epochs):
                value = (request.loss or model.loss)(x, y)
                grads = list(torch.autograd.grad(value, params))
                away = list(torch._foreach_sub([p.detach() for p in params], anchor)) if anchor else []
                if away and not request.pull_apart:
                    torch._foreach_add_(grads, away, alpha=request.pull)
                steps.step(grads)
                if away and request.pull_apart:
                    with torch.no_grad():
                        torch._foreach_add_(params, away, alpha=-request.lr * request.pull)
                total += value.detach()
                count += 1
        return float(total) / max(count, 1)


class Chain:
    """Plain SGD on a chain of plain layers, one client at a time."""

    def train(self, request: TrainingRequest) -> float:
        return train_as_one([request])[0]


@dataclass(frozen=True)
class Stacked(Chain):
    """Plain SGD on a chain of plain layers, at most so many clients as one."""

    clients: int


def trainer_for(training: "Training", model: Model, name: TrainerName | None = None) -> Trainer:
    """The fastest way that this optimiser and this model allow, or the one that is named."""
    if name is not None and name not in get_args(TrainerName):
        raise ComityError(f"trainer must be {' | '.join(get_args(TrainerName))}, got {name!r}")
    possible: dict[str, Trainer] = {"autograd": Autograd()}
    if training.plain and chain_of(model.net) is not None:
        possible["chain"] = Chain()
        if (clients := stack_size(model)) > 1:
            possible["stacked"] = Stacked(clients)
    chosen = name or list(possible)[-1]
    if chosen not in possible:
        raise ComityError(
            f"trainer {chosen} cannot train this model with these options; possible: {', '.join(possible)}"
        )
    return possible[chosen]


def train_as_one(requests: Sequence[TrainingRequest]) -> list[float]:
    """Meet requests of one kind; the mean loss of a batch for each.

    Requests of neighbours in a stack are met together as long as none has more batches than the one before it.
    """
    start, losses = 0, []
    orders = [list(request.client.orders(request.epochs)) for request in requests]
    for end in range(1, len(requests) + 1):
        if end < len(requests) and len(orders[end]) <= len(orders[end - 1]):
            left, right = requests[end - 1].client.model, requests[end].client.model
            if left.stack and left.stack is right.stack and right.position == left.position + 1:
                continue
        losses += _descend(requests[start:end], orders[start:end])
        start = end
    return losses


def _descend(requests: Sequence[TrainingRequest], orders: Sequence[list[Tensor]]) -> list[float]:
    first = requests[0]
    models = [request.client.model for request in requests]
    step = Step(lr=first.lr, decay=first.client.training.weight_decay, pull=first.pull)
    descent = Descent(models, first.parts, step, [each.anchor for each in requests if each.anchor is not None])
    if models[0].stack:
        totals = _descend_stack(descent, requests, orders)
    else:
        totals = torch.zeros(1)
        x, y = first.client.data.train.x, first.client.data.train.y
        for index in orders[0]:
            totals += descent.step(x[index], y[index].view(1, -1, 1), torch.full((1, len(index), 1), 1 / len(index)))
    return [total / max(len(order), 1) for order, total in zip(orders, totals.tolist(), strict=True)]


def _descend_stack(descent: Descent, requests: Sequence[TrainingRequest], orders: Sequence[list[Tensor]]) -> Tensor:
    """All steps of a stack of nets; the sum of each net's losses. Batches are filled up to one size."""
    totals = torch.zeros(len(requests))
    if not orders[0]:
        return totals
    samples = [request.client.data.train.x.flatten(1) for request in requests]
    batch, numbers = requests[0].batch, samples[0].shape[1]
    width = lines(numbers)
    plans = [_plan(order, batch) for order in orders]
    steps = [len(order) for order in orders]
    shares = pad_sequence([share for _, share in plans], batch_first=True)[..., None]
    at_once = max(1, min(max(steps), BLOCK // (4 * len(requests) * batch * width)))
    x = torch.zeros(len(requests), at_once, batch, width)
    y = torch.empty(len(requests), at_once, batch, 1, dtype=torch.int64)
    for start in range(0, max(steps), at_once):
        for i, (request, (index, _)) in enumerate(zip(requests, plans, strict=True)):
            block = index[start : start + at_once]
            x[i, : len(block), :, :numbers] = samples[i][block]
            y[i, : len(block), :, 0] = request.client.data.train.y[block]
        for k in range(min(at_once, max(steps) - start)):
            nets = sum(count > start + k for count in steps)
            totals[:nets] += descent.step(x[:nets, k], y[:nets, k], shares[:nets, start + k])
    return totals


def _plan(order: list[Tensor], batch: int) -> tuple[Tensor, Tensor]:
    """(steps, batch) which samples, and their shares in the mean of their batch: zero for those that fill it up."""
    sizes = torch.tensor([[len(chosen)] for chosen in order])
    inside = torch.arange(batch) < sizes
    index = torch.zeros(len(order), batch, dtype=torch.int64)
    index[inside] = torch.cat(order)
    return index, inside / sizes
