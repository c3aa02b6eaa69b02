"""Trainers: the four implementations of ``client.sgd`` and ``client.predict``. A run uses one of them.

``autograd`` trains any model with any optimiser. ``chain`` is plain SGD written out for a chain of plain layers
(``comity.nn.Descent``). ``compiled`` is the same in C, if that is faster and the machine has a compiler
(``comity.nn.descend``). These agree to float rounding. ``bfloat16`` has less precise gradients, so ``auto`` never takes
it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity._errors import ComityError
from comity.nn import Descent, FeatureLoss, Model, Step, can_compile, chain_of, descend, gradients_of, outputs

if TYPE_CHECKING:
    from comity.engine._client import Client
    from comity.engine._optimiser import Training

AT_ONCE = 2**18
"""Input numbers that are predicted at once: the activations of more do not fit in the processor's cache."""
TrainerName = Literal["auto", "autograd", "bfloat16", "chain", "compiled"]


@dataclass(eq=False, kw_only=True)
class TrainingRequest:
    """Arguments of one call of ``client.sgd``."""

    client: "Client"
    epochs: float | None
    """``None``: as many epochs or steps as the run's options say."""
    parts: tuple[str, ...]
    lr: float
    anchor: Tensor | None = None
    """Parameters of a proximal term, towards which training is pulled with strength ``pull``."""
    pull: float = 0.0
    pull_apart: bool = False
    """Whether the pull is a separate step after the optimiser's; for plain SGD both are equal."""
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    """Loss instead of the cross-entropy; only for autograd."""
    on_features: FeatureLoss | None = None
    """Loss added to the cross-entropy; only for autograd."""

    @property
    def step(self) -> Step:
        return Step(lr=self.lr, decay=self.client.training.weight_decay, pull=self.pull)


class Trainer(Protocol):
    gradients: bool = False
    """Whether ``model.gradients`` are computed in C."""

    def train(self, request: TrainingRequest) -> float:
        """Train the client's model; returns the mean loss over batches."""

    def outputs(self, model: Model, x: Tensor) -> Tensor:
        """The network's outputs for these samples, in evaluation mode."""
        net = model.net
        if net.training:  # eval() visits all layers, which takes a small network as long as a prediction
            net.eval()
        at_once = max(16, AT_ONCE // max(1, x[:1].numel()))
        return torch.cat([net(some) for some in torch.split(x, at_once)])


class Autograd(Trainer):
    """Gradients by torch, steps by the run's optimiser."""

    def train(self, request: TrainingRequest) -> float:
        client, model, parts = request.client, request.client.model, request.parts
        total, count = torch.zeros(()), 0
        with model.training(*parts) as params, client.optimiser(params, request.lr) as steps:
            anchor = [] if request.anchor is None else model.split(request.anchor, *parts)[: len(params)]
            if request.loss is None:
                gradients = model.gradients(*parts, on_features=request.on_features)
            else:
                gradients = gradients_of(request.loss, params)
            for x, y in client.batches(request.epochs):
                value, grads = gradients(x, y)
                away = list(torch._foreach_sub([p.detach() for p in params], anchor)) if anchor else []
                if away and not request.pull_apart:
                    torch._foreach_add_(grads, away, alpha=request.pull)
                steps.step(grads)
                if away and request.pull_apart:
                    with torch.no_grad():
                        torch._foreach_add_(params, away, alpha=-request.lr * request.pull)
                total += value
                count += 1
        return float(total) / max(count, 1)


class BFloat16(Autograd):
    """``Autograd`` with the cross-entropy's products in bfloat16; weights, steps and predictions stay in float32."""

    def train(self, request: TrainingRequest) -> float:
        net = request.client.model.net

        def loss(x: Tensor, y: Tensor) -> Tensor:
            with torch.autocast(x.device.type, torch.bfloat16):
                logits = net(x)
            return F.cross_entropy(logits.float(), y)

        return super().train(replace(request, loss=loss))


class Chain(Trainer):
    """Plain SGD on a chain of plain layers."""

    def train(self, request: TrainingRequest) -> float:
        client, data = request.client, request.client.data.train
        descent = Descent(client.model, request.parts, request.step, request.anchor)
        order, sizes = client.order(request.epochs)
        losses = [descent.step(data.x[index], data.y[index]) for index in torch.split(order, sizes)]
        return sum(losses) / max(len(losses), 1)


@dataclass(frozen=True)
class Compiled(Trainer):
    """Plain SGD on a small chain of plain layers, in C."""

    convolves: bool
    """Whether there are convolutions; without them torch predicts equally fast."""
    gradients: bool
    """Whether ``model.gradients`` are computed in C, for a method that takes its own steps."""

    def train(self, request: TrainingRequest) -> float:
        client, data = request.client, request.client.data.train
        order, sizes = client.order(request.epochs)
        loss = descend(client.model, request.parts, request.step, request.anchor, data.x, data.y, order, sizes)
        return loss / max(len(sizes), 1)

    def outputs(self, model: Model, x: Tensor) -> Tensor:
        return outputs(model, x) if self.convolves else super().outputs(model, x)


def trainer_for(training: "Training", model: Model, name: TrainerName = "auto", *, own_steps: bool = False) -> Trainer:
    """The trainer with this name; ``auto`` is the fastest that supports this optimiser and this model.

    ``own_steps``: the method takes gradients of single batches.
    """
    possible: dict[str, Trainer] = {"bfloat16": BFloat16()} if torch.cpu._is_avx512_bf16_supported() else {}
    possible["autograd"] = Autograd()
    if training.plain and (layers := chain_of(model.net)) is not None:
        possible["chain"] = Chain()
        if can_compile(model, training.batch_size):
            possible["compiled"] = Compiled(any(isinstance(layer, nn.Conv2d) for _, layer in layers), own_steps)
    chosen = list(possible)[-1] if name == "auto" else name
    if chosen not in possible:
        raise ComityError(
            f"trainer {chosen} cannot train this model with these options; possible: {', '.join(possible)}"
        )
    return possible[chosen]


def trainer_name(trainer: Trainer, device: str) -> str:
    """Name of a trainer with its vector width or device, which affects the last digits of results."""
    width = torch.backends.cpu.get_cpu_capability() if device == "cpu" else device.partition(":")[0]
    gradients = "+gradients" if trainer.gradients else ""  # until November 2026 compiled trainers left these to torch
    return f"{type(trainer).__name__.lower()}{gradients} {width}"
