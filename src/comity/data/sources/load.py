"""A data set by its name, wherever it is."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from comity._catalogue import DataFiles, spelling
from comity._components import Component
from comity._errors import ComityError, install, unknown
from comity.data._dataset import Dataset
from comity.data.sources.catalogue import DATASETS, DatasetInfo
from comity.data.sources.cifar import is_cifar, read_cifar
from comity.data.sources.digits import read_digits
from comity.data.sources.folder import is_image_folder, read_folder
from comity.data.sources.heart import read_heart
from comity.data.sources.hub import hub_installed, read_hub
from comity.data.sources.idx import is_idx, read_idx
from comity.data.sources.npz import read_npz
from comity.data.sources.pfllib import is_pfllib, read_pfllib
from comity.data.sources.reading import Budget, reading
from comity.data.sources.synthetic import Synthetic
from comity.data.sources.table import TABLES, is_table, read_table
from comity.data.sources.watch import read_watch, watch_file


def load(
    name: str, data_dir: str | Path | None = None, limit: int | str | None = None, **options: Any
) -> Dataset | Synthetic:
    """The data set ``name``: embedded, synthetic, in ``data_dir`` (default ``$COMITY_DATA``), a path, or on the hub.

    ``limit`` is the most memory that it may take, such as ``"20GB"``; default three quarters of what the machine has.
    The options are those that ``comity run --data NAME --help`` shows.
    """
    chosen = Component.parse("data", {"name": name, **options})
    if chosen.name == "synthetic":
        return Synthetic(**chosen.options)
    if chosen.name == "digits":
        return read_digits()
    if chosen.name == "heart":
        return read_heart(**chosen.options)
    files, info = DataFiles(**chosen.options), DATASETS.get(chosen.name)
    folder = Path(data_dir or os.environ.get("COMITY_DATA") or ".")
    budget = Budget(limit)
    with reading(f"data {name}"):
        path = None if name.startswith("hub:") else _find(name, info.folders if info else (), folder)
        if name.startswith("hub:"):
            found = read_hub(name, name.removeprefix("hub:"), budget, files.size)
        elif path is not None:
            found = _read(chosen.name if info else path.stem, path, budget, files, info.size if info else None)
        elif chosen.name == "watch" and (recordings := watch_file()) is not None:
            found = read_watch(recordings, budget)
        elif info and info.hub and hub_installed():
            found = read_hub(chosen.name, info.hub, budget, files.size or info.size)
        else:
            raise _missing(name, info, folder)
    return found if files.centred else replace(found, centred=False)


LAYOUTS: tuple[tuple[Callable[[Path], bool], Callable[[str, Path, Budget], Dataset]], ...] = (
    (Path.is_file, read_npz),
    (is_pfllib, read_pfllib),
    (is_idx, read_idx),
    (is_cifar, read_cifar),
)


def _read(name: str, path: Path, budget: Budget, files: DataFiles, usual: int | None) -> Dataset:
    """The data set in a file or folder: a table, one of the LAYOUTS, or images."""
    size = files.size
    if is_table(path):
        if size is not None:
            raise ComityError(f"data.size must be left out, got {size}: {path} is no folder of images")
        return read_table(name, path, budget, files)
    if (given := files.target or files.client) is not None:
        option = "client" if files.target is None else "target"
        raise ComityError(f"data.{option} must be left out, got {given}: {path} is no table (.csv, .tsv, .parquet)")
    for has_layout, reader in LAYOUTS:
        if has_layout(path):
            found = reader(name, path, budget)
            if size is not None and found.shape[-2:] != (size, size):
                held = "×".join(map(str, found.shape))
                raise ComityError(f"data.size is {size}, but {path} holds {held}; only folders of images are resized")
            return found
    if is_image_folder(path):
        return read_folder(name, path, budget, size or usual)
    raise ComityError(
        f"{path}: no data set in it; looked for IDX files (train-images-idx3-ubyte), CIFAR batches, PFLlib's "
        f"config.json with train/0.npz, images in class folders; a file may be .npz, .csv, .tsv or .parquet"
    )


def _is_path(name: str) -> bool:
    return "/" in name or os.sep in name or name.endswith((".npz", *TABLES))


def _find(name: str, aliases: tuple[str, ...], folder: Path) -> Path | None:
    """A path as given, else the entry of ``folder`` of that name (any case, '-' or '_'); npz files first."""
    if _is_path(name):
        return next((path for path in (Path(name).expanduser(), folder / name) if path.exists()), None)
    if not folder.is_dir():
        return None
    wanted = {spelling(alias) for alias in (name, *aliases)}
    archives = [path for path in sorted(folder.glob("*.npz")) if path.is_file()]
    folders = [path for path in sorted(folder.iterdir()) if path.is_dir()]
    return next((path for path in (*archives, *folders) if spelling(path.name.removesuffix(".npz")) in wanted), None)


def _missing(name: str, info: DatasetInfo | None, folder: Path) -> ComityError:
    if _is_path(name):
        return ComityError(f"data {name}: no such file or folder")
    looked = f"looked for {name}.npz and the folder {name}/ in {folder.resolve()}"
    if info is None:
        return unknown("data set", name, DATASETS, hint=f"({looked})")
    ways = [f"put {info.get} there"] if info.get else []
    ways += [f"{install('watch')}, which brings the recordings"] if info is DATASETS["watch"] else []
    ways += [f"{install('hub')} to fetch {info.hub} from the hub"] if info.hub else []
    return ComityError(f"data {name}: {looked} (set by --data-dir or COMITY_DATA); to get it: {', or '.join(ways)}")
