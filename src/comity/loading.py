"""A run or a study back from its folder, for a notebook: ``comity.load("runs/x")``.

Reads files and nothing else, so that tables and reports need no torch; vectors import it when they are asked for.
"""

import csv
import importlib
import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comity._errors import ComityError
from comity.config import Config, read_yaml

if TYPE_CHECKING:
    from torch import Tensor

    from comity.tables import Table

Rows = list[dict[str, Any]]


class LoadedRun:
    """One run. What is not there yet, because the run goes on, is empty."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.options: dict[str, Any] = read_yaml(self.path / "config.yaml")
        """The configuration in plain values, as ``config.yaml`` has it."""

    def __repr__(self) -> str:
        return f"LoadedRun({self.title}, seed {self.options['seed']}, {self.path})"

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @property
    def title(self) -> str:
        default = f"{self.options['method']['name']} + {self.options['rule']['name']}"
        return str(self.result.get("title", default))

    @cached_property
    def config(self) -> Config:
        return Config.of(self.options)

    @cached_property
    def result(self) -> dict[str, Any]:
        found = read_json(self.path / "result.json")
        return found if isinstance(found, dict) else {}

    @cached_property
    def rounds(self) -> Any:
        """One row a round: a pandas data frame where pandas is installed (``seconds.train``), else a list of dicts."""
        return _frame(_json_lines(self.path / "rounds.jsonl"))

    @cached_property
    def clients(self) -> Any:
        """One row for each client and evaluation, as ``rounds``."""
        return _frame(_csv(self.path / "clients.csv"))

    @cached_property
    def weights(self) -> Rows:
        """The rule's coefficients round by round: ``round``, ``group``, ``ids``, ``coefficients`` by layer."""
        return _json_lines(self.path / "weights.jsonl")

    @cached_property
    def state(self) -> "dict[str, Tensor]":
        """Everything in the checkpoint by name: ``server/theta``, ``client/3/personal``, ..."""
        return _tensors(self.path / "checkpoint" / "state.safetensors", "this run has no checkpoint yet")

    @property
    def theta(self) -> "Tensor":
        """The shared vector: parameters first, then buffers."""
        return self.state["server/theta"]

    def model(self, cid: int) -> "dict[str, Tensor]":
        """A client's own model under the network's own names: ``net.load_state_dict(run.model(3))``."""
        file = self.path / "models" / f"client_{cid:03d}.safetensors"
        return _tensors(file, f"client {cid} has no model here; train with --save-models")


class LoadedStudy:
    """Several runs: those that a study lists, or all that lie in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"LoadedStudy({len(self.runs)} runs, {self.path})"

    @cached_property
    def cells(self) -> Rows:
        """What the study planned, in its order: ``folder``, ``title``, and ``error`` where a cell failed."""
        found = read_json(self.path / "cells.json")
        return found if isinstance(found, list) else []

    @cached_property
    def runs(self) -> list[LoadedRun]:
        """Those that have begun, in the study's order."""
        inside = self.path / "runs" if (self.path / "runs").is_dir() else self.path
        planned = [self.path / cell["folder"] for cell in self.cells]
        folders = planned or [*sorted(inside.glob(".local/*")), *sorted(inside.glob("*"))]
        return [LoadedRun(folder) for folder in folders if (folder / "config.yaml").exists()]

    @property
    def failed(self) -> dict[str, str]:
        """The error of each cell that failed, by title."""
        return {cell["title"]: cell["error"] for cell in self.cells if cell.get("error")}

    @cached_property
    def tuning(self) -> Rows:
        """Each search: what was tried, how it did in validation and what was chosen."""
        found = read_json(self.path / "tuning.json")
        return found if isinstance(found, list) else []

    def table(self) -> "Table":
        from comity.tables import Table

        return Table.of(self.runs, planned=len(self.cells))


def load(path: str | Path) -> LoadedRun | LoadedStudy:
    """The run or the study in a folder."""
    path = Path(path)
    if (path / "config.yaml").exists():
        return LoadedRun(path)
    study = LoadedStudy(path)
    if not study.runs and not study.cells:
        raise ComityError(f"{path} holds neither a run (config.yaml) nor a study (runs/)")
    return study


def read_json(file: Path) -> Any:
    """What a JSON file holds, ``None`` if it is not there."""
    if not file.exists():
        return None
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ComityError(f"{file} is not JSON: {error}") from error


def _json_lines(file: Path) -> Rows:
    """The whole lines; the last one may be cut short by a kill, or be on its way."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _csv(file: Path) -> Rows:
    if not file.exists():
        return []
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(line for line in lines if line.endswith("\n")))
    return [{key: _number(value) for key, value in row.items()} for row in rows]


def _number(text: str) -> int | float | None:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)


def _frame(rows: Rows) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return rows
    return pandas.json_normalize(rows)


def _tensors(file: Path, missing: str) -> "dict[str, Tensor]":
    from safetensors.torch import load_file

    if not file.exists():
        raise ComityError(f"{file}: {missing}")
    return load_file(file)
