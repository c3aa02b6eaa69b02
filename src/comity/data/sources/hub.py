"""Data sets of the Hugging Face hub (needs the extra ``hub``)."""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.folder import SPLITS, read_images
from comity.data.sources.reading import Budget, array_bytes

LABELS = ("label", "labels", "fine_label", "y")


def read_hub(name: str, repository: str, budget: Budget, size: int | None = None) -> Dataset:
    """Pool the train, validation and test splits; further columns of numbers or short text are kept."""
    where = f"data hub:{repository}"
    import datasets

    try:
        splits = datasets.load_dataset(repository)
    # the hub's client raises errors of many packages: no network, no such data set, a broken file
    except Exception as error:
        raise ComityError(f"{where}: could not be loaded: {type(error).__name__}: {error}".splitlines()[0]) from error
    # other splits, such as the corrupted copies in tanganke/gtsrb, are not part of the data set
    wanted = [split for split in splits if split in SPLITS] or list(splits)
    features = splits[wanted[0]].features
    image = next((key for key, kind in features.items() if type(kind).__name__ == "Image"), None)
    label = next((key for key in LABELS if key in features), None)
    if image is None or label is None:
        raise ComityError(f"{where}: needs an image and a label column; it has {', '.join(features)}")

    def column(key: str, *kind: object) -> Iterator[Any]:
        """A column of all splits, row by row, so that it need not fit into memory."""
        for split in wanted:
            rows = splits[split].select_columns([key])
            for row in rows.cast_column(key, *kind) if kind else rows:
                yield row[key]

    def files() -> Iterator[Path | bytes]:
        """The stored image files, for our own reader: the hub's reader accepts every format."""
        for number, stored in enumerate(column(image, datasets.Image(decode=False))):
            if stored is None:
                raise ComityError(f"{where}: row {number} has no image")
            yield stored["bytes"] or Path(stored["path"])

    y = np.array(list(column(label)))
    if y.dtype.kind not in "iu":
        raise ComityError(f"{where}: column {label} is of type {y.dtype}; expected a class for each image")
    columns: dict[str, NDArray[Any]] = {}
    for key, kind in features.items():
        if key not in (image, label) and str(getattr(kind, "dtype", "")).startswith(("int", "uint", "float", "string")):
            values = list(takewhile(_is_short, column(key)))
            if len(values) == len(y):
                columns[key] = np.array(values)
                budget.take(array_bytes(columns[key].shape, columns[key].dtype), f"{where}: column {key}")
    x = read_images(files(), len(y), size, budget, where)
    keep = y >= 0  # the hub marks hidden test labels with -1
    return Dataset(name, x[keep], y[keep], columns={key: values[keep] for key, values in columns.items()})


def _is_short(value: object) -> bool:
    """Whether a value is a number or a short text that a partition could use; numpy pads all texts to the longest."""
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 100)
