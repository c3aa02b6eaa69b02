"""Residual networks of basic blocks, with BatchNorm or without normalisation of activations."""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from comity._options import check_arguments
from comity.nn._net import Net

Stem = Literal["auto", "small", "imagenet"]
Modules = Mapping[str, nn.Module]


def _body(
    shape: tuple[int, ...],
    depths: tuple[int, ...],
    stem: Stem,
    conv: Callable[[int, int, int, int], nn.Conv2d],
    block: Callable[[int, int, int], nn.Module],
    after_conv: Modules,
    after_stages: Modules,
) -> nn.Sequential:
    """Stem, stages of 64, 128, 256 and 512 channels, and mean over pixels, with torchvision's layer names."""
    side = min(shape[1:])
    small = stem == "small" or (stem == "auto" and side < 64)
    layers: OrderedDict[str, nn.Module] = OrderedDict(conv1=conv(shape[0], 64, *((3, 1) if small else (7, 2))))
    layers.update(after_conv)
    if not small:
        layers["maxpool"] = nn.MaxPool2d(3, stride=2, padding=1)
    channels = 64
    for i, depth in enumerate(depths):
        # a map of one pixel would leave BatchNorm nothing to take the variance of in a batch of one image
        stride = 1 if i == 0 or (small and side <= 2) else 2
        side = -(-side // stride)
        blocks = [block(channels, 64 << i, stride)]
        channels = 64 << i
        blocks += [block(channels, channels, 1) for _ in range(1, depth)]
        layers[f"layer{i + 1}"] = nn.Sequential(*blocks)
    layers.update(after_stages)
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    layers["flat"] = nn.Flatten()
    return nn.Sequential(layers)


def _conv(n: int, m: int, kernel: int, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(n, m, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class _Block(nn.Module):
    """Two 3×3 convolutions and a short cut around them (He et al., CVPR 2016)."""

    def __init__(self, n: int, m: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(n, m, 3, stride), norm(m)
        self.conv2, self.bn2 = _conv(m, m, 3, 1), norm(m)
        self.downsample = nn.Sequential(_conv(n, m, 1, stride), norm(m)) if n != m else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class _ResNet(Net):
    """Residual network with a stem for large or small images.

    PFLlib, and so perhaps FedCALM, uses the stem ``imagenet`` at any size, without running statistics. After
    the small stem a map of 2 pixels per side is not halved further (8×8 images).

    Options:
        stem: imagenet is a 7×7 convolution of stride 2 and a max-pool, small a 3×3 one of stride 1; auto takes small
            below 64 pixels
        running: whether BatchNorm keeps running statistics for evaluation; without them it uses those of the test
            batch, and there are no buffers
    """

    smallest = 4
    depths: ClassVar[tuple[int, ...]]

    def __init__(self, shape: tuple[int, int, int], classes: int, stem: Stem = "auto", running: bool = True) -> None:
        check_arguments(_ResNet, "model.", stem=stem)
        super().__init__(shape, classes)
        norm = partial(nn.BatchNorm2d, track_running_stats=running)
        start = {"bn1": norm(64), "relu": nn.ReLU(inplace=True)}
        self.body = _body(shape, self.depths, stem, _conv, partial(_Block, norm=norm), start, {})
        self.head = nn.Linear(32 << len(self.depths), classes)


class ResNet4(_ResNet):
    """FedCALM's smallest ResNet: the stem, one block of 64 channels, the head (1 + 2 + 1 weighted layers).

    The paper does not define it. This is ``resnet4`` of PFLlib, whose names for layers the paper uses (see ResNet10).
    """

    depths = (1,)


class ResNet10(_ResNet):
    """One block in each of four stages, 64 to 512 channels.

    FedCALM's Figure 7 calls its last layers ``Layer3.DS``: PFLlib counts stages from 0, so that is our ``layer4``.
    """

    depths = (1, 1, 1, 1)


class ResNet18(_ResNet):
    """Two blocks in each of four stages, 64 to 512 channels (He et al., CVPR 2016)."""

    depths = (2, 2, 2, 2)


class ResNet34(_ResNet):
    """3, 4, 6 and 3 blocks of 64 to 512 channels (He et al., CVPR 2016)."""

    depths = (3, 4, 6, 3)


_ALPHA = 0.2  # the share of its branch that a normaliser-free block adds
_GAMMA = math.sqrt(2 / (1 - 1 / math.pi))  # 1 / the standard deviation of the ReLU of N(0, 1)


class _StandardConv(nn.Conv2d):
    """Convolution with scaled weight standardisation: filters have mean 0 and variance (gain · scale)² / fan-in."""

    def __init__(self, n: int, m: int, kernel: int, stride: int, scale: float = _GAMMA) -> None:
        super().__init__(n, m, kernel, stride, kernel // 2)
        self.gain = nn.Parameter(torch.ones(m))
        self.scale = scale

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="linear")
        assert self.bias is not None
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, (1, 2, 3), correction=0, keepdim=True)
        spread = (var * self.weight[0].numel()).clamp(min=1e-4)
        scale = self.scale * self.gain.reshape(-1, 1, 1, 1) * spread.rsqrt()
        return F.conv2d(x, (self.weight - mean) * scale, self.bias, self.stride, self.padding)


class _FreeBlock(nn.Module):
    """Block x + α f(x / β), where β is the expected standard deviation of x at initialisation."""

    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _StandardConv(n, m, 3, stride)
        self.conv2 = _StandardConv(m, m, 3, 1)
        self.downsample = _StandardConv(n, m, 1, stride) if n != m else None
        self.beta = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(x / self.beta, inplace=True)
        short = x if self.downsample is None else self.downsample(y)
        y = self.conv2(F.relu(self.conv1(y), inplace=True))
        return torch.add(short, y, alpha=_ALPHA)


class NFResNet18(Net):
    """ResNet-18 without normalisation, and so without buffers: FedPG's model for CIFAR-100.

    Brock, De and Smith, ICLR 2021: pre-activation blocks, scaled weight standardisation with a learnt gain and bias a
    channel, the ReLU's gain √(2 / (1 - 1/π)) in the weights, α = 0.2, no SkipInit, no dropout.

    Options:
        stem: imagenet is a 7×7 convolution of stride 2 and a max-pool, small a 3×3 one of stride 1; auto takes small
            below 64 pixels
    """

    smallest = 4

    def __init__(self, shape: tuple[int, int, int], classes: int, stem: Stem = "auto") -> None:
        check_arguments(NFResNet18, "model.", stem=stem)
        super().__init__(shape, classes)
        first = partial(_StandardConv, scale=1.0)  # no ReLU before it
        self.body = _body(shape, (2, 2, 2, 2), stem, first, _FreeBlock, {}, {"relu": nn.ReLU(inplace=True)})
        self.head = nn.Linear(512, classes)
        variance = 1.0
        for block in self.body.modules():
            if isinstance(block, _FreeBlock):
                block.beta = math.sqrt(variance)
                variance = (variance if block.downsample is None else 1.0) + _ALPHA**2
