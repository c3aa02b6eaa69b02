"""The pooled samples, before they are divided among clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity._errors import ComityError, one_line
from comity._uneven import imbalance
from comity.data.schema import Schema

Ints = NDArray[np.int64]
MOST_CLASSES = 100_000


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pooled samples and labels, with further columns (a year, a domain) that a partition may split by.

    ``x`` holds vectors (n, features), series (n, channels, time) or images, (n, H, W) or (n, H, W, C). Channels may
    also be the other axis; there must be fewer channels than time steps or pixels per side. Three dimensions are a
    series unless they are uint8 or square. uint8 pixels are scaled to [-1, 1], or to [0, 1] if not ``centred``. Floats
    are used as given, unless ``standardise`` (the default for vectors and series): then every feature or channel gets
    mean 0 and standard deviation 1 over the training and validation samples of all clients except newcomers, and NaN
    marks a missing value, which becomes the mean.

    A column named ``client`` assigns each sample to its client (the data set then has its own partition, ``Natural``);
    a column named ``test`` beside it marks test samples. Without ``client``, a column ``domain`` defines the clients if
    no partition is given.
    """

    name: str
    x: NDArray[Any]
    y: Ints
    classes: int = 0
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    class_names: Sequence[str] = ()
    """By default the class indices."""
    standardise: bool | None = None
    notes: tuple[str, ...] = ()
    """Decisions that were made where the data were ambiguous, one line each, for the user."""
    centred: bool = True
    warnings: tuple[str, ...] = ()
    """Probable mistakes in the data, one line each."""
    schema: Schema | None = None
    """How rows of the table were converted to samples."""
    in_time: bool = False
    """Whether the samples of each client are in time order; they are then split into blocks of time."""

    def __post_init__(self) -> None:
        name = one_line(self.name, 200)
        x = _samples(name, self.x)
        standardise = x.ndim < 4 if self.standardise is None else self.standardise
        if not np.isfinite(x).all() and (not standardise or np.isinf(x).any()):
            raise ComityError(f"data {name}: the samples hold values that are not finite")
        y, label_names = _labels(name, self.y, shift=not self.classes)
        if len(x) != len(y):
            raise ComityError(
                f"data {name}: got {len(x)} samples and {len(y)} labels; there must be one label a sample"
            )
        columns = {column: _column(name, column, values, len(y)) for column, values in self.columns.items()}
        classes = self.classes or int(y.max()) + 1
        check_classes(name, classes)
        if y.max() >= classes:
            raise ComityError(f"data {name}: got label {y.max()}; with {classes} classes it must be below {classes}")
        given = self.class_names or label_names or range(classes)
        names = tuple(one_line(label, 40) for label in given)
        if len(names) != classes:
            raise ComityError(f"data {name}: got {len(names)} names of classes; there are {classes} classes")
        checked = {"name": name, "x": x, "y": y, "classes": classes, "columns": columns, "class_names": names}
        checked["standardise"] = standardise
        for key, value in checked.items():
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = "×".join(str(side) for side in self.shape)
        return f"Dataset({self.name}, {len(self)} samples, {shape}, {self.classes} classes)"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample as the model gets it: features; channels, time; or channels, height, width."""
        *sizes, last = self.x.shape[1:]
        return (last, *sizes) if self.x.ndim == 4 else (*sizes, last)

    @property
    def owner(self) -> NDArray[Any] | None:
        """The client of each sample if the data set has one: used if no partition is given."""
        return self.columns.get("client", self.columns.get("domain"))

    def imbalance(self, by_client: bool) -> str:
        """How classes are imbalanced, over all samples or, with ``by_client``, for the clients in the data."""
        who = np.zeros(len(self), np.int64)
        if by_client and self.owner is not None:
            who = np.unique(self.owner, return_inverse=True)[1]
        cells = np.bincount(who * self.classes + self.y, minlength=(int(who.max()) + 1) * self.classes)
        return imbalance(cells.reshape(-1, self.classes).tolist())


def check_classes(name: str, classes: int) -> None:
    """Reject too many classes, for example if an id was used as the label."""
    if not 1 <= classes <= MOST_CLASSES:
        raise ComityError(f"data {name}: got labels up to {classes - 1}; allowed: 1 to {MOST_CLASSES} classes")


def _samples(name: str, x: ArrayLike) -> NDArray[Any]:
    samples = _array(name, "the samples", x)
    shape, kind = samples.shape, samples.dtype.kind
    if samples.ndim == 3 and (samples.dtype == np.uint8 or shape[1] == shape[2]):
        samples = samples[..., None]
    if samples.ndim not in (2, 3, 4) or 0 in shape:
        raise ComityError(
            f"data {name}: got samples of shape {shape}; allowed: vectors (n, features), series (n, channels, time) "
            "and images (n, H, W) or (n, H, W, C), none of them 0"
        )
    if samples.ndim == 4 and samples.shape[-1] > 4 >= samples.shape[1]:
        samples = samples.transpose(0, 2, 3, 1)
    if samples.ndim == 3 and samples.shape[1] > samples.shape[2]:
        samples = samples.transpose(0, 2, 1)
    if samples.dtype == np.uint8:
        return samples
    if kind != "f" and (kind not in "biu" or samples.ndim == 4):
        allowed = "uint8 or float" if samples.ndim == 4 else "numbers"
        raise ComityError(f"data {name}: got samples of type {samples.dtype}; allowed: {allowed}")
    with np.errstate(over="ignore"):
        return samples.astype(np.float32, copy=False)


def _labels(name: str, y: ArrayLike, shift: bool) -> tuple[Ints, list[str]]:
    """Labels from 0, and their names if they were text, or with ``shift`` if they started at 1."""
    labels = _array(name, "the labels", y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.dtype == object and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.dtype.kind in "SU" and labels.ndim == 1:
        labels = np.char.decode(labels, "latin-1") if labels.dtype.kind == "S" else labels
        names, places = np.unique(np.char.strip(labels), return_inverse=True)
        check_classes(name, len(names))
        return places.astype(np.int64), names.tolist()
    if labels.ndim != 1 or labels.dtype.kind not in "iu":  # numpy counts times as integers
        raise ComityError(
            f"data {name}: got labels of shape {labels.shape}, type {labels.dtype}; allowed: (n,) integers or text, "
            "for they are classes; make bins of a quantity first"
        )
    if len(labels) and labels.min() < 0:
        raise ComityError(f"data {name}: got label {labels.min()}; labels count from 0 or from 1")
    if len(labels):  # before an unsigned 64-bit label becomes negative
        check_classes(name, int(labels.max()) + 1)
    labels = labels.astype(np.int64)
    if shift and len(labels) and labels.min() == 1:
        return labels - 1, [str(label) for label in range(1, labels.max() + 1)]
    return labels, []


def _column(name: str, column: str, values: ArrayLike, samples: int) -> NDArray[Any]:
    array = _array(name, f"column {column!r}", values)
    if array.shape != (samples,):
        what = f"{len(array)} values" if array.ndim == 1 else f"shape {array.shape}"
        raise ComityError(f"data {name}: column {column!r} has {what} for {samples} samples")
    if array.dtype.kind == "S":
        array = np.char.decode(array, "latin-1")
    if array.dtype.kind not in "biufU":
        raise ComityError(f"data {name}: column {column!r} is of type {array.dtype}; allowed: numbers or text")
    if column == "test" and not (array.dtype.kind in "biuf" and np.isin(array, (0, 1)).all()):
        raise ComityError(f"data {name}: column 'test' says which samples are for testing; allowed: 0 and 1")
    return array


def _array(name: str, what: str, values: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise ComityError(f"data {name}: {what} are no array: {error}") from error
