"""Images made for the purpose, with each kind of shift set by a number."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from comity._errors import ComityError
from comity._random import numpy_generator
from comity.data._dataset import Dataset, Ints

COARSE = 4  # images are drawn on a 4×4 grid and smoothed up, so that difficulty does not depend on their size


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Class-conditional Gaussian images, made client by client; client k is the same however many clients there are.

    ``label_shift`` (0 to 1): the share of a client's samples that come from its favourite class. ``feature_shift`` (0
    or more): the length of a style added to all of a client's images, 1 being as far apart as two classes are.
    ``concept_shift`` (0 to 1): the share of classes whose labels a client swaps around. ``noise``: the spread within a
    class.
    """

    samples: int = 100
    classes: int = 10
    channels: int = 1
    size: int = 8
    label_shift: float = 0.5
    feature_shift: float = 0.5
    concept_shift: float = 0.0
    noise: float = 1.5

    name = "synthetic"

    def __post_init__(self) -> None:
        for key, least in (("samples", 2), ("classes", 2), ("channels", 1), ("size", 2)):
            if getattr(self, key) < least:
                raise ComityError(f"data.{key}: got {getattr(self, key)}; allowed: {least} or more")
        for key in ("label_shift", "concept_shift"):
            if not 0 <= getattr(self, key) <= 1:
                raise ComityError(f"data.{key}: got {getattr(self, key)}; allowed: 0 to 1")
        for key in ("feature_shift", "noise"):
            if not 0 <= getattr(self, key) < np.inf:
                raise ComityError(f"data.{key}: got {getattr(self, key)}; allowed: 0 or more")

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
