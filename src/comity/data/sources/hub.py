"""Data sets of the Hugging Face hub, through the extra ``hub``."""

from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.folder import SPLITS, stack

LABELS = ("label", "labels", "fine_label", "y")
INSTALL = "pip install 'comity[hub]'"


def hub_installed() -> bool:
    return find_spec("datasets") is not None


def read_hub(name: str, repository: str, size: int | None = None) -> Dataset:
    """The train, validation and test splits pooled; further columns of numbers or text are kept."""
    if not hub_installed():
        raise ComityError(f"data hub:{repository}: the hub needs the package datasets: {INSTALL}")
    import datasets

    try:
        splits = datasets.load_dataset(repository)
    # the hub's client raises errors of half a dozen packages: no network, no such data set, a broken file
    except Exception as error:
        raise ComityError(
            f"data hub:{repository}: could not be loaded: {type(error).__name__}: {error}".splitlines()[0]
        ) from error
    # others, such as the corrupted copies in tanganke/gtsrb, are no part of the data set
    wanted = [split for split in splits if split in SPLITS] or list(splits)
    features = splits[wanted[0]].features
    image = next((key for key, kind in features.items() if type(kind).__name__ == "Image"), None)
    label = next((key for key in LABELS if key in features), None)
    if image is None or label is None:
        raise ComityError(f"data hub:{repository}: needs an image and a label column; it has {', '.join(features)}")
    y = np.concatenate([np.asarray(splits[split][label]) for split in wanted])
    x = stack((picture for split in wanted for picture in splits[split][image]), size, f"data hub:{repository}")
    columns: dict[str, NDArray[Any]] = {}
    for key, kind in features.items():
        if key not in (image, label) and str(getattr(kind, "dtype", "")).startswith(("int", "uint", "float", "string")):
            columns[key] = np.concatenate([np.asarray(splits[split][key]) for split in wanted])
    keep = y >= 0  # the hub marks hidden test labels with -1
    return Dataset(name, x[keep], y[keep], columns={key: values[keep] for key, values in columns.items()})
