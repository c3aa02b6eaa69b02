"""Images made for the purpose, with each kind of shift set by a number."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from comity._options import Count, NonNegative, Range, Share, check
from comity._random import numpy_generator
from comity.data._dataset import Dataset, Ints

AtLeastTwo = Annotated[int, Range(least=2)]
COARSE = 4  # images are drawn on a 4×4 grid and smoothed up, so that difficulty does not depend on their size


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Class-conditional Gaussian images, made client by client; client k is the same however many clients there are.

    Options:
        samples: samples of each client
        classes: number of classes
        channels: channels of an image
        size: pixels per side
        label_shift: share of a client's samples that come from its favourite class
        feature_shift: length of a style added to all of a client's images; at 1 clients differ as much as classes do
        concept_shift: share of the classes whose labels a client swaps around
        noise: spread within a class
    """

    samples: AtLeastTwo = 100
    classes: AtLeastTwo = 10
    channels: Count = 1
    size: AtLeastTwo = 8
    label_shift: Share = 0.5
    feature_shift: NonNegative = 0.5
    concept_shift: Share = 0.0
    noise: NonNegative = 1.5

    name = "synthetic"

    def __post_init__(self) -> None:
        check(self, "data")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    def draw(self, clients: int, seed: int) -> Dataset:
        """The samples of ``clients`` clients, with the column ``client``."""
        side = min(COARSE, self.size)
        means = numpy_generator(seed, "synthetic").standard_normal((self.classes, self.channels * side * side))
        enlarge = _enlarge(side, self.size)
        x = np.empty((clients, self.samples, self.size, self.size, self.channels), np.uint8)
        y = np.empty((clients, self.samples), np.int64)
        for client in range(clients):
            random = numpy_generator(seed, "synthetic", client)
            style, cause, y[client] = self._client(means, random)
            z = means[cause] + style + self.noise * random.standard_normal((self.samples, means.shape[1]))
            pixels = z.reshape(self.samples, self.channels, -1) @ enlarge
            pixels = np.clip(127.5 + 40.0 * pixels, 0, 255).astype(np.uint8)
            x[client] = pixels.reshape(self.samples, self.channels, self.size, self.size).transpose(0, 2, 3, 1)
        owner = np.repeat(np.arange(clients), self.samples)
        return Dataset(self.name, x.reshape(-1, *x.shape[2:]), y.ravel(), self.classes, {"client": owner})

    def _client(
        self, means: NDArray[np.float64], random: np.random.Generator
    ) -> tuple[NDArray[np.float64], Ints, Ints]:
        """One client's style, the class that made each image, and the label the client gives it."""
        style = np.asarray(self.feature_shift * random.standard_normal(means.shape[1]))
        favourite = random.integers(self.classes)
        cause = random.integers(self.classes, size=self.samples)
        cause[random.random(self.samples) < self.label_shift] = favourite
        named = np.arange(self.classes, dtype=np.int64)
        swapped = random.permutation(self.classes)[: round(self.concept_shift * self.classes)]
        named[swapped] = np.roll(swapped, 1)
        return style, cause, named[cause]


def _enlarge(side: int, size: int) -> NDArray[np.float64]:
    """The matrix (side², size²) that smooths a coarse grid up to an image."""
    cells = torch.eye(side * side, dtype=torch.float64).reshape(-1, 1, side, side)
    images = F.interpolate(cells, (size, size), mode="bilinear", align_corners=True)
    return np.asarray(images.flatten(1).numpy())
