"""Load a data set by name or from Python objects."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from comity._components import Component
from comity._datasets import DATASETS, HUB, TABLES, UNKNOWN, DataFiles, bare_name, whereabouts
from comity._errors import ComityError, one_line
from comity._federations import NATURAL
from comity._natural import NaturalOptions
from comity.data._dataset import Dataset
from comity.data.federation import Federation
from comity.data.sources.cifar import read_cifar
from comity.data.sources.columns import is_table
from comity.data.sources.folder import read_folder
from comity.data.sources.hub import read_hub
from comity.data.sources.idx import read_idx
from comity.data.sources.natural import read_natural
from comity.data.sources.npz import read_npz
from comity.data.sources.pfllib import read_pfllib
from comity.data.sources.reading import Budget, reading
from comity.data.sources.synthetic import Synthetic
from comity.data.sources.table import read_table, table_of
from comity.data.sources.watch import read_watch

GIVEN = "given"
"""Name of data passed from Python, in a configuration."""


def load(
    name: str, data_dir: str | Path | None = None, limit: int | str | None = None, **options: Any
) -> Dataset | Synthetic:
    """Load data set ``name``: embedded, synthetic, in ``data_dir`` (default ``$COMITY_DATA``), a path, or on the hub.

    ``limit`` is the maximum memory, such as ``"20GB"``; the default is three quarters of the machine's memory. ``comity
    run --data NAME --help`` lists the options.
    """
    chosen = Component.parse("data", {"name": name, **options})
    info = DATASETS.get(chosen.name, UNKNOWN)
    if info.reader:
        made: Dataset | Synthetic = chosen.build()
        return made
    budget = Budget(limit)
    if chosen.name in NATURAL:
        natural = NATURAL[chosen.name]
        return read_natural(natural, natural.found(data_dir), budget, NaturalOptions(**chosen.options))
    files = DataFiles(**chosen.options)
    with reading(f"data {name}"):
        path = whereabouts(chosen.name, data_dir)
        if path is None:
            found = read_hub(chosen.name, info.hub or name.removeprefix(HUB), budget, files.size or info.size)
        else:
            found = _read(bare_name(path) if info is UNKNOWN else chosen.name, path, budget, files, info.size)
    return found if files.centred else replace(found, centred=False)


def _read(name: str, path: Path, budget: Budget, files: DataFiles, usual: int | None) -> Dataset:
    """The data set in a file or folder. Each reader except that of tables returns None for another format."""
    size = files.size
    if is_table(path):
        if size is not None:
            raise ComityError(f"data.size must be left out, got {size}: {path} is no folder of images")
        return read_table(name, path, budget, files)
    for option in ("target", "client", "text", "schema", "sheet"):
        if (given := getattr(files, option)) is not None:
            raise ComityError(f"data.{option} must be left out, got {given}: {path} is no table ({', '.join(TABLES)})")
    for reader in (read_watch, read_npz, read_pfllib, read_idx, read_cifar):
        found = reader(name, path, budget)
        if found is not None:
            if size is not None and found.shape[-2:] != (size, size):
                held = "×".join(map(str, found.shape))
                raise ComityError(f"data.size is {size}, but {path} holds {held}; only folders of images are resized")
            return found
    found = read_folder(name, path, budget, size or usual)
    if found is not None:
        return found
    raise ComityError(
        f"{path}: no data set in it; looked for IDX files (train-images-idx3-ubyte), CIFAR batches, PFLlib's "
        f"config.json with train/0.npz, images in class folders; a file may be .npz or a table "
        f"({', '.join(TABLES[:5])})"
    )


def dataset_of(data: Any, options: Mapping[str, Any]) -> Dataset | Federation:
    """Convert ``(x, y)``, ``(x, y, client)``, a data frame or a mapping of columns to a data set; pass others through.

    ``options`` are those of a table: target, client, missing, schema.
    """
    if isinstance(data, Dataset | Federation):
        return data
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        x, y, *client = data
        return Dataset(GIVEN, x, y, columns={"client": np.asarray(client[0])} if client else {})
    names = data.keys() if isinstance(data, Mapping) else getattr(data, "columns", None)
    if names is None:
        raise ComityError(
            "data must be a name, (x, y), (x, y, client), a data frame, a Dataset or a Federation, got "
            + one_line(repr(data), 80)
        )
    return table_of(GIVEN, {str(name): list(data[name]) for name in names}, DataFiles(**options), Budget())
