"""Nets that are a chain of plain layers: their SGD without autograd, and several clients' nets as one.

A small net spends its time between operations, not in them. Here a step is the few products that it consists of: a
linear layer's gradient is added to its weights by the product that makes it and is never stored, and the weights of
several clients lie in one tensor, so that one batched product serves them all.

A client's bits do not depend on who trains beside it. For that every width is filled up with zeros to a multiple of
``LINE``, so that each client's matrices begin at a full line of memory (products differ in the last bit by how their
operands lie), and all that is not a product works on each sample by itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity.nn._model import Model
from comity.nn._net import Net

aten = torch.ops.aten
LINE = 16
"""Numbers in 64 bytes."""
STACK = 6_000_000, 16
"""Bytes of parameters, and nets, to stack at most: with more bytes a step waits for memory, and with more nets nothing
is gained any more (docs/performance.md)."""
NOWHERE = -1e30
"""The logit of a class that only fills up the head's width."""

Layers = list[tuple[str, nn.Module]]


def chain_of(net: nn.Module) -> Layers | None:
    """Its layers in order, each with the part that it belongs to; ``None`` for any other net, and on a GPU."""
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


def is_stacked(layers: Layers) -> bool:
    """Whether several such nets train as one: those without convolutions, which would gain nothing by it."""
    return isinstance(layers[0][1], nn.Flatten)


