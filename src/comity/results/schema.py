"""What a run and a study leave behind: the names of files and metrics, and the records in them.

Everything that is written goes through ``to_json`` and everything that is read through ``from_json``, which checks each
field against its declared type. A change that old folders do not meet raises ``SCHEMA``.
"""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from comity._errors import ComityError

T = TypeVar("T")

SCHEMA = 2

# Files of a run folder.
INFO = "run.json"
CONFIG = "config.yaml"
PARTITION = "partition.json"
ROUNDS = "rounds.jsonl"
WEIGHTS = "weights.jsonl"
COSINES = "cosines.jsonl"
CLIENTS = "clients.csv"
RESULT = "result.json"
CHECKPOINT = "checkpoint/state.safetensors"
MODELS = "models"
LOCAL_CACHE = ".local"
"""Beside run folders: the runs of Local that they are compared with."""

# Files of a study folder.
STUDY = "study.yaml"
CELLS = "cells.json"
TUNING = "tuning.json"
RUNS = "runs"

# Metrics of a client's model.
OWN = "L-acc"
"""Accuracy on the client's own tests."""
SOME = "S-acc"
"""Accuracy on its own tests and those of some others."""
ALL = "G-acc"
"""Accuracy on everybody's tests."""
COMMON = "global-acc"
"""Accuracy of the common model on the client's own tests."""
LOSS = "loss"
VALIDATION = "val-acc"
VALIDATION_LOSS = "val-loss"
METRICS = (OWN, LOSS, VALIDATION, VALIDATION_LOSS, SOME, ALL, COMMON)

CLIENT_COLUMNS = ("client", "n_train", "n_test", *METRICS)
Columns = dict[str, list[float]]
"""One evaluation: a list over clients for each of CLIENT_COLUMNS that was measured."""


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a run is, written before its first round."""

    schema: int
    comity: str
    """The version that wrote the folder."""
    title: str
    key: str
    """The same for two configurations that give the same numbers."""
    own_rule: bool
    """Whether no rule could be chosen: Local has none, some methods bring their own."""
    moment: Literal["received", "fitted"]
    """When models are judged: with the newest shared part, or as fitting left them."""


@dataclass(frozen=True, kw_only=True)
class PartitionTable:
    """Who holds how many samples of which class."""

    name: str
    partition: str
    classes: int
    counts: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One metric over all clients."""

    mean: float
    std: float
    samples: float
    """The mean over samples rather than over clients."""
    worst10: float
    """The mean over the worst tenth of the clients."""


Metrics = dict[str, Summary]


@dataclass(kw_only=True)
class Traffic:
    """Bytes of tensors; evaluation is not counted."""

    down: float = 0
    up: float = 0


@dataclass(kw_only=True)
class Seconds:
    train: float = 0.0
    aggregate: float = 0.0
    evaluate: float = 0.0


@dataclass(kw_only=True)
class Conflict:
    """Share of pairs of clients whose updates point against each other."""

    rate: float = 0.0
    layers: dict[str, float] = field(default_factory=dict)


@dataclass(kw_only=True)
class RuleNote:
    """What the rule's solver says of its own step."""

    certificate: str
    residual: float = 0.0
    stretch: dict[str, float] = field(default_factory=dict)
    """By layer: the length of the step over that of the plain mean."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The rule's coefficients in one round: a row for the whole model, or one for each layer."""

    round: int
    group: str
    ids: list[int | str]
    coefficients: list[list[float]]


@dataclass(frozen=True, kw_only=True)
class Cosines:
    """The cosine between every two clients' updates in one round."""

    round: int
    group: str
    ids: list[int | str]
    cosines: list[list[float]]


