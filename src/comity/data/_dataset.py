"""Samples before they are shared out among clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity._errors import ComityError, one_line

Ints = NDArray[np.int64]
MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pooled images and labels, with any further columns (a year, a domain) that a partition may split along.

    ``x`` is (n, H, W) or (n, H, W, C): uint8 pixels, which the federation scales to [-1, 1], or to [0, 1]
    where they are not ``centred``, or floats, which are taken as they are. A column named ``client`` says who owns each
    sample (the data set then carries its own partition, ``Natural``); a column named ``test`` beside it says which
    samples are test samples.
    """

    name: str
    x: NDArray[Any]
    y: Ints
    classes: int = 0
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    centred: bool = True

    def __post_init__(self) -> None:
        name = one_line(self.name, 200)
        x = _images(name, self.x)
        y = _labels(name, self.y)
        if len(x) != len(y):
            raise ComityError(f"data {name}: got {len(x)} images and {len(y)} labels; there must be one label an image")
        columns = {column: _column(name, column, values, len(y)) for column, values in self.columns.items()}
        classes = self.classes or int(y.max()) + 1
        check_classes(name, classes)
        if y.max() >= classes:
            raise ComityError(f"data {name}: got label {y.max()}; with {classes} classes it must be below {classes}")
        for key, value in (("name", name), ("x", x), ("y", y), ("classes", classes), ("columns", columns)):
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


def check_classes(name: str, classes: int) -> None:
    """Refuse what no model and no table has room for; a label that is no label, such as an id, makes millions."""
    if not 1 <= classes <= MOST_CLASSES:
        raise ComityError(f"data {name}: got labels up to {classes - 1}; allowed: 1 to {MOST_CLASSES} classes")


def _images(name: str, x: ArrayLike) -> NDArray[Any]:
    images = _array(name, "the images", x)
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
    labels = _array(name, "the labels", y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise ComityError(
            f"data {name}: got labels of shape {labels.shape}, type {labels.dtype}; allowed: (n,) integers"
        )
    if len(labels) and labels.min() < 0:
        raise ComityError(f"data {name}: got label {labels.min()}; labels count from 0")
    if len(labels):  # before a label of 64 bits without a sign becomes a negative one
        check_classes(name, int(labels.max()) + 1)
    return labels.astype(np.int64)


def _column(name: str, column: str, values: ArrayLike, samples: int) -> NDArray[Any]:
    array = _array(name, f"column {column!r}", values)
    if array.shape != (samples,):
        what = f"{len(array)} values" if array.ndim == 1 else f"shape {array.shape}"
        raise ComityError(f"data {name}: column {column!r} has {what} for {samples} samples")
    if array.dtype.kind not in "biufSU":
        raise ComityError(f"data {name}: column {column!r} is of type {array.dtype}; allowed: numbers or text")
    if column == "test" and not (array.dtype.kind in "biuf" and np.isin(array, (0, 1)).all()):
        raise ComityError(f"data {name}: column 'test' says which samples are for testing; allowed: 0 and 1")
    return array


def _array(name: str, what: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ComityError(f"data {name}: {what} are no array: {error}") from error
