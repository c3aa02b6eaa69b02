"""What a run and a study leave behind: the names of files and metrics, and the records in them.

Everything that is written goes through ``to_json`` and everything that is read through ``from_json``, which checks each
field against its declared type. A change that old folders do not meet raises ``SCHEMA``.
"""

import json
import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
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
TRIALS = ".tuning"
"""Runs of values that a search tried and did not choose."""
TABLE = "table"
"""``table.md``, ``table.tex`` and ``table.csv``."""
LOG = "log.txt"
LOCK = ".lock"

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
CALIBRATION = "ECE"
"""How far the confidence of answers on own tests is from their accuracy: the expected calibration error."""
UNGUARDED = "unguarded"
"""Accuracy of the federated model without its guard on the client's own tests."""
OWN_WEIGHT = "own-weight"
"""What the client's own model counts for under the guard."""
BOUND = "bound"
"""The guard's promise: the error is above that of the client's own model by at most so much."""
METRICS = (OWN, LOSS, VALIDATION, VALIDATION_LOSS, SOME, ALL, COMMON, CALIBRATION, UNGUARDED, OWN_WEIGHT, BOUND)

CLIENT, TRAINING_SAMPLES, TEST_SAMPLES = "client", "n_train", "n_test"
ONLY_LOCAL, ONLY_JOINED = "only-local", "only-joined"
"""Own tests that only Local, and only the client's model in this run, gets right."""
CLIENT_COLUMNS = (CLIENT, TRAINING_SAMPLES, TEST_SAMPLES, ONLY_LOCAL, ONLY_JOINED, *METRICS)
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
    data: str = ""
    """The fingerprint of the samples and labels; empty in folders of earlier versions."""


@dataclass(frozen=True, kw_only=True)
class PartitionTable:
    """Who holds how many samples of which class."""

    name: str
    partition: str
    classes: int
    counts: list[list[int]]
    client_names: list[str] = field(default_factory=list)
    """Of each client, and of each class; empty in runs of an earlier comity."""
    class_names: list[str] = field(default_factory=list)


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
    warnings: list[str] = field(default_factory=list)
    """What deserves a look though nothing was left out: nodes without a seat, seats that changed, sizes out of line."""
    train_loss: float = math.nan
    bytes: Traffic = field(default_factory=Traffic)
    seconds: Seconds = field(default_factory=Seconds)
    metrics: Metrics = field(default_factory=dict)
    """Empty where this round was not evaluated."""
    general_error: float = 0.0
    """At most so large is the standard error of each client's S-acc and G-acc; 0 where every test was tried."""
    conflict: Conflict | None = None
    rule: RuleNote | None = None
    method: dict[str, Any] = field(default_factory=dict)
    """What the method notes of its own."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    round: int
    metrics: Metrics
    general_error: float = 0.0
    """As in the round's record."""


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
    beyond_chance: list[int] = field(default_factory=list)
    """Harmed clients whose loss is more than the luck of their test samples."""
    only_local: dict[int, int] = field(default_factory=dict)
    """By client: test samples that Local alone got right; empty where that was not counted."""
    only_joined: dict[int, int] = field(default_factory=dict)
    """By client: test samples that the client's model in this run alone got right."""
    local_on: Literal["all", "train"] = "all"
    """Whether Local learnt from all samples of a client, or not from its validation samples."""


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
    diverged: list[int] = field(default_factory=list)
    """Clients that ended with a loss that is not finite, or whose update in the last round was refused for that."""
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
    return json.dumps(plain(record), indent=indent, allow_nan=False)


def plain(item: Any) -> Any:
    """A record in dictionaries, lists, texts and numbers, as JSON has them."""
    if isinstance(item, float):
        return item if math.isfinite(item) else None
    if item is None or isinstance(item, (str, int)):
        return item
    if isinstance(item, (list, tuple)):
        numbers = set(map(type, item)) == {float} and all(map(math.isfinite, item))
        return item if numbers else [plain(inner) for inner in item]
    if isinstance(item, Mapping):
        return {str(key): plain(inner) for key, inner in item.items()}
    return {f.name: plain(getattr(item, f.name)) for f in fields(item)} if is_dataclass(item) else item


