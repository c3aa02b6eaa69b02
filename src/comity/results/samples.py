"""Score of each test sample in one run, by the metric that decides. Needs no torch."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from comity._errors import ComityError
from comity._write import atomically
from comity.results.records import require
from comity.results.transfer import ClientScores

LARGEST_FILE = 10**9
_TYPES = {"client": np.int32, "id": np.int64, "label": np.int32, "score": np.float32, "mixed": np.float32}
_TYPES |= {"probability": np.float32}


class Samples(Mapping[int, ClientScores]):
    """Scores of all clients, by client."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        lengths = {len(column) for column in columns.values()}
        require(columns.keys() >= {"client", "id", "label", "score"}, "samples lack a column")
        require(columns.keys() <= _TYPES.keys(), "samples have an unknown column")
        require(len(lengths) == 1 and all(column.ndim == 1 for column in columns.values()), "samples differ in length")
        for name, column in columns.items():
            require(column.dtype == _TYPES[name], f"samples: {name} has another type")
            require(column.dtype.kind != "f" or bool(np.isfinite(column).all()), f"samples: {name} is not finite")
        self._columns = columns
        order = np.argsort(columns["client"], kind="stable")
        clients, starts = np.unique(columns["client"][order], return_index=True)
        self._places = dict(zip(clients.tolist(), np.split(order, starts[1:]), strict=True))

    def __getitem__(self, client: int) -> ClientScores:
        place = self._places[client]
        return ClientScores(**{name: column[place] for name, column in self._columns.items() if name != "client"})

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def write_samples(file: Path, scores: Mapping[int, ClientScores]) -> None:
    """Write the scores of all clients; a column that a client lacks is left out."""
    clients = sorted(scores)
    columns: dict[str, list[Any]] = {"client": [np.full(len(scores[client].id), client) for client in clients]}
    columns |= {name: [getattr(scores[client], name) for client in clients] for name in _TYPES if name != "client"}
    known = {name: parts for name, parts in columns.items() if not any(part is None for part in parts)}
    with atomically(file) as part:
        save_file({name: np.concatenate(parts).astype(_TYPES[name]) for name, parts in known.items()}, part)


def read_samples(file: Path) -> Samples | None:
    """The scores in a run folder; ``None`` if there are none, for example if clients run on other machines."""
    if not file.is_file():
        return None
    if file.stat().st_size > LARGEST_FILE:
        raise ComityError(f"{file} is larger than {LARGEST_FILE // 10**9} GB")
    try:
        return Samples(load_file(file))
    except (SafetensorError, ValueError) as error:
        raise ComityError(f"{file} is damaged: {error}") from error