@dataclass(kw_only=True)
class RoundRecord:
    """One round."""

    round: int
    cohort: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    """Those that trained and never answered."""
    failed: dict[int, str] = field(default_factory=dict)
    """Those whose answers were left out, and why."""
    train_loss: float = math.nan
    bytes: Traffic = field(default_factory=Traffic)
    seconds: Seconds = field(default_factory=Seconds)
    metrics: Metrics = field(default_factory=dict)
    """Empty where this round was not evaluated."""
    conflict: Conflict | None = None
    rule: RuleNote | None = None
    method: dict[str, Any] = field(default_factory=dict)
    """What the method notes of its own."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    round: int
    metrics: Metrics


@dataclass(frozen=True, kw_only=True)
class Best(Evaluation):
    chosen_by: Literal["validation", "test"]
    """Methods must not be compared by a best round that test accuracy chose."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What joining changed for each client, against Local under the same conditions."""

    local: float
    """Local's mean accuracy."""
    relative_accuracy: float
    positive_transfer: float
    """Share of the clients that gain."""
    harmed: list[int]
    gain: dict[int, float]


@dataclass(frozen=True, kw_only=True)
class Result:
    """Last and best round, who gained and who was harmed, what it cost, and on what it ran."""

    last: Evaluation
    best: Best
    transfer: Transfer | None
    """``None`` without a Local to compare with."""
    clients: Columns
    """The last evaluation."""
    malicious: list[int]
    conflict_rate: float | None
    worst_residual: float | None
    bytes_per_round: Traffic
    seconds: Seconds
    failures: int
    written: str
    versions: dict[str, str]
    machine: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of a study, as ``cells.json`` has it."""

    folder: str
    title: str
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True, kw_only=True)
class Trial:
    value: Any
    validation: float | None


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """One search for an option's value, as ``tuning.json`` has it."""

    cell: str
    option: str
    chosen: Any
    chosen_by: str
    seeds: list[int]
    tried: list[Trial]


def to_json(record: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: what is not a finite number becomes null."""

    def plain(item: Any) -> Any:
        if is_dataclass(item) and not isinstance(item, type):
            return plain(asdict(item))
        if isinstance(item, Mapping):
            return {str(key): plain(inner) for key, inner in item.items()}
        if isinstance(item, (list, tuple)):
            return [plain(inner) for inner in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(record), indent=indent, allow_nan=False)


def from_json(record: type[T], value: Any, where: str) -> T:
    """``value``, as ``json.loads`` gives it, as this record; ``where`` names the file in the error."""
    found: T = _read(record, value, where)
    return found


def _read(to: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(to), get_args(to)
    if is_dataclass(to):
        return _read_record(to, value, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        for choice in arguments:
            if choice is not type(None):
                try:
                    return _read(choice, value, where)
                except ComityError as error:
                    refused = error
        raise refused
    if origin is Literal and value in arguments:
        return value
    if origin is dict and isinstance(value, Mapping):
        return {_read_key(arguments[0], k, where): _read(arguments[1], v, f"{where}.{k}") for k, v in value.items()}
    if origin is list and isinstance(value, list):
        return [_read(arguments[0], item, where) for item in value]
    if to is float and value is None:
        return math.nan
    if to is Any or (isinstance(value, to if isinstance(to, type) else ()) and not (to is int and value is True)):
        return value
    if to is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise ComityError(f"{where} should be {getattr(to, '__name__', to)}, not {str(value)[:40]!r}")


def _read_key(to: Any, key: str, where: str) -> Any:
    try:
        return int(key) if to is int else key
    except ValueError:
        raise ComityError(f"{where} has the name {key[:40]!r}, which should be a number") from None


def _read_record(record: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise ComityError(f"{where} should hold named values, not {str(value)[:40]!r}")
    hints, known = get_type_hints(record), {f.name for f in fields(record)}
    if unknown := value.keys() - known:
        raise ComityError(f"{where} has {str(min(unknown))[:40]!r}, which is not known here")
    try:
        return record(**{name: _read(hints[name], inner, f"{where}.{name}") for name, inner in value.items()})
    except TypeError as missing:
        raise ComityError(f"{where} is incomplete: {str(missing).rpartition('missing ')[2]}") from None
