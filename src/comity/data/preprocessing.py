"""From raw samples to what a model sees: means and spreads of features, and the scale of pixels."""

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
"""Relative spread below which a feature is constant: float32 has no finer numbers."""


@dataclass(frozen=True)
class Moments:
    """Sums over one client's training samples, per feature or channel: all that scaling needs to know of them."""

    count: Array
    total: Array
    squares: Array
    odd: Array
    """Number of values that are neither 0 nor 1."""

    @classmethod
    def of(cls, x: NDArray[np.generic]) -> "Moments":
        """Of samples (n, features) or (n, channels, time); NaN is missing and does not count."""
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        values = x.astype(np.float64)
        known = ~np.isnan(values)
        values = np.where(known, values, 0.0)
        odd = known & (values != 0) & (values != 1)
        return cls(*(each.sum(axes, dtype=np.float64) for each in (known, values, values * values, odd)))

    @property
    def stacked(self) -> Array:
        """(4, features)."""
        return np.stack([self.count, self.total, self.squares, self.odd])

    def without_few(self, least: int) -> "Moments":
        """The same with zeros for what has fewer than ``least`` known values, so that no sum is of a few rows."""
        return Moments(*(self.stacked * (self.count >= least)))

    def objection(self) -> str | None:
        """Why no samples have these sums, in words that follow "client 3"; ``None`` where some may."""
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
        """Of all clients together, so that every machine gets the same bits.

        Where sites agreed on a schema, which then has a least count, sums are exact and rounded once: neither their
        order nor whether they are masked matters. Others are added in the order of the clients.
        """
        each = np.stack([client.stacked for client in clients])
        exact = schema is not None and schema.min_count > 0
        return cls(*(np.apply_along_axis(fsum, 0, each) if exact else reduce(np.add, each)))


@dataclass(frozen=True)
class Scaler:
    """Gives every feature or channel mean 0 and spread 1 over the training samples of all clients.

    A missing value becomes the mean. What is constant, such as a category that no training sample has, says nothing and
    becomes 0. What is always 0 or 1 is centred but not scaled: to divide by a small spread would make the mark of a
    rare category the largest number of all.
    """

    centre: Array
    factor: Array

    @classmethod
    def of(cls, whole: Moments) -> "Scaler":
        """From the sums of all clients together."""
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
    """Turns samples as a data set holds them into what the model sees; the same for training and for prediction."""

    shape: tuple[int, ...]
    """One sample as the model sees it."""
    scaler: Scaler | None = None
    centred: bool = True
    """Whether uint8 pixels are scaled to [-1, 1], else to [0, 1]."""
    schema: Schema | None = None
    """How the rows of a table become samples."""
    pixels: bool = False
    """Whether samples are images of uint8."""

    def __call__(self, samples: ArrayLike) -> Tensor:
        """Float32 (n, *shape) from vectors, series (n, channels, time) or images (n, H, W, C)."""
        x = torch.from_numpy(np.asarray(samples))
        if x.ndim == 4:
            x = x.permute(0, 3, 1, 2)  # NHWC seen as NCHW is channels_last already
        if self.scaler is not None:
            return self.scaler(x)
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
            x = x.sub_(0.5).div_(0.5) if self.centred else x
        return x