def stack_size(model: Model) -> int:
    """How many clients' nets to train as one."""
    layers = chain_of(model.net)
    if layers is None or not is_stacked(layers):
        return 1
    return max(1, min(STACK[0] // (4 * model.size()), STACK[1]))


@dataclass(frozen=True, kw_only=True)
class Step:
    """Plain SGD: ``w ← w − lr·(gradient + decay·w + pull·(w − anchor))``."""

    lr: float
    decay: float = 0.0
    pull: float = 0.0

    @property
    def rest(self) -> float:
        """What is left of a weight before its gradient is subtracted."""
        return 1 - self.lr * (self.decay + self.pull)


def line_up(models: Sequence[Model]) -> None:
    """Let the parameters of nets that are stacked lie side by side, so that they train as one where they are."""
    layers = chain_of(models[0].net)
    if layers is None or not is_stacked(layers):
        return
    last = models[0].net.get_parameter("head.bias")
    stack = []
    for own in zip(*(model.parameters() for model in models), strict=True):
        together = _lined(own, NOWHERE if own[0] is last else 0.0)
        for tensor, place in zip(own, together, strict=True):
            tensor.data = _inside(place, tensor)
        stack.append(together)
    for position, model in enumerate(models):
        model.stack, model.position = stack, position


def _lined(tensors: Sequence[Tensor], fill: float) -> Tensor:
    """(nets, rows, columns) copies of a matrix of every net, filled up; a bias is one row."""
    shape = tensors[0].shape
    rows = lines(shape[0]) if len(shape) == 2 else 1
    together = torch.full((len(tensors), rows, lines(shape[-1])), fill)
    for tensor, place in zip(tensors, together, strict=True):
        _inside(place, tensor).copy_(tensor.detach())
    return together


def _inside(place: Tensor, tensor: Tensor) -> Tensor:
    return place[: tensor.shape[0], : tensor.shape[1]] if tensor.ndim == 2 else place[0, : tensor.shape[0]]


class Descent:
    """SGD on ``parts`` of nets of a chain: of one, or of several that are lined up, in the order of their positions.

    ``anchors``, if any, has a vector of the same parts for each net.
    """

    def __init__(self, models: Sequence[Model], parts: Sequence[str], step: Step, anchors: Sequence[Tensor]) -> None:
        first = models[0]
        layers = chain_of(first.net)
        assert layers is not None
        places = slice(first.position, first.position + len(models))
        own = iter([t[places] for t in first.stack] if first.stack else [p.detach()[None] for p in first.parameters()])
        pulled = [iter(model.split(anchor, *parts)) for model, anchor in zip(models, anchors, strict=False)]
        trained = first.parts(*parts)
        self._layers: list[_Layer] = []
        for part, layer in layers[1:] if first.stack else layers:
            if not isinstance(layer, (nn.Linear, nn.Conv2d)):
                self._layers.append(_LAYERS[type(layer)](layer))
                continue
            weights, learns, toward = (next(own), next(own)), part in trained, []
            for fill in (0.0, NOWHERE if part == "head" else 0.0) if pulled and learns else ():
                anchor = [next(net) for net in pulled]
                toward.append((_lined(anchor, fill) if first.stack else anchor[0][None]) * (step.lr * step.pull))
            self._layers.append(_LAYERS[type(layer)](layer, *weights, step if learns else None, toward))
        self._lowest = next((i for i, layer in enumerate(self._layers) if layer.learns), len(self._layers))

    @torch.no_grad()
    def step(self, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        """One step of the first ``len(y)`` nets; their losses before it.

        ``x`` is (nets, samples, numbers) for stacked nets, or the samples of one; ``y`` and ``share`` are (nets,
        samples, 1), the class of each sample and its share in the mean: zero for one that only fills up the batch.
        """
        for layer in self._layers:
            x = layer.forward(x)
        log_p = torch.log_softmax(x, 2)
        d = torch.zeros_like(log_p).scatter_(2, y, -share)
        loss = (log_p * d).sum(2).sum(1)
        d = aten._log_softmax_backward_data(d, log_p, 2, log_p.dtype)
        for i in range(len(self._layers) - 1, self._lowest - 1, -1):
            d = self._layers[i].backward(d, i > self._lowest)
        return loss


def lines(width: int) -> int:
    return -(-width // LINE) * LINE


class _Layer(Protocol):
    """A layer's forward pass, which remembers what it needs, and its backward pass, which also takes the step."""

    learns: bool

    def forward(self, x: Tensor) -> Tensor: ...

    def backward(self, d: Tensor, further: bool) -> Tensor: ...


class _Linear:
    def __init__(self, _: nn.Module, W: Tensor, b: Tensor, step: Step | None, toward: list[Tensor]) -> None:
        self.W, self.b, self.step, self.learns = W, b.view(len(W), 1, -1), step, step is not None
        self.toward = [anchor.view(weight.shape) for anchor, weight in zip(toward, (W, self.b), strict=False)]

    def forward(self, x: Tensor) -> Tensor:
        nets = len(x)
        if nets < len(self.W):  # the others have had their last batch
            self.W, self.b, self.toward = self.W[:nets], self.b[:nets], [anchor[:nets] for anchor in self.toward]
        self.x = x
        return torch.baddbmm(self.b, x, self.W.mT)

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below = torch.bmm(d, self.W) if further else d
        if self.step is not None:
            rest, lr = self.step.rest, self.step.lr
            self.W.baddbmm_(d.mT, self.x, beta=rest, alpha=-lr)
            self.b.baddbmm_(d.new_ones(len(d), 1, d.shape[1]), d, beta=rest, alpha=-lr)
            for weight, anchor in zip((self.W, self.b), self.toward, strict=False):
                weight += anchor
        return below


class _Conv:
    def __init__(self, layer: nn.Conv2d, W: Tensor, b: Tensor, step: Step | None, toward: list[Tensor]) -> None:
        self.layer, self.W, self.b, self.step, self.learns = layer, W[0], b[0], step, step is not None
        self.toward = [anchor[0] for anchor in toward]

    def forward(self, x: Tensor) -> Tensor:
        self.x, layer = x, self.layer
        return F.conv2d(x, self.W, self.b, layer.stride, layer.padding, layer.dilation)

    def backward(self, d: Tensor, further: bool) -> Tensor:
        layer, wanted = self.layer, [further, self.learns, self.learns]
        how = layer.stride, layer.padding, layer.dilation, False, (0, 0), 1
        below, *grads = aten.convolution_backward(d, self.x, self.W, self.b.shape, *how, wanted)
        if self.step is not None:
            for weight, grad in zip((self.W, self.b), grads, strict=True):
                if self.step.rest != 1:
                    weight *= self.step.rest
                weight.add_(grad, alpha=-self.step.lr)
            for weight, anchor in zip((self.W, self.b), self.toward, strict=False):
                weight += anchor
        return below if further else d


class _Pool:
    learns = False

    def __init__(self, layer: nn.MaxPool2d) -> None:
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        self.how = *([size, size] if isinstance(size, int) else list(size) for size in sizes), layer.ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        pooled: Tensor
        pooled, self.chosen = aten.max_pool2d_with_indices(x, *self.how)
        return pooled

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below: Tensor = aten.max_pool2d_with_indices_backward(d, self.x, *self.how, self.chosen)
        return below


class _ReLU:
    learns = False

    def __init__(self, _: nn.Module) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        self.x = x.relu_()
        return self.x

    def backward(self, d: Tensor, further: bool) -> Tensor:
        below: Tensor = aten.threshold_backward(d, self.x, 0)
        return below


class _Flatten:
    """Where images of one net become a stack of one."""

    learns = False

    def __init__(self, _: nn.Module) -> None: ...

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(1)[None]

    def backward(self, d: Tensor, further: bool) -> Tensor:
        return d[0].view(self.shape)


_LAYERS = {nn.Linear: _Linear, nn.Conv2d: _Conv, nn.MaxPool2d: _Pool, nn.ReLU: _ReLU, nn.Flatten: _Flatten}
# Their initials spell a net's layers, for the pattern of a chain.
_LETTERS: dict[type, str] = {layer: layer.__name__[0] for layer in _LAYERS}
