"""Fully connected nets."""

from itertools import pairwise

from torch import nn

from comity._errors import ComityError
from comity.nn._net import Net


def dense(sizes: tuple[int, ...]) -> dict[str, nn.Module]:
    """Linear layers fc1, fc2, … from each size to the next, a ReLU after each."""
    layers: dict[str, nn.Module] = {}
    for i, (n, m) in enumerate(pairwise(sizes), 1):
        layers[f"fc{i}"] = nn.Linear(n, m)
        layers[f"relu{i}"] = nn.ReLU(inplace=True)
    return layers


class MLP(Net):
    """Fully connected layers with ReLU; no widths at all make it logistic regression.

    The default is FedPG's for Fashion-MNIST (200, 200); FEDORA's is (128, 128).
    """

    def __init__(self, shape: tuple[int, int, int], classes: int, widths: tuple[int, ...] = (200, 200)) -> None:
        super().__init__(shape, classes)
        if any(width < 1 for width in widths):
            raise ComityError(f"MLP widths must be at least 1; given {tuple(widths)}")
        C, H, W = shape
        sizes = (C * H * W, *widths)
        self.body = nn.Sequential()
        self.body.add_module("flat", nn.Flatten())
        for name, layer in dense(sizes).items():
            self.body.add_module(name, layer)
        self.head = nn.Linear(sizes[-1], classes)
