"""The layout of a model's layers in one flat vector."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

STATISTICS = ("running_mean", "running_var")
"""Running statistics of BatchNorm and similar layers: not parameters, so they are averaged under every rule."""


class Layer(NamedTuple):
    """One parameter tensor (weight and bias are two) and its position in the vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(init=False, repr=False, unsafe_hash=True)
class Layout:
    """The layers of a model in sequence, in a vector of ``size`` numbers."""

    layers: tuple[Layer, ...]
    size: int

    def __init__(self, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        layers, start = [], 0
        for name, shape in shapes:
            stop = start + torch.Size(shape).numel()
            layers.append(Layer(name, tuple(shape), start, stop))
            start = stop
        self.layers = tuple(layers)
        self.size = start

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Layout":
        """The layout of a state dict, in its own order."""
        return cls((name, tuple(tensor.shape)) for name, tensor in tensors.items())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(layer.name for layer in self.layers)

    def split(self, vector: Tensor) -> list[Tensor]:
        """One view per layer, in its shape."""
        return [vector[layer.start : layer.stop].view(layer.shape) for layer in self.layers]

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.names, self.split(vector), strict=True))

    def vector(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The vector of a state dict with these names and shapes; raises an error with the first difference."""
        for layer in self.layers:
            if layer.name not in tensors:
                raise ValueError(f"layer {layer.name!r} is missing")
            if (shape := tuple(tensors[layer.name].shape)) != layer.shape:
                raise ValueError(f"layer {layer.name!r} has shape {shape}, not {layer.shape}")
        return torch.cat([tensors[name].reshape(-1) for name in self.names]) if self.layers else torch.empty(0)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"Layout({len(self.layers)} layers, {self.size:,} numbers)"
