"""A run folder as the report sees it: plain numbers, of a finished run or of one still under way."""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from comity._errors import ComityError
from comity.config import COMPONENTS
from comity.tables import flatten

Floats = npt.NDArray[np.float64]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # six times as fast where libyaml is there
_ROUND = re.compile(r'\{"round": (\d+)[,}]')


@dataclass(frozen=True)
class Partition:
    """Who holds which samples: a row a client, a column a class."""

    name: str
    how: str
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Weights:
    """A rule's coefficients: for each layer (or the whole model) clients × rounds; NaN where a client was absent."""

    rounds: list[int]
    layers: dict[str, Floats]


@dataclass(frozen=True)
class Run:
    """One run folder. ``series`` are over ``rounds``, NaN where a round did not measure; ``clients`` is its newest
    evaluation, a column for each metric."""

    path: Path
    config: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    rounds: list[int] = field(default_factory=list)
    series: dict[str, Floats] = field(default_factory=dict)
    conflict: dict[str, Floats] = field(default_factory=dict)
    """Conflict rate over ``rounds`` for each layer."""
    clients: dict[str, list[float]] = field(default_factory=dict)
    partition: Partition | None = None

    @property
    def finished(self) -> bool:
        return self.result is not None

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def round(self) -> int:
        return self.rounds[-1] if self.rounds else 0

    @property
    def planned(self) -> int:
        return int(self.config.get("rounds", self.round))

    @cached_property
    def options(self) -> dict[str, Any]:
        """Every option that may change a number, flat: ``rule`` is a name, ``rule.c`` its option."""
        return {key: _plain(value) for key, value in flatten(self.config).items()}

    @property
    def own_rule(self) -> bool:
        """Whether the method brings its rule along, so that the configured one says nothing."""
        if self.config["method"]["name"] == "Local":
            return True
        return self.result is not None and self.result.get("title") == self.config["method"]["name"]

    def metric(self, name: str, how: str = "mean") -> float:
        """A metric of the newest evaluation that has it; NaN where none has."""
        values = self.series.get(f"eval/{name}/{how}")
        if values is None:
            return float("nan")
        known = values[~np.isnan(values)]
        return float(known[-1]) if len(known) else float("nan")

    @property
    def transfer(self) -> Mapping[str, Any] | None:
        return self.result.get("transfer") if self.result is not None else None

    def mean(self, name: str) -> float:
        """A series' mean over rounds, NaN where there is none."""
        values = self.series.get(name)
        known = values[~np.isnan(values)] if values is not None else np.empty(0)
        return float(known.mean()) if len(known) else float("nan")

    def weights(self, most: int) -> Weights | None:
        """The rule's coefficients in at most ``most`` of its rounds; only these lines of a large file are parsed."""
        chosen = set(thin(self.rounds, most))
        rounds = sorted(chosen)
        place = {number: i for i, number in enumerate(rounds)}
        clients = int(self.config.get("clients", 0))
        layers: dict[str, Floats] = {}
        for record in _records(self.path / "weights.jsonl", lambda number: number in chosen):
            rows = np.array(record["coefficients"], dtype=np.float64, ndmin=2)
            # rows that a rule remembers from earlier rounds have names of their own
            places = [i for i, client in enumerate(record["ids"]) if isinstance(client, int) and 0 <= client < clients]
            members = [record["ids"][i] for i in places]
            for name, row in zip(self._names(record.get("group", ""), len(rows)), rows, strict=False):
                if name not in layers:
                    layers[name] = np.full((clients, len(rounds)), np.nan)
                layers[name][members, place[record["round"]]] = row[places]
        return Weights(rounds, layers) if layers else None

    @cached_property
    def weight_rows(self) -> int:
        """For how many layers the rule has coefficients of their own."""
        record = next(_records(self.path / "weights.jsonl"), None)
        return 0 if record is None else int(np.array(record["coefficients"], ndmin=2).shape[0])

    def _names(self, group: str, rows: int) -> list[str]:
        """What the rows of a coefficient matrix stand for: the group's layers, or the whole model."""
        prefix = f"{group}/" if group else ""
        if rows == 1:
            return [f"{prefix}whole model"]
        names = [name for name in self.conflict if name.startswith(prefix)]
        return names if len(names) == rows else []

    def cosines(self) -> dict[int, Floats]:
        """Cosines of the clients' updates, clients × clients by round; NaN where one of the two was absent."""
        clients = int(self.config.get("clients", 0))
        known: dict[int, Floats] = {}
        for record in _records(self.path / "cosines.jsonl"):
            ids = [client for client in record["ids"] if isinstance(client, int) and 0 <= client < clients]
            if len(ids) != len(record["ids"]):
                continue  # rows that a rule remembers from earlier rounds have names of their own
            matrix = known.setdefault(record["round"], np.full((clients, clients), np.nan))
            matrix[np.ix_(ids, ids)] = np.array(record["cosines"], dtype=np.float64)
        return known


