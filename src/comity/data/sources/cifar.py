"""CIFAR-10 and CIFAR-100 as their authors publish them, "python version"."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget, array_bytes, reading
from comity.data.sources.unpickle import arrays_of, unpickle

# folder, batches, key of the labels, classes
LAYOUTS = (
    ("cifar-10-batches-py", [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"], "labels", 10),
    ("cifar-100-python", ["train", "test"], "fine_labels", 100),
)


def read_cifar(name: str, folder: Path, budget: Budget) -> Dataset | None:
    """All batches of an unpacked archive, pooled (Krizhevsky, 2009)."""
    for inner, batches, key, classes in LAYOUTS:
        for place in (folder, folder / inner):
            if (place / batches[0]).is_file():
                x, y = zip(*(_batch(place / batch, key, budget) for batch in batches), strict=True)
                return Dataset(name, np.concatenate(x), np.concatenate(y), classes)
    return None


def _batch(path: Path, key: str, budget: Budget) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    with reading(path):
        budget.check(3 * path.stat().st_size, path)  # the file, its copy in the unpickler, and the array
        x, y = arrays_of(unpickle(path.read_bytes(), path), path, "data", key)
        if x.ndim != 2 or x.shape[1] != 3 * 32 * 32 or x.dtype != np.uint8:
            raise ComityError(f"{path}: got data of shape {x.shape}, type {x.dtype}; expected (n, 3072) of uint8")
        if y.shape != (len(x),) or y.dtype.kind not in "iu":
            raise ComityError(f"{path}: got {key} of shape {y.shape}, type {y.dtype}; expected {len(x)} whole numbers")
        budget.take(array_bytes(x.shape, x.dtype), path)
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y
