"""IDX, the format of MNIST and Fashion-MNIST."""

import gzip
import struct
import zlib
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset

UNSIGNED_BYTE = 8


def is_idx(folder: Path) -> bool:
    """Whether the folder, or its ``raw`` (torchvision's layout), holds IDX files."""
    return _find(folder, "train-images") is not None


def read_idx(name: str, folder: Path) -> Dataset:
    """The training and test files, pooled (LeCun et al., the MNIST database)."""
    x, y = [], []
    for part in ("train", "t10k"):
        images, labels = (_find(folder, f"{part}-{kind}") for kind in ("images", "labels"))
        if images is None and part == "t10k":
            continue
        if images is None or labels is None:
            raise ComityError(f"data {name}: {folder} lacks {part}-{'labels' if images else 'images'}-idx-ubyte(.gz)")
        x.append(_array(images, 3))
        y.append(_array(labels, 1))
        if len(x[-1]) != len(y[-1]):
            raise ComityError(f"{images}: holds {len(x[-1])} images; {labels.name} holds {len(y[-1])} labels")
    return Dataset(name, np.concatenate(x), np.concatenate(y))


def _find(folder: Path, stem: str) -> Path | None:
    for place in (folder, folder / "raw"):
        for path in sorted(place.glob(f"{stem}[-.]idx?-ubyte*")):
            if path.suffix in ("", ".gz") or path.name.endswith("-ubyte"):
                return path
    return None


def _array(path: Path, dimensions: int) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if magic != bytes((0, 0, UNSIGNED_BYTE, dimensions)):
                raise ComityError(
                    f"{path}: not an IDX file of {dimensions} dimensions of bytes; it begins with {magic.hex()}"
                )
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            expected = prod(shape)
            content = _read(file, expected + 1)  # one byte more than announced, to see whether there is one
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise ComityError(f"{path}: corrupt or truncated: {error}") from error
    held = "more" if len(content) > expected else len(content)
    if len(content) != expected:
        raise ComityError(f"{path}: corrupt or truncated: announces {shape}, {expected} bytes, and holds {held}")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _read(file: BinaryIO | gzip.GzipFile, most: int) -> bytes:
    """Up to ``most`` bytes, piece by piece: memory follows what is there, not what a header claims."""
    pieces = []
    while most and (piece := file.read(min(most, 1 << 20))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)