def thin(rounds: list[int], most: int) -> list[int]:
    """At most ``most`` of the rounds, evenly, the first and the last among them."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int))]


@dataclass(frozen=True)
class Plan:
    """What a study set out to do, from ``cells.json`` and ``tuning.json`` in its folder."""

    folders: list[Path] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    """The error of each cell that failed, by title."""
    tuning: list[Mapping[str, Any]] = field(default_factory=list)


def plan(paths: list[Path]) -> Plan:
    """The plans of the studies among ``paths``."""
    whole = Plan()
    for path in paths:
        for cell in _json(path / "cells.json") or ():
            whole.folders.append(path / cell["folder"])
            if cell.get("error"):
                whole.failed[str(cell["title"])] = str(cell["error"])
        whole.tuning.extend(_json(path / "tuning.json") or ())
    return whole


def find(paths: list[Path]) -> list[Path]:
    """The run folders at or below ``paths``, each once. What comity keeps in hidden folders is none of them.

    Of a study they are those that belong to it as it is now, in its own order.
    """
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise ComityError(f"{path} does not exist; give run or study folders")
        if not path.is_dir():
            raise ComityError(f"{path} is a file; give run or study folders")
        planned = plan([path]).folders
        below = [folder for folder in planned if (folder / "config.yaml").is_file()] if planned else list(_below(path))
        if not below:
            raise ComityError(f"{path} holds no run" + (" yet" if planned else ": no config.yaml in it or below it"))
        for folder in below:
            found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _below(path: Path) -> Iterator[Path]:
    if (path / "config.yaml").is_file():
        yield path
        return
    for child in sorted(path.iterdir(), key=_natural):
        if child.is_dir() and not child.name.startswith("."):
            yield from _below(child)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Seed 2 before seed 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def configuration(path: Path) -> dict[str, Any]:
    """The configuration of a run folder, with its method and rule in the long form."""
    file = path / "config.yaml"
    try:
        entries = yaml.load(file.read_text(encoding="utf-8"), _LOADER)
    except OSError as error:
        raise ComityError(f"{file} could not be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ComityError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(entries, dict) or not entries.get("method"):
        raise ComityError(f"{file} is not the configuration of a run: it names no method")
    for key in COMPONENTS:
        if isinstance(entries.get(key), str):
            entries[key] = {"name": entries[key]}
    entries.setdefault("rule", {"name": "Mean"})
    return entries


def read(path: Path, config: Mapping[str, Any] | None = None) -> Run:
    """A run folder, whatever there is of it so far."""
    config = configuration(path) if config is None else config
    try:
        result = _json(path / "result.json")
        rounds, series, conflict = _rounds(path / "rounds.jsonl")
        clients = _numbers(result["clients"]) if result is not None else _newest(path / "clients.csv")
        return Run(path, config, result, rounds, series, conflict, clients, _partition(path / "partition.json"))
    except OSError as error:
        raise ComityError(f"{error.filename or path} could not be read: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{type(error).__name__} {error}".replace("\n", " ")
        raise ComityError(f"{path} is not a run folder that this comity can read ({told})") from error


def _json(file: Path) -> Any:
    if not file.exists():
        return None
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ComityError(f"{file} is not JSON: {error}") from error


def _records(file: Path, wanted: Callable[[int], bool] | None = None) -> Iterator[dict[str, Any]]:
    """The whole lines of a JSON-lines file; a last one that is just being written is none yet."""
    if not file.exists():
        return
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith("\n"):
                return
            head = _ROUND.match(line) if wanted is not None else None
            if head is not None and wanted is not None and not wanted(int(head[1])):
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ComityError(f"{file}, line {number} is not JSON: {error}") from error
            if not isinstance(record, dict) or not isinstance(record.get("round"), int):
                raise ComityError(f"{file}, line {number} is no record of a round")
            if wanted is None or wanted(record["round"]):
                yield record


def _rounds(file: Path) -> tuple[list[int], dict[str, Floats], dict[str, Floats]]:
    rounds: list[int] = []
    series: dict[str, dict[int, float]] = {}
    conflict: dict[str, dict[int, float]] = {}
    for i, record in enumerate(_records(file)):
        rounds.append(record["round"])
        values = {key: value for key, value in record.items() if key.startswith("eval/") or key == "train/loss"}
        values |= {f"seconds/{part}": value for part, value in record.get("seconds", {}).items()}
        values |= {f"bytes/{way}": value for way, value in record.get("bytes", {}).items()}
        values["failed"] = len(record.get("failed", ()))
        if "conflict" in record:
            values["conflict"] = record["conflict"]["rate"]
            for layer, rate in record["conflict"]["layers"].items():
                conflict.setdefault(layer, {})[i] = rate
        for key, value in values.items():
            if value is not None:
                series.setdefault(key, {})[i] = float(value)
    return rounds, _columns(series, len(rounds)), _columns(conflict, len(rounds))


def _columns(known: dict[str, dict[int, float]], length: int) -> dict[str, Floats]:
    columns = {}
    for key, values in known.items():
        columns[key] = np.full(length, np.nan)
        columns[key][list(values)] = [np.nan if value is None else value for value in values.values()]
    return columns


def _numbers(columns: Mapping[str, list[float | None]]) -> dict[str, list[float]]:
    """What was not a number is null in JSON."""
    return {name: [float("nan") if value is None else value for value in values] for name, values in columns.items()}


def _newest(file: Path) -> dict[str, list[float]]:
    """The last whole evaluation in ``clients.csv``, as ``result.json`` would have it."""
    if not file.exists():
        return {}
    with file.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if None not in row and None not in row.values()]
    evaluations: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        evaluations.setdefault(row["round"], []).append(row)
    # the last one may be half written: then the one before it counts
    newest = next((e for e in reversed(evaluations.values()) if len(e) == max(map(len, evaluations.values()))), [])
    names = [name for name in (newest[0] if newest else ()) if name != "round"]
    columns = {name: [row[name] for row in newest] for name in names}
    return {
        name: [int(value) if name == "client" else float(value) for value in values]
        for name, values in columns.items()
        if all(values)
    }


def _partition(file: Path) -> Partition | None:
    about = _json(file)
    if about is None:
        return None
    counts = np.array(about["counts"], dtype=np.int64)
    if counts.ndim != 2:
        raise ValueError("counts in partition.json are no table of clients × classes")
    return Partition(str(about.get("name", "")), str(about.get("partition", "")), counts)


def _plain(value: Any) -> Any:
    """Something that can be compared and hashed."""
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), _plain(inner)) for key, inner in value.items()))
    return tuple(_plain(inner) for inner in value) if isinstance(value, (list, tuple)) else value
