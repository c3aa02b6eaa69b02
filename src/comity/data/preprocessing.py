"""Preprocessing: from raw samples to model inputs (standardisation, and the scale of pixels)."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import fsum

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from comity.data.schema import Schema

Array = NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)
LEAST_SPREAD = 2e-7
"""Relative standard deviation below which a feature is constant: the resolution of float32."""


@dataclass(frozen=True)
class Moments:
    """Sums over one client's training samples, per feature or channel: all that standardisation needs."""

    count: Array
    total: Array
    squares: Array
    odd: Array
    """Number of values other than 0 and 1."""

    @classmethod
    def of(cls, x: NDArray[np.generic]) -> "Moments":
        """Sums of samples (n, features) or (n, channels, time); NaN means missing and does not count."""
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        values = x.astype(np.float64)
        known = ~np.isnan(values)
        values = np.where(known, values, 0.0)
        odd = known & (values != 0) & (values != 1)
        return cls(*(each.sum(axes, dtype=np.float64) for each in (known, values, values * values, odd)))

    @property
    def stacked(self) -> Array:
        """(4, features) all four sums."""
        return np.stack([self.count, self.total, self.squares, self.odd])

    def without_few(self, least: int) -> "Moments":
        """The same, with 0 for features with fewer than ``least`` known values, so that no sum reveals a few rows."""
        return Moments(*(self.stacked * (self.count >= least)))

    def objection(self) -> str | None:
        """Reason why the sums are impossible, in words that follow "client 3"; ``None`` if they are possible."""
        counts = np.stack([self.count, self.odd])
        whole = ((counts >= 0) & (counts < 2**53) & (counts == counts.round())).all()
        if not whole or (self.odd > self.count).any():
            return "sent sums with counts that are no counts"
        if not ((self.squares >= 0) & (self.squares <= LARGEST**2 * self.count)).all():
            return "sent sums of squares out of range"
        if not (self.total**2 <= self.count * self.squares * (1 + 1e-6)).all():
            return "sent sums that contradict their squares"
        return None

    @classmethod
    def together(cls, clients: Iterable["Moments"], schema: Schema | None) -> "Moments":
        """Sums of all clients, with the same bits on every machine.

        If sites agreed on a schema, which then has a minimum count, sums are exact and rounded once, independent of
        order and masking. Otherwise they are added in the order of the clients.
        """
        each = np.stack([client.stacked for client in clients])
        exact = schema is not None and schema.min_count > 0
        return cls(*(np.apply_along_axis(fsum, 0, each) if exact else reduce(np.add, each)))


@dataclass(frozen=True)
class Scaler:
    """Standardise every feature or channel to mean 0 and standard deviation 1 over all clients' training samples.

    A missing value becomes the mean. Constant features, such as a category without training samples, become 0. Features
    with values 0 and 1 only are centred but not scaled: dividing by a small standard deviation would make the indicator
    of a rare category the largest number of all.
    """

    centre: Array
    factor: Array

    @classmethod
    def of(cls, whole: Moments) -> "Scaler":
        """The scaler for the sums of all clients."""
        count = np.maximum(whole.count, 1)
        mean = whole.total / count
        spread = np.sqrt(np.maximum(whole.squares / count - mean * mean, 0))
        varies = spread > 1e-12 + LEAST_SPREAD * np.abs(mean)
        return cls(mean, np.where(varies, 1 / np.where((whole.odd == 0) | ~varies, 1, spread), 0.0))

    def __call__(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.ndim - 2))
        centre, factor = (torch.from_numpy(each).reshape(shape) for each in (self.centre, self.factor))
        return x.to(torch.float64, copy=True).sub_(centre).mul_(factor).nan_to_num_(0.0).float()


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of a data set's samples to model inputs, the same for training and prediction."""

    shape: tuple[int, ...]
    """Shape of one sample as the model gets it."""
    scaler: Scaler | None = None
    centred: bool = True
    """Whether uint8 pixels are scaled to [-1, 1], otherwise to [0, 1]."""
    schema: Schema | None = None
    """How rows of a table become samples."""
    pixels: bool = False
    """Whether samples are uint8 images."""

    def __call__(self, samples: ArrayLike) -> Tensor:
        """Float32 (n, *shape) inputs from vectors, series (n, channels, time) or images (n, H, W, C)."""
        x = torch.from_numpy(np.asarray(samples))
        if x.ndim == 4:
            x = x.permute(0, 3, 1, 2)  # NHWC viewed as NCHW is already channels_last
        if self.scaler is not None:
            return self.scaler(x)
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
            x = x.sub_(0.5).div_(0.5) if self.centred else x
        return x
