"""IDX, the format of MNIST and Fashion-MNIST."""

import gzip
import struct
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset
from comity.data.sources.reading import Budget, array_bytes, pool, reading

UNSIGNED_BYTE = 8


def read_idx(name: str, folder: Path, budget: Budget) -> Dataset | None:
    """The training and test files in the folder or its ``raw``, pooled (LeCun et al., the MNIST database)."""
    if _find(folder, "train-images") is None:
        return None
    x, y = [], []
    for split in ("train", "t10k"):
        images, labels = (_find(folder, f"{split}-{kind}") for kind in ("images", "labels"))
        if images is None:  # only possible for t10k
            continue
        if labels is None:
            raise ComityError(f"data {name}: {folder} lacks {split}-labels-idx-ubyte(.gz)")
        x.append(_array(images, 3, budget))
        y.append(_array(labels, 1, budget))
        if len(x[-1]) != len(y[-1]):
            raise ComityError(f"{images}: holds {len(x[-1])} images; {labels.name} holds {len(y[-1])} labels")
    return Dataset(name, pool(x, folder, "the train and t10k images"), np.concatenate(y))


def _find(folder: Path, stem: str) -> Path | None:
    for place in (folder, folder / "raw"):
        for path in sorted(place.glob(f"{stem}[-.]idx?-ubyte*")):
            if path.suffix in ("", ".gz") or path.name.endswith("-ubyte"):
                return path
    return None


def _array(path: Path, dimensions: int, budget: Budget) -> NDArray[np.uint8]:
    with reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        magic = file.read(4)
        if magic != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
            raise ComityError(
                f"{path}: not an IDX file of {dimensions} dimensions of bytes; it begins with {magic.hex()}"
            )
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        budget.take(array_bytes(shape, np.dtype(np.uint8)), f"{path}: announces {shape}", path.stat().st_size)
        content = file.read(prod(shape))
        if len(content) < prod(shape) or file.read(1):
            held = "more" if len(content) == prod(shape) else len(content)
            raise ComityError(f"{path}: corrupt: announces {shape}, {prod(shape)} bytes, and holds {held}")
    return np.frombuffer(content, np.uint8).reshape(shape)
