"""Image folders with one subfolder per class."""

import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError, install, one_line
from comity.data._dataset import Dataset, check_classes
from comity.data.sources.reading import Budget, array_bytes, reading

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGES = {".png", ".jpg", ".jpeg", ".ppm", ".pgm", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
# Pillow looks at a file's content, not its name, and passes some formats to other programs (EPS to Ghostscript).
FORMATS = ("PNG", "JPEG", "PPM", "BMP", "GIF", "WEBP", "TIFF")
SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")
SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation"}
YEAR = re.compile(r"(1[89]|20)\d\d(?!\d)")  # at the start of a file name, as in Yearbook


def read_folder(name: str, folder: Path, budget: Budget, size: int | None = None) -> Dataset | None:
    """``<class>/<image>``, or ``<split>/<class>/<image>`` (pooled), or ``<site>/<class>/<image>``.

    Sites become the column ``domain``; if all file names begin with a year, it becomes the column ``year``. Images of
    different sizes need ``size``: they are scaled to size × size. Hidden files and folders are skipped.
    """
    files = sorted(image_files(folder))
    if not files:
        return None
    places = [file.relative_to(folder).parts for file in files]
    groups = {place[0] for place in places if len(place) > 1}
    splits = groups <= SPLITS
    level = 1 if splits or _are_domains(places) else 0
    shallow = next((file for file, place in zip(files, places, strict=True) if len(place) < level + 2), None)
    if shallow is not None:
        raise ComityError(
            f"{shallow}: an image outside any class folder; expected {folder}/{'<split>/' * level}<class>/<image>"
        )
    names = sorted({place[level] for place in places})
    check_classes(name, len(names))
    if splits:
        trained = {place[1] for place in places if place[0].startswith("train")}
        strange = sorted(set(names) - trained)
        if trained and strange:
            raise ComityError(
                f"{folder}: class folder {strange[0]!r} is not under train; every split must hold the same classes"
            )
    label = {name: k for k, name in enumerate(names)}
    columns: dict[str, NDArray[Any]] = {}
    notes = []
    if level and not splits:
        columns["domain"] = np.array([place[0] for place in places])
        sites = sorted(set(columns["domain"].tolist()))
        shown = ", ".join(sites[:5]) + (", …" if len(sites) > 5 else "")
        notes.append(f"{name}: the folders {one_line(shown)} are sites, each a client unless a partition is named")
    years = [YEAR.match(file.name) for file in files]
    if all(years):
        columns["year"] = np.array([int(year[0]) for year in years if year])
    y = np.array([label[place[level]] for place in places])
    x = read_images(files, len(files), size, budget, folder)
    return Dataset(name, x, y, len(names), columns, names, notes=tuple(notes))


def read_images(
    files: Iterable[Path | bytes], count: int, size: int | None, budget: Budget, where: object
) -> NDArray[np.uint8]:
    """``count`` images as one array: grey if all are grey, RGB otherwise.

    Only the first image of an animation is used; transparency is ignored.
    """
    images: list[NDArray[np.uint8]] = []
    for number, file in enumerate(files):
        named = file if isinstance(file, Path) else f"{where}, image {number}"
        with reading(named):
            images.append(read_image(file, size, budget, named))
        image = images[-1]
        if number == 0:  # all images will have this size
            budget.check(array_bytes((count, *image.shape), image.dtype), where)
        budget.take(array_bytes(image.shape, image.dtype), where)
        if image.shape[:2] != images[0].shape[:2]:
            raise ComityError(
                f"{where}: images differ in size, {images[0].shape[:2]} and {image.shape[:2]}: "
                f"set data.size, for example 32"
            )
    if all(image.ndim == 2 for image in images):
        return np.stack(images)
    return np.stack([image if image.ndim == 3 else image[..., None].repeat(3, axis=2) for image in images])


def read_image(file: Path | bytes, size: int | None, budget: Budget, named: object) -> NDArray[np.uint8]:
    """Pixels of one image, grey (H, W) or RGB (H, W, 3)."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ComityError(f"data: image folders need Pillow: {install('hub')}") from error
    if isinstance(file, Path):
        budget.check(2 * file.stat().st_size, named)  # Pillow reads some parts of a file at once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about broken metadata, which is not used
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file, formats=FORMATS) as image:
                budget.check(8 * image.width * image.height, named)  # decoded and converted copies
                plain = _eight_bits(image, named)
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise ComityError(f"{named}: a larger image than Pillow takes: {error}") from error
        except UnidentifiedImageError as error:
            raise ComityError(f"{named}: corrupt, truncated or not one of {', '.join(FORMATS)}") from error
        if size is not None and plain.size != (size, size):
            plain = plain.resize((size, size))
        return np.asarray(plain)


def _eight_bits(image: "Image", named: object) -> "Image":
    """Convert an image to grey or RGB with 8 bits per channel."""
    from PIL.Image import fromarray

    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        raise ComityError(f"{named}: an image of 32 bits a pixel, whose range is not known; allowed: 8 or 16 bits")
    image.load()
    if image.mode in SIXTEEN_BITS:  # Pillow would clip values above 255
        return fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")


def image_files(folder: Path) -> Iterator[Path]:
    """All images under ``folder``, at any depth and through links, visiting no folder twice."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=_fail):
        state = os.stat(place)
        if (state.st_dev, state.st_ino) in seen:
            raise ComityError(f"{place}: a link to a folder that is part of the data set already")
        seen.add((state.st_dev, state.st_ino))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(place, name) for name in names if not name.startswith(".")):
            if path.suffix.lower() in IMAGES:
                yield path


def _fail(error: OSError) -> None:
    raise error


def _are_domains(places: Sequence[tuple[str, ...]]) -> bool:
    """Whether the top folders are sites: all images are two levels deep, and sites share class names.

    A site may lack a class; class folders share at most one subfolder name, such as ``images``.
    """
    if any(len(place) < 3 for place in places):
        return False
    inside: dict[str, set[str]] = {}
    for place in places:
        inside.setdefault(place[1], set()).add(place[0])
    return len(inside) > 1 and any(len(sites) > 1 for sites in inside.values())
