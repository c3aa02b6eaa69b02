"""The small convolutional nets: two convolutions of width 5, each max-pooled by 2, then fully connected layers."""

from collections import OrderedDict

from torch import nn

from comity.nn._mlp import dense
from comity.nn._net import Net


def _body(shape: tuple[int, ...], channels: tuple[int, int], widths: tuple[int, ...], framed: int) -> nn.Sequential:
    """Convolutions without padding; below ``framed`` pixels a side the first, then if need be both, are padded by 2.

    The ReLU stands after the pooling, not before: the same numbers and gradients for a quarter of the work.
    """
    side = min(shape[1:])
    first = 2 if side < framed else 0
    second = 2 if (side + 2 * first - 4) // 2 < 6 else 0  # fewer than 6 pixels leave nothing to pool
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    sizes = shape
    for i, (C, padding) in enumerate(zip(channels, (first, second), strict=True), 1):
        layers[f"conv{i}"] = nn.Conv2d(sizes[0], C, kernel_size=5, padding=padding)
        layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"act{i}"] = nn.ReLU(inplace=True)
        sizes = (C, *((s + 2 * padding - 4) // 2 for s in sizes[1:]))
    layers["flat"] = nn.Flatten()
    layers.update(dense((sizes[0] * sizes[1] * sizes[2], *widths)))
    return nn.Sequential(layers)


class CNN(Net):
    """The four-layer CNN of ConFREE and FedCALM: conv 32, conv 64 (5×5, each pooled), fc 512, head.

    As PFLlib's FedAvgCNN (McMahan et al., AISTATS 2017, without their padding). Images below 16×16, which two such
    convolutions would use up, have the first padded by 2, and below 12×12 the second too.
    """

    smallest = 4

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.body = _body(shape, (32, 64), (512,), framed=16)
        self.head = nn.Linear(512, classes)


class CNNFedPG(Net):
    """FedPG's CNN for CIFAR-10: conv 64, conv 64 (5×5, each pooled), fc 384, fc 192, head.

    The paper gives the widths; kernels and pooling are those of FedMDFG's code, of the same widths, less its dropout.
    Images below 16×16 get padded convolutions, as in CNN.
    """

    smallest = 4

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.body = _body(shape, (64, 64), (384, 192), framed=16)
        self.head = nn.Linear(192, classes)


class CNN1d(Net):
    """A small CNN for series: conv 32, conv 64 (5 steps, each pooled), the time pooled to 8 pieces, fc 128, head.

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
        layers.update(dense((64 * pieces, 128)))
        self.body = nn.Sequential(layers)
        self.head = nn.Linear(128, classes)


class LeNet5(Net):
    """LeNet-5 as it is used today: conv 6, conv 16 (5×5, each pooled), fc 120, fc 84, head.

    LeCun et al., 1998, with ReLU for tanh, max-pooling for trainable sub-sampling, and the second convolution fully
    connected. Made for 32×32: smaller images get a frame of 2 pixels (28×28 becomes 32×32, as in the paper), and
    below 12×12 the second convolution is padded too.
    """

    smallest = 4

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes)
        self.body = _body(shape, (6, 16), (120, 84), framed=32)
        self.head = nn.Linear(84, classes)
