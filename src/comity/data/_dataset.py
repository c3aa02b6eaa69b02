"""Samples before they are shared out among clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity._errors import ComityError

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pooled images and labels, with any further columns (a year, a domain) that a partition may split along.

    ``x`` is (n, H, W) or (n, H, W, C): uint8 pixels, which the federation normalises to [-1, 1], or floats, which are
    taken as they are. A column named ``client`` says who owns each sample (the data set then carries its own
    partition, ``Natural``); a column named ``test`` beside it says which samples are test samples.
    """

    name: str
    x: NDArray[Any]
    y: Ints
    classes: int = 0
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        x = _images(self.name, self.x)
        y = _labels(self.name, self.y)
        if len(x) != len(y):
            raise ComityError(
                f"data {self.name}: got {len(x)} images and {len(y)} labels; there must be one label an image"
            )
        for column, values in self.columns.items():
            if len(values) != len(y):
                raise ComityError(f"data {self.name}: column {column!r} has {len(values)} values for {len(y)} samples")
        classes = self.classes or int(y.max()) + 1
        if y.max() >= classes:
            raise ComityError(
                f"data {self.name}: got label {y.max()}; with {classes} classes it must be below {classes}"
            )
        for key, value in (("x", x), ("y", y), ("classes", classes)):
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = "×".join(str(side) for side in self.shape)
        return f"Dataset({self.name}, {len(self)} samples, {shape}, {self.classes} classes)"

    @property
    def shape(self) -> tuple[int, int, int]:
        """One image as the model sees it: channels, height, width."""
        _, height, width, channels = self.x.shape
        return channels, height, width

    @property
    def shared_out(self) -> bool:
        """Whether the data set says itself which client owns which sample."""
        return "client" in self.columns

    def by_class(self) -> list[Ints]:
        """The indices of each class's samples."""
        order = np.argsort(self.y, kind="stable")
        ends = np.cumsum(np.bincount(self.y, minlength=self.classes))
        return np.split(order, ends[:-1])


def _images(name: str, x: ArrayLike) -> NDArray[Any]:
    images = np.asarray(x)
    shape = images.shape
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or 0 in images.shape:
        raise ComityError(
            f"data {name}: got images of shape {shape}; allowed: (n, H, W) or (n, H, W, C), none of them 0"
        )
    if images.shape[-1] > 4 >= images.shape[1]:
        raise ComityError(f"data {name}: got images of shape {shape}, channels first; allowed: (n, H, W, C)")
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating):
        raise ComityError(f"data {name}: got images of type {images.dtype}; allowed: uint8 or float")
    with np.errstate(over="ignore"):
        images = images.astype(np.float32, copy=False)
    if not np.isfinite(images).all():
        raise ComityError(f"data {name}: the images hold values that are not finite")
    return images


def _labels(name: str, y: ArrayLike) -> Ints:
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ComityError(
            f"data {name}: got labels of shape {labels.shape}, type {labels.dtype}; allowed: (n,) integers"
        )
    if len(labels) and labels.min() < 0:
        raise ComityError(f"data {name}: got label {labels.min()}; labels count from 0")
    return labels.astype(np.int64)
