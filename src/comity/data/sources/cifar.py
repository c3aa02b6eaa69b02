"""CIFAR-10 and CIFAR-100 as their authors publish them, "python version"."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.unpickle import unpickle

# folder, its batches, the key of the labels, classes
LAYOUTS = (
    ("cifar-10-batches-py", [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"], b"labels", 10),
    ("cifar-100-python", ["train", "test"], b"fine_labels", 100),
)


def is_cifar(folder: Path) -> bool:
    """Whether the folder, or one in it, is an unpacked CIFAR archive."""
    return any((place / batches[0]).is_file() for name, batches, _, _ in LAYOUTS for place in (folder, folder / name))


def read_cifar(name: str, folder: Path) -> Dataset:
    """All batches pooled (Krizhevsky, 2009)."""
    inner, batches, key, classes = next(
        layout for layout in LAYOUTS for place in (folder, folder / layout[0]) if (place / layout[1][0]).is_file()
    )
    place = folder if (folder / batches[0]).is_file() else folder / inner
    x, y = zip(*(_batch(place / batch, key) for batch in batches), strict=True)
    return Dataset(name, np.concatenate(x), np.concatenate(y), classes)


def _batch(path: Path, key: bytes) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    try:
        with path.open("rb") as file:
            batch = unpickle(file, path)
    except OSError as error:
        raise ComityError(f"{path}: {error.strerror}; the folder must hold all batches of the archive") from error
    if isinstance(batch, dict):
        batch = {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
    if not isinstance(batch, dict) or b"data" not in batch or key not in batch:
        raise ComityError(f"{path}: no {key.decode()} or no data in it; not a CIFAR batch")
    try:
        x, y = np.asarray(batch[b"data"]), np.asarray(batch[key])
    except (ValueError, TypeError) as error:
        raise ComityError(f"{path}: data or {key.decode()} are not arrays: {error}") from error
    if x.ndim != 2 or x.shape[1] != 3 * 32 * 32 or x.dtype != np.uint8:
        raise ComityError(f"{path}: got data of shape {x.shape}, type {x.dtype}; expected (n, 3072) of uint8")
    return x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y
