"""Image folders: one subfolder a class."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity.data._dataset import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = {".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
YEAR = re.compile(r"(1[89]|20)\d\d(?!\d)")  # at the start of a file's name, as in Yearbook


def is_image_folder(folder: Path) -> bool:
    return any(True for _ in _files(folder))


def read_folder(name: str, folder: Path, size: int | None = None) -> Dataset:
    """``<class>/<image>``, or ``<split>/<class>/<image>`` (pooled), or ``<domain>/<class>/<image>``.

    A domain becomes the column ``domain``; file names that all begin with a year give the column ``year``. Images of
    different sizes need ``size``: they are scaled to size × size.
    """
    files = sorted(_files(folder))
    parts = [file.relative_to(folder).parts for file in files]
    groups = _subfolders(folder)
    grouped = groups <= SPLITS or _are_domains(folder, groups)
    level = 1 if grouped else 0
    shallow = next((file for file, part in zip(files, parts, strict=True) if len(part) < level + 2), None)
    if shallow is not None:
        raise ComityError(
            f"{shallow}: an image outside any class folder; expected {folder}/{'<split>/' * level}<class>/<image>"
        )
    names = sorted({part[level] for part in parts})
    if groups <= SPLITS:
        trained = {part[1] for part in parts if part[0].startswith("train")}
        strange = sorted(set(names) - trained)
        if trained and strange:
            raise ComityError(
                f"{folder}: class folder {strange[0]!r} is not under train; every split must hold the same classes"
            )
    label = {name: k for k, name in enumerate(names)}
    columns: dict[str, NDArray[Any]] = {}
    if grouped and not groups <= SPLITS:
        columns["domain"] = np.array([part[0] for part in parts])
    years = [YEAR.match(file.name) for file in files]
    if all(years):
        columns["year"] = np.array([int(year[0]) for year in years if year])
    y = np.array([label[part[level]] for part in parts])
    return Dataset(name, stack(map(open_image, files), size, folder), y, len(names), columns)


def stack(images: Iterator["Image"], size: int | None, where: object) -> NDArray[np.uint8]:
    """Images as one array: grey if all are grey, RGB otherwise."""
    pixels: list[NDArray[np.uint8]] = []
    grey = True
    for image in images:
        grey = grey and image.mode in ("1", "L")
        plain = image.convert("L" if image.mode in ("1", "L") else "RGB")
        if size is not None and plain.size != (size, size):
            plain = plain.resize((size, size))
        pixels.append(np.asarray(plain))
        if pixels[-1].shape[:2] != pixels[0].shape[:2]:
            raise ComityError(
                f"{where}: images differ in size, {pixels[0].shape[:2]} and {pixels[-1].shape[:2]}: "
                f"set data.size, for example 32"
            )
    if grey:
        return np.stack(pixels)
    return np.stack([image if image.ndim == 3 else image[..., None].repeat(3, axis=2) for image in pixels])


def open_image(path: Path) -> "Image":
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ComityError("data: image folders need Pillow: pip install 'comity[hub]' or pip install pillow") from error
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError, ValueError) as error:
        raise ComityError(f"{path}: corrupt or truncated image: {error}") from error


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.suffix.lower() in IMAGES and file.is_file())


def _subfolders(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_dir() and is_image_folder(path)}


def _are_domains(folder: Path, groups: set[str]) -> bool:
    """Whether all subfolders hold the same two or more class folders and no image of their own."""
    inside = [_subfolders(folder / group) for group in groups]
    return len(groups) > 1 and len(inside[0]) > 1 and all(classes == inside[0] for classes in inside)