def from_json(record: type[T], value: Any, where: str) -> T:
    """``value``, as ``json.loads`` gives it, as this record; ``where`` names the file in the error."""
    try:
        found: T = _reader(record)(value)  # type: ignore[arg-type]  # a class is hashable
    except _Unexpected as error:
        raise ComityError(f"{where}{''.join(reversed(error.path))} {error.words}") from None
    return found


# Reading checks hundreds of thousands of numbers, so the reader of each type is made once, and it names the place of a
# value only when that value is wrong.

_Reader = Callable[[Any], Any]


class _Unexpected(Exception):
    """A value that does not fit its declared type; ``path`` grows from the inside out."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.path: list[str] = []


@cache
def _reader(to: Any) -> _Reader:
    origin, arguments = get_origin(to), get_args(to)
    if is_dataclass(to):
        return _record_reader(to)
    if to is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _union_reader(to)
    if origin is Literal:
        return lambda value: value if value in arguments else _refuse(to, value)
    if origin is dict:
        return _mapping_reader(to)
    if origin is list:
        return _list_reader(to)
    return _number if to is float else _exactly(to)


_LARGEST = int(sys.float_info.max)


def _refuse(to: Any, value: Any) -> Any:
    raise _Unexpected(f"should be {getattr(to, '__name__', to)}, not {str(value)[:40]!r}")


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if value is None:
        return math.nan
    if type(value) is not int or abs(value) > _LARGEST:
        return float(_refuse(float, value))
    return float(value)


def _exactly(to: type) -> _Reader:
    return lambda value: value if type(value) is to else _refuse(to, value)


def _union_reader(to: Any) -> _Reader:
    choices = [_reader(choice) for choice in get_args(to) if choice is not type(None)]
    optional = type(None) in get_args(to)

    def read(value: Any) -> Any:
        if value is None and optional:
            return None
        for choice in choices[:-1]:
            try:
                return choice(value)
            except _Unexpected:
                continue
        return choices[-1](value)

    return read


def _list_reader(to: Any) -> _Reader:
    (inner,) = get_args(to)
    read_inner = _reader(inner)
    choices = get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)
    as_they_are = {choice for choice in choices if choice in (int, float, str)}

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            return _refuse(list, value)
        return value if set(map(type, value)) <= as_they_are else [read_inner(item) for item in value]

    return read


def _mapping_reader(to: Any) -> _Reader:
    key_type, inner = get_args(to)
    read_inner = _reader(inner)

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            return _refuse(dict, value)
        if inner is float and key_type is str and set(map(type, value.values())) <= {float}:
            return value
        found = {}
        for key, item in value.items():
            try:
                found[int(key) if key_type is int else key] = read_inner(item)
            except _Unexpected as error:
                error.path.append(f".{key}")
                raise
            except ValueError:
                raise _Unexpected(f"has the name {key[:40]!r}, which should be a number") from None
        return found

    return read


def _record_reader(record: Any) -> _Reader:
    hints = get_type_hints(record)
    readers = {f.name: _reader(hints[f.name]) for f in fields(record)}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _Unexpected(f"should hold named values, not {str(value)[:40]!r}")
        found = {}
        for name, inner in value.items():
            if name not in readers:
                raise _Unexpected(f"has {name[:40]!r}, which is not known here")
            try:
                found[name] = readers[name](inner)
            except _Unexpected as error:
                error.path.append(f".{name}")
                raise
        try:
            return record(**found)
        except TypeError as missing:
            raise _Unexpected(f"is incomplete: {str(missing).rpartition('missing ')[2]}") from None

    return read
