"""Fully connected nets."""

from itertools import pairwise
from math import prod

from torch import nn

from comity._options import Count, check_arguments
from comity.nn._net import SIDES, Net


def dense(sizes: tuple[int, ...]) -> dict[str, nn.Module]:
    """Linear layers fc1, fc2, … from each size to the next, a ReLU after each."""
    layers: dict[str, nn.Module] = {}
    for i, (n, m) in enumerate(pairwise(sizes), 1):
        layers[f"fc{i}"] = nn.Linear(n, m)
        layers[f"relu{i}"] = nn.ReLU(inplace=True)
    return layers


class MLP(Net):
    """Fully connected layers with ReLU, for vectors, series and images.

    Options:
        widths: of the hidden layers; 200,200 is FedPG's for Fashion-MNIST, FEDORA's is 128,128
    """

    takes = tuple(SIDES)

    def __init__(self, shape: tuple[int, ...], classes: int, widths: tuple[Count, ...] = (200, 200)) -> None:
        check_arguments(MLP, "model.", widths=widths)
        super().__init__(shape, classes)
        sizes = (prod(shape), *widths)
        self.body = nn.Sequential()
        self.body.add_module("flat", nn.Flatten())
        for name, layer in dense(sizes).items():
            self.body.add_module(name, layer)
        self.head = nn.Linear(sizes[-1], classes)


class Logistic(MLP):
    """Logistic regression: the features themselves, and a linear head. The body learns nothing."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes, ())
