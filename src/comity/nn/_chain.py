"""Gradients and SGD without autograd, for networks that are a chain of plain layers.

In a small network most of the time is overhead between operations. Here a step consists of a few matrix products: the
product that computes a linear layer's gradient adds it to the weights, so that the gradient is never stored.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity.nn._net import Net

if TYPE_CHECKING:
    from comity.nn._model import Model

aten = torch.ops.aten
Layers = list[tuple[str, nn.Module]]


def chain_of(net: nn.Module) -> Layers | None:
    """The layers of a chain in order, each with its part; ``None`` if the network is no chain or is on a GPU."""
    if type(net).forward is not Net.forward or [part for part, _ in net.named_children()] != ["body", "head"]:
        return None
    body, head = net.get_submodule("body"), net.get_submodule("head")
    if type(body) is not nn.Sequential or next(net.parameters()).device.type != "cpu":
        return None
    layers = [*(("body", layer) for layer in body), ("head", head)]
    known = re.fullmatch("[CMR]*F[LR]*L", "".join(_LETTERS.get(type(layer), "?") for _, layer in layers))
    return layers if known and all(_is_plain(layer) for _, layer in layers) else None


def _is_plain(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.bias is not None and layer.groups == 1 and isinstance(layer.padding, tuple)
    return not isinstance(layer, nn.Linear) or layer.bias is not None


@dataclass(frozen=True, kw_only=True)
class Step:
    """Plain SGD: ``w ← w − lr·(gradient + decay·w + pull·(w − anchor))``."""

    lr: float
    decay: float = 0.0
    pull: float = 0.0

    @property
    def rest(self) -> float:
        """Factor on a weight before its gradient is subtracted."""
        return 1 - self.lr * (self.decay + self.pull)

    def toward(self, model: "Model", parts: Sequence[str], anchor: Tensor | None) -> dict[int, Tensor]:
        """The term that the anchor adds to each parameter in a step, by the parameter's id."""
        if anchor is None:
            return {}
        pieces = zip(model.parameters(*parts), model.split(anchor, *parts), strict=False)
        return {id(parameter): piece * (self.lr * self.pull) for parameter, piece in pieces}


class Descent:
    """SGD on some ``parts`` of a chain; an ``anchor`` is a vector of the same parts."""

    def __init__(self, model: "Model", parts: Sequence[str], step: Step, anchor: Tensor | None = None) -> None:
        layers = chain_of(model.net)
        assert layers is not None
        trained, toward = model.parts(*parts), step.toward(model, parts, anchor)
        self._layers = [
            _LAYERS[type(layer)](layer, step if part in trained else None, toward) for part, layer in layers
        ]
        self._lowest = next((i for i, layer in enumerate(self._layers) if layer.learns), len(self._layers))

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor) -> float:
        """Take one step on these samples; returns the mean loss before it."""
        for layer in self._layers:
            x = layer.forward(x)
        log_p = torch.log_softmax(x, 1)
        d = torch.zeros_like(log_p).scatter_(1, y[:, None], -1 / len(y))
        loss = float((log_p * d).sum())
        d = aten._log_softmax_backward_data.default(d, log_p, 1, log_p.dtype)
        for i in range(len(self._layers) - 1, self._lowest - 1, -1):
            d = self._layers[i].backward(d, i > self._lowest)
        return loss


FeatureLoss = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From features (samples, numbers) and labels: a term of the loss, and its derivative by the features."""


class Gradients:
    """Loss of a batch and its gradient by some ``parts`` of a chain, bit-identical to autograd's, without a graph."""

    def __init__(self, layers: Layers, parts: Sequence[str], on_features: FeatureLoss | None = None) -> None:
        step, self._on_features = Step(lr=0.0), on_features
        self._layers = [_LAYERS[type(layer)](layer, step if part in parts else None, {}) for part, layer in layers]
        self._lowest = next((i for i, layer in enumerate(self._layers) if layer.learns), len(self._layers))
        self._one = torch.ones((), dtype=next(layers[-1][1].parameters()).dtype)

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        *body, head = self._layers
        for layer in body:
            x = layer.forward(x)
        more, slope = (None, None) if self._on_features is None else self._on_features(x, y)
        log_p = torch.log_softmax(head.forward(x), 1)
        loss, weight = aten.nll_loss_forward.default(log_p, y, None, 1, -100)
        d = aten.nll_loss_backward.default(self._one, log_p, y, None, 1, -100, weight)
        d = aten._log_softmax_backward_data.default(d, log_p, 1, log_p.dtype)
        found: list[Tensor] = []
        for i in range(len(self._layers) - 1, self._lowest - 1, -1):
            d, grads = self._layers[i].gradient(d, i > self._lowest)
            found[:0] = grads
            if self._layers[i] is head and slope is not None and i > self._lowest:
                d += slope
        return loss if more is None else loss + more, found


