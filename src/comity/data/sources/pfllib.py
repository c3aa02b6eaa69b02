"""PFLlib's layout: <Name>/config.json and <Name>/{train,test}/<client>.npz."""

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.unpickle import unpickle_object_array


def is_pfllib(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "train" / "0.npz").is_file()


def read_pfllib(name: str, folder: Path) -> Dataset:
    """The data and the exact partition of a paper that ships on PFLlib (Zhang et al., JMLR 2025).

    Images there are floats, channels first, already normalised.
    """
    config = folder / "config.json"
    try:
        entries = json.loads(config.read_text())
        clients, classes = int(entries["num_clients"]), int(entries["num_classes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ComityError(f"{config}: no readable num_clients and num_classes in it: {error}") from error
    x, y, owner, test = [], [], [], []
    for split in ("train", "test"):
        for client in range(clients):
            images, labels = _client(folder / split / f"{client}.npz")
            x.append(images)
            y.append(labels)
            owner.append(np.full(len(labels), client))
            test.append(np.full(len(labels), split == "test"))
    if len({images.shape[1:] for images in x}) > 1:
        raise ComityError(
            f"{folder}: the clients' images differ in shape: {sorted({images.shape[1:] for images in x})}"
        )
    columns = {"client": np.concatenate(owner), "test": np.concatenate(test)}
    return Dataset(name, np.concatenate(x), np.concatenate(y), classes, columns)


def _client(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with zipfile.ZipFile(path) as archive:
            content = archive.read("data.npy")
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ComityError(f"{path}: missing, corrupt or truncated: {error}") from error
    data = unpickle_object_array(content, path)
    if not isinstance(data, dict):
        raise ComityError(f"{path}: holds {type(data).__name__}; expected a dictionary with x and y")
    data = {key.decode() if isinstance(key, bytes) else key: value for key, value in data.items()}
    if "x" not in data or "y" not in data:
        raise ComityError(f"{path}: holds {', '.join(map(str, data))}; expected x and y")
    try:
        x, y = np.asarray(data["x"]), np.asarray(data["y"])
    except ValueError as error:
        raise ComityError(f"{path}: the samples differ in shape: {error}") from error
    if x.ndim not in (3, 4) or len(x) != len(y):
        raise ComityError(
            f"{path}: got x of shape {x.shape}, y of shape {y.shape}; expected images (n, C, H, W) and a label each"
        )
    if x.dtype.kind in "iu" and x.dtype != np.uint8:
        raise ComityError(f"{path}: got x of type {x.dtype}; expected images as floats")
    return (x.transpose(0, 2, 3, 1) if x.ndim == 4 else x[..., None]), y
