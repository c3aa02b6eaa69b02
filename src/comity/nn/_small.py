"""Small networks: logistic regression, fully connected ones, and two 5-wide convolutions, each max-pooled by 2."""

from collections import OrderedDict
from itertools import pairwise
from math import prod
from typing import ClassVar

from torch import nn

from comity._options import Count, check_arguments
from comity.nn._net import SIDES, Net


def _dense(sizes: tuple[int, ...]) -> dict[str, nn.Module]:
    """Linear layers fc1, fc2, … between consecutive sizes, each followed by a ReLU."""
    layers: dict[str, nn.Module] = {}
    for i, (n, m) in enumerate(pairwise(sizes), 1):
        layers[f"fc{i}"] = nn.Linear(n, m)
        layers[f"relu{i}"] = nn.ReLU(inplace=True)
    return layers


class MLP(Net):
    """Fully connected layers with ReLU, for vectors, series and images.

    Options:
        widths: widths of the hidden layers, such as 200,200 (FedPG on Fashion-MNIST) or 128,128 (FEDORA)
    """

    takes = tuple(SIDES)

    def __init__(self, shape: tuple[int, ...], classes: int, widths: tuple[Count, ...] = (200, 200)) -> None:
        check_arguments(MLP, "model.", widths=widths)
        super().__init__(shape, classes)
        sizes = (prod(shape), *widths)
        self.body = nn.Sequential(OrderedDict(flat=nn.Flatten(), **_dense(sizes)))
        self.head = nn.Linear(sizes[-1], classes)


class Logistic(MLP):
    """Logistic regression: a linear head on the input features, without a trainable body."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes, ())


class _Convolutional(Net):
    """Two convolutions, fully connected layers and the head."""

    smallest = 4
    channels: ClassVar[tuple[int, int]]
    widths: ClassVar[tuple[int, ...]]  # of the fully connected layers
    framed: ClassVar[int] = 16
    """Below this number of pixels per side the first convolution, then if necessary both, are padded by 2."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        side = min(shape[1:])
        first = 2 if side < self.framed else 0
        second = 2 if (side + 2 * first - 4) // 2 < 6 else 0  # fewer than 6 pixels leave nothing to pool
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        sizes: tuple[int, ...] = shape
        for i, (C, padding) in enumerate(zip(self.channels, (first, second), strict=True), 1):
            layers[f"conv{i}"] = nn.Conv2d(sizes[0], C, kernel_size=5, padding=padding)
            layers[f"pool{i}"] = nn.MaxPool2d(2)
            layers[f"act{i}"] = nn.ReLU(inplace=True)  # after pooling: the same numbers for a quarter of the work
            sizes = (C, *((s + 2 * padding - 4) // 2 for s in sizes[1:]))
        layers["flat"] = nn.Flatten()
        layers.update(_dense((prod(sizes), *self.widths)))
        self.body = nn.Sequential(layers)
        self.head = nn.Linear(self.widths[-1], classes)


class CNN(_Convolutional):
    """The four-layer CNN of ConFREE and FedCALM: conv 32, conv 64 (5×5, each pooled), fc 512, head.

    Like PFLlib's FedAvgCNN (McMahan et al., AISTATS 2017, without their padding). For images below 16×16 the first
    convolution is padded by 2, below 12×12 the second one too; otherwise no pixels would be left.
    """

    channels, widths = (32, 64), (512,)


class CNNFedPG(_Convolutional):
    """FedPG's CNN for CIFAR-10: conv 64, conv 64 (5×5, each pooled), fc 384, fc 192, head.

    The paper gives the widths; kernels and pooling are those of FedMDFG's code, which has the same widths, without its
    dropout. For images below 16×16 convolutions are padded, as in CNN.
    """

    channels, widths = (64, 64), (384, 192)


class CNN1d(Net):
    """A small CNN for series: two 1-D convolutions (32, 64; width 5; max-pooled), pooling to length 8, fc 128, head.

    Its size does not depend on the length of the series.
    """

    smallest, takes = 4, (2,)

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape, classes)
        channels, time = shape
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, (n, m) in enumerate(((channels, 32), (32, 64)), 1):
            layers[f"conv{i}"] = nn.Conv1d(n, m, kernel_size=5, padding=2)
            layers[f"pool{i}"] = nn.MaxPool1d(2)
            layers[f"act{i}"] = nn.ReLU(inplace=True)
        pieces = min(8, time // 4)
        layers |= {"pieces": nn.AdaptiveAvgPool1d(pieces), "flat": nn.Flatten()}
        layers.update(_dense((64 * pieces, 128)))
        self.body = nn.Sequential(layers)
        self.head = nn.Linear(128, classes)


class LeNet5(_Convolutional):
    """LeNet-5 as it is used today: conv 6, conv 16 (5×5, each pooled), fc 120, fc 84, head.

    LeCun et al., 1998, with ReLU for tanh, max-pooling for trainable sub-sampling, and a fully connected second
    convolution. Made for 32×32: smaller images are padded by 2 pixels (28×28 becomes 32×32, as in the paper), and below
    12×12 the second convolution is padded too.
    """

    channels, widths, framed = (6, 16), (120, 84), 32