class _Layer:
    """A layer: its forward pass stores what the backward pass needs; the backward pass also takes the step."""

    learns = False

    def __init__(self, layer: nn.Module, step: Step | None, toward: dict[int, Tensor]) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def backward(self, d: Tensor, further: bool) -> Tensor:
        raise NotImplementedError

    def gradient(self, d: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        """The gradient by the layer's input, if lower layers are trained, and by its weight and bias, if they are."""
        return self.backward(d, further), []


class _Weighted(_Layer):
    """A layer with a weight and a bias."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, step: Step | None, toward: dict[int, Tensor]) -> None:
        assert layer.bias is not None
        self.layer, self.step, self.learns = layer, step, step is not None
        self.W, self.b = layer.weight.detach(), layer.bias.detach()
        self.toward = [toward.get(id(layer.weight)), toward.get(id(layer.bias))]

    def pull(self) -> None:
        for weight, anchor in zip((self.W, self.b), self.toward, strict=True):
            if anchor is not None:
                weight += anchor


class _Linear(_Weighted):
    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        return torch.addmm(self.b, x, self.W.mT)

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below = d @ self.W if further else d
        if self.step is not None:
            self.W.addmm_(d.mT, self.x, beta=self.step.rest, alpha=-self.step.lr)
            self.b.mul_(self.step.rest).add_(d.sum(0), alpha=-self.step.lr)
            self.pull()
        return below

    def gradient(self, d: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        return d @ self.W if further else d, [d.mT @ self.x, d.sum(0)] if self.learns else []


class _Conv(_Weighted):
    layer: nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        self.x, layer = x, self.layer
        return F.conv2d(x, self.W, self.b, layer.stride, layer.padding, layer.dilation)

    def gradient(self, d: Tensor, further: bool) -> tuple[Tensor, list[Tensor]]:
        layer, wanted = self.layer, [further, self.learns, self.learns]
        how = layer.stride, layer.padding, layer.dilation, False, (0, 0), 1
        below, *grads = aten.convolution_backward.default(d, self.x, self.W, self.b.shape, *how, wanted)
        return below if further else d, grads if self.learns else []

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below, grads = self.gradient(d, further)
        if self.step is not None:
            for weight, grad in zip((self.W, self.b), grads, strict=True):
                if self.step.rest != 1:
                    weight *= self.step.rest
                weight.add_(grad, alpha=-self.step.lr)
            self.pull()
        return below


class _Pool(_Layer):
    def __init__(self, layer: nn.MaxPool2d, *_: object) -> None:
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        self.how = *([size, size] if isinstance(size, int) else list(size) for size in sizes), layer.ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        pooled: Tensor
        pooled, self.chosen = aten.max_pool2d_with_indices.default(x, *self.how)
        return pooled

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below: Tensor = aten.max_pool2d_with_indices_backward.default(d, self.x, *self.how, self.chosen)
        return below


class _ReLU(_Layer):
    def __init__(self, layer: nn.ReLU, *_: object) -> None:
        self.inplace = layer.inplace

    def forward(self, x: Tensor) -> Tensor:
        self.x = x.relu_() if self.inplace else x.relu()
        return self.x

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below: Tensor = aten.threshold_backward.default(d, self.x, 0)
        return below


class _Flatten(_Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)

    def backward(self, d: Tensor, further: bool) -> Tensor:
        return d.view(self.shape)


_LAYERS: dict[type[nn.Module], Callable[..., _Layer]] = {
    nn.Linear: _Linear,
    nn.Conv2d: _Conv,
    nn.MaxPool2d: _Pool,
    nn.ReLU: _ReLU,
    nn.Flatten: _Flatten,
}
# Initials of layer types, to match a network's layers with the pattern of a chain.
_LETTERS: dict[type, str] = {layer: layer.__name__[0] for layer in _LAYERS}
