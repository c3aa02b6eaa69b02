"""A data set by its name, wherever it is."""

import os
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from comity._errors import ComityError, unknown
from comity.data._dataset import Dataset
from comity.data.sources.catalogue import DATASETS, Known
from comity.data.sources.cifar import is_cifar, read_cifar
from comity.data.sources.digits import read_digits
from comity.data.sources.folder import is_image_folder, read_folder
from comity.data.sources.hub import INSTALL, hub_installed, read_hub
from comity.data.sources.idx import is_idx, read_idx
from comity.data.sources.npz import read_npz
from comity.data.sources.pfllib import is_pfllib, read_pfllib
from comity.data.sources.reading import Budget, reading
from comity.data.sources.synthetic import Synthetic


def load(
    name: str, data_dir: str | Path | None = None, limit: int | str | None = None, **options: int | float
) -> Dataset | Synthetic:
    """The data set ``name``: embedded, synthetic, in ``data_dir`` (default ``$COMITY_DATA``), a path, or on the hub.

    ``limit`` is the most memory that it may take, such as ``"20GB"``; default ``$COMITY_DATA_LIMIT``, else three
    quarters of what the machine has. Options: ``size`` scales the images of a folder or of the hub; ``synthetic`` takes
    the fields of ``Synthetic``.
    """
    key = next((known for known in DATASETS if _plain(known) == _plain(name)), name)
    if key == "synthetic":
        _admit(options, [field.name for field in fields(Synthetic)], key)
        return Synthetic(**options)  # type: ignore[arg-type]
    if key == "digits":
        _admit(options, [], key)
        return read_digits()
    _admit(options, ["size"], key)
    size = _size(options.get("size"))
    known = DATASETS.get(key)
    folder = Path(data_dir or os.environ.get("COMITY_DATA") or ".")
    budget = Budget(limit)
    with reading(f"data {name}"):
        if name.startswith("hub:"):
            return read_hub(name, name.removeprefix("hub:"), budget, size)
        path = _find(name, known.folders if known else (), folder)
        if path is not None:
            return _read(key if known else path.stem, path, budget, size, known.size if known else None)
        if known and known.hub and hub_installed():
            return read_hub(key, known.hub, budget, size or known.size)
    raise _missing(name, known, folder)


LAYOUTS: tuple[tuple[Callable[[Path], bool], Callable[[str, Path, Budget], Dataset]], ...] = (
    (Path.is_file, read_npz),
    (is_pfllib, read_pfllib),
    (is_idx, read_idx),
    (is_cifar, read_cifar),
)


def _read(name: str, path: Path, budget: Budget, size: int | None, usual: int | None) -> Dataset:
    """The data set in a file or folder, whichever of the known layouts it has."""
    for has_layout, reader in LAYOUTS:
        if has_layout(path):
            if size is not None:
                raise ComityError(f"data.size: got {size}; only image folders and the hub's images are scaled: {path}")
            return reader(name, path, budget)
    if is_image_folder(path):
        return read_folder(name, path, budget, size or usual)
    raise ComityError(
        f"{path}: no data set in it; looked for IDX files (train-images-idx3-ubyte), CIFAR batches, PFLlib's "
        f"config.json with train/0.npz, and images in class folders"
    )


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith(".npz")


def _find(name: str, aliases: tuple[str, ...], folder: Path) -> Path | None:
    """A path as given, else the entry of ``folder`` of that name (any case, '-' or '_'); npz files first."""
    if _is_path(name):
        return next((path for path in (Path(name).expanduser(), folder / name) if path.exists()), None)
    if not folder.is_dir():
        return None
    wanted = {_plain(alias) for alias in (name, *aliases)}
    archives = [path for path in sorted(folder.glob("*.npz")) if path.is_file()]
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    return next((path for path in (*archives, *folders) if _plain(path.name.removesuffix(".npz")) in wanted), None)


def _missing(name: str, known: Known | None, folder: Path) -> ComityError:
    if _is_path(name):
        return ComityError(f"data {name}: no such file or folder")
    looked = f"looked for {name}.npz and the folder {name}/ in {folder.resolve()}"
    if known is None:
        return unknown("data set", name, DATASETS, hint=f"({looked})")
    ways = [f"put {known.get} there"] if known.get else []
    ways += [f"{INSTALL} to fetch {known.hub} from the hub"] if known.hub else []
    return ComityError(f"data {name}: {looked} (set by --data-dir or COMITY_DATA); to get it: {', or '.join(ways)}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _admit(options: dict[str, int | float], allowed: list[str], name: str) -> None:
    for key in options:
        if key not in allowed:
            told = f"these options: {', '.join(allowed)}" if allowed else "no options"
            raise ComityError(f"data.{key}: got {options[key]}; {name} has {told}")


def _size(size: int | float | None) -> int | None:
    if size is not None and (size != int(size) or not 1 <= size <= 4096):
        raise ComityError(f"data.size: got {size}; allowed: 1 to 4096 pixels")
    return None if size is None else int(size)
