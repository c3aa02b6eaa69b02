"""New samples without labels, for prediction: npz files and images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data.sources.folder import IMAGES, image_files, read_image
from comity.data.sources.npz import SAMPLES, open_archive, plain_member
from comity.data.sources.reading import Budget, array_bytes, reading


class NewSamples(NamedTuple):
    """Samples in the format of a data set."""

    x: NDArray[Any]
    names: list[str] | None
    """Paths of images; ``None`` for samples that have only an index."""
    problems: dict[int, str]
    """Reason why a sample cannot be used, by index."""


def read_samples(path: Path, shape: Sequence[int], limit: int | str | None = None) -> NewSamples:
    """Read the array ``x`` of an npz file, an image, or all images in a folder, for a model with this input ``shape``.

    Images are scaled to the model's size, like training data with ``data.size``.
    """
    budget = Budget(limit)
    if path.suffix.lower() == ".npz":
        return NewSamples(_array(path, budget), None, {})
    if len(shape) != 3:
        raise ComityError(f"{path}: the model takes vectors or series; give them as x in an npz file")
    files = sorted(image_files(path)) if path.is_dir() else [path] if path.suffix.lower() in IMAGES else []
    if not files:
        raise ComityError(f"{path}: no images in it; allowed: {', '.join(sorted(IMAGES))}")
    names = [str(file.relative_to(path)) if path.is_dir() else file.name for file in files]
    channels, height, width = shape
    budget.take(array_bytes((len(files), height, width, channels), np.dtype(np.uint8)), path)
    x, problems = np.zeros((len(files), height, width, channels), np.uint8), dict[int, str]()
    for row, file in enumerate(files):
        try:
            with reading(file):
                x[row] = _fitting(read_image(file, height if height == width else None, budget, file), shape)
        except ComityError as error:
            problems[row] = str(error).removeprefix(f"{file}: ")
    return NewSamples(x, names, problems)


def _fitting(image: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.uint8]:
    """Convert an image to the channels of a model."""
    channels, height, width = shape
    if image.shape[:2] != (height, width):
        raise ComityError(f"an image of {image.shape[0]}×{image.shape[1]} pixels; the model takes {height}×{width}")
    if image.ndim == 3 and channels == 1:
        raise ComityError("a colour image; the model takes grey ones")
    return image if image.ndim == 3 else np.repeat(image[..., None], channels, axis=2)


def _array(path: Path, budget: Budget) -> NDArray[Any]:
    with reading(path), open_archive(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        name = next((name for name in SAMPLES if name in members), next(iter(members), "") if len(members) == 1 else "")
        if not name:
            raise ComityError(f"{path}: no x; it holds {', '.join(sorted(members)) or 'nothing'}")
        member = plain_member(archive, members[name], path)
        budget.take(array_bytes(member.shape, member.dtype), path)
        found: NDArray[Any] = npy.read_array(archive.open(member.info), allow_pickle=False)
    return found
