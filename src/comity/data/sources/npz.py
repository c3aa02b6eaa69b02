"""One npz file with x_train, y_train, x_test, y_test."""

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset


def read_npz(name: str, path: Path) -> Dataset:
    """Train and test pooled; any further pair ``<column>_train``, ``<column>_test`` becomes a column."""
    if not zipfile.is_zipfile(path):
        raise ComityError(f"{path}: corrupt, truncated or not an npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {key: file[key] for key in file.files}
    except (
        OSError,
        ValueError,
        EOFError,
        KeyError,
        MemoryError,
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
    ) as error:
        raise ComityError(f"{path}: corrupt or not an npz file of plain arrays: {error}") from error
    stems = {key.removesuffix("_train") for key in arrays if key.endswith("_train")}
    for key in ("x_train", "y_train"):
        if key not in arrays:
            raise ComityError(
                f"{path}: no {key}; it holds {', '.join(sorted(arrays))} and must hold x_train, y_train, x_test, y_test"
            )
    pooled = {}
    for stem in sorted(stems):
        parts = [arrays[f"{stem}_{split}"] for split in ("train", "test") if f"{stem}_{split}" in arrays]
        if len({part.shape[1:] for part in parts}) > 1:
            raise ComityError(f"{path}: {stem}_train and {stem}_test have shapes {parts[0].shape} and {parts[1].shape}")
        pooled[stem] = np.concatenate(parts)
    return Dataset(name, pooled.pop("x"), pooled.pop("y"), columns=pooled)
