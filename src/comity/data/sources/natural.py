"""Natural federations: one table or npz file each, as ``comity._federations`` describes them."""

import hashlib
from bisect import bisect_left
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from comity._datasets import DataFiles
from comity._errors import ComityError
from comity._natural import NaturalFederation, NaturalOptions
from comity._words import counted
from comity.data._dataset import Dataset, Ints
from comity.data.schema import is_blank
from comity.data.sources.columns import columns_of
from comity.data.sources.npz import open_archive, plain_member, read_npz
from comity.data.sources.reading import Budget, array_bytes, reading
from comity.data.sources.table import table_of

CLIENT, TARGET, TEXT = "client", "target", "text"
"""Columns of the tables."""


def read_natural(natural: NaturalFederation, path: Path, budget: Budget, options: NaturalOptions) -> Dataset:
    """A natural federation, or the part of it that the options name."""
    with reading(path):
        known = hashlib.sha256(path.read_bytes()).hexdigest() == natural.sha256
        read = _read_arrays if path.suffix == ".npz" else _read_table
        found = read(natural, path, budget, options)
    notes = [
        f"{natural.about} ({counted(natural.clients, 'client')}, {natural.samples:,} samples)",
        *([f"task: {natural.task}"] if natural.thresholds else []),
        f"tests: {natural.split}",
        *([f"mind: {natural.traps}"] if natural.traps else []),
        f"licence: {natural.licence}; cite {natural.cite}",
    ]
    other = f"{path} is another file than the one that comity knows by its SHA-256: its numbers are not comparable."
    return replace(
        found,
        notes=(*found.notes, *(f"{natural.name}: {note}" for note in notes)),
        warnings=found.warnings if known else (*found.warnings, other),
        in_time=natural.in_time,
    )


def chosen(owners: NDArray[Any], options: NaturalOptions) -> Ints:
    """The samples that the options select, client by client, in their original order."""
    random = np.random.default_rng(0)
    names = np.unique(owners)
    if options.max_clients is not None and len(names) > options.max_clients:
        names = names[np.linspace(0, len(names) - 1, options.max_clients).round().astype(int)]
    places = [np.flatnonzero(owners == name) for name in names]
    return np.concatenate([np.sort(random.permutation(each)[: options.max_samples]) for each in places])


def _read_table(natural: NaturalFederation, path: Path, budget: Budget, options: NaturalOptions) -> Dataset:
    columns = columns_of(path, budget)
    if options.max_clients is not None or options.max_samples is not None:
        if CLIENT not in columns:
            raise ComityError(f"{path}: no column {CLIENT}")
        columns = columns.select(chosen(np.array(columns[CLIENT]), options).tolist())
    if natural.thresholds and TARGET in columns:
        columns[TARGET] = [_band(natural, cell) for cell in columns[TARGET]]
    text = TEXT if natural.kind == "text" else None
    return table_of(natural.name, columns, DataFiles(target=TARGET, client=CLIENT, text=text), budget)


def _band(natural: NaturalFederation, cell: Any) -> Any:
    return cell if is_blank(cell) else natural.bands[bisect_left(natural.thresholds, float(cell))]


def _read_arrays(natural: NaturalFederation, path: Path, budget: Budget, options: NaturalOptions) -> Dataset:
    """``x_train``, ``y_train``, ``client_train``, and names of which the latter two are indices."""
    found = read_npz(natural.name, path, budget)
    assert found is not None
    names = {}
    with open_archive(path) as archive:
        held = {info.filename for info in archive.infolist()}
        for key in ("class_names", "client_names", "client_train"):
            if f"{key}.npy" not in held:
                raise ComityError(f"{path}: no {key}")
        for key in ("class_names", "client_names"):
            member = plain_member(archive, archive.getinfo(f"{key}.npy"), path)
            budget.take(array_bytes(member.shape, member.dtype), f"{path}: {key}", member.info.compress_size)
            names[key] = npy.read_array(archive.open(member.info), allow_pickle=False)
    owners, classes = names["client_names"][found.columns[CLIENT]], names["class_names"]
    index = chosen(owners, options)
    x = found.x[index]
    if natural.kind == "counts":
        x = np.log1p(x, dtype=np.float32)
    elif natural.kind == "characters":
        x = (x[:, :, None] == np.arange(len(classes))).astype(np.uint8).reshape(len(x), -1)
    return Dataset(natural.name, x, found.y[index], len(classes), {CLIENT: owners[index]}, classes.tolist())
