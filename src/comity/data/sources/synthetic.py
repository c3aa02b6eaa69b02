"""Synthetic images with label shift, feature shift and concept shift of a given strength."""

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
COARSE = 4  # images are drawn on a 4×4 grid and interpolated, so that the difficulty does not depend on their size


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Class-conditional Gaussian images, drawn per client; client k does not depend on the number of clients.

    Options:
        samples: samples per client
        classes: number of classes
        channels: channels per image
        size: pixels per side
        label_shift: share of a client's samples that comes from its favourite class
        feature_shift: size of a client's own pattern, added to all its images; at 1, clients differ as much as classes
        concept_shift: share of the classes whose labels a client permutes
        noise: standard deviation within a class
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
        """Draw the samples of ``clients`` clients, with the column ``client``."""
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
        """One client's style, the true class of each image, and the label that the client gives it."""
        style = np.asarray(self.feature_shift * random.standard_normal(means.shape[1]))
        favourite = random.integers(self.classes)
        cause = random.integers(self.classes, size=self.samples)
        cause[random.random(self.samples) < self.label_shift] = favourite
        named = np.arange(self.classes, dtype=np.int64)
        swapped = random.permutation(self.classes)[: round(self.concept_shift * self.classes)]
        named[swapped] = np.roll(swapped, 1)
        return style, cause, named[cause]


def _enlarge(side: int, size: int) -> NDArray[np.float64]:
    """(side², size²) interpolation matrix from a coarse grid to an image."""
    cells = torch.eye(side * side, dtype=torch.float64).reshape(-1, 1, side, side)
    images = F.interpolate(cells, (size, size), mode="bilinear", align_corners=True)
    return np.asarray(images.flatten(1).numpy())
