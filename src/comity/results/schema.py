"""Files of run and study folders: their names, and the records in them.

A change that makes old folders unreadable raises ``SCHEMA``.
"""

# ruff: noqa: RUF012  # msgspec gives each record a list or a dictionary of its own

import math
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from comity.metrics import Metric, by_key
from comity.results.records import Cosine, Cost, Count, Fixed, Real, Record, Share, Size, require
from comity.results.transfer import Transfer

SCHEMA = 4

# Files of a run folder.
INFO = "run.json"
CONFIG = "config.yaml"
PARTITION = "partition.json"
COLUMNS = "schema.yaml"
"""The schema of the table that the run learnt from."""
ROUNDS = "rounds.jsonl"
WEIGHTS = "weights.jsonl"
COSINES = "cosines.jsonl"
CLIENTS = "clients.csv"
RESULT = "result.json"
SAMPLES = "samples.safetensors"
CHECKPOINT = "checkpoint/state.safetensors"
MODELS = "models"
TENSORS = "model.safetensors"
"""In the folder of each client's model."""
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
TOKEN = ".token"
FETCHED = ".fetched"

# Columns of clients.csv.
CLIENT, TRAINING_SAMPLES, TEST_SAMPLES, CLIENT_NAME = "client", "n_train", "n_test", "name"
CLIENT_COLUMNS = (CLIENT, TRAINING_SAMPLES, TEST_SAMPLES, *by_key())

FALL, FALLEN_TESTS = 0.2, 5
"""Training is not stable where a client's accuracy falls by more than this, and by so many tests or more."""

ZERO = 1e-9
"""Smaller differences of accuracies are float rounding: no test set is large enough to show them."""

Printable = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u200e-\u202e]*\Z")]
Dropped = Any | msgspec.UnsetType
"""A field of earlier versions: files may have it, and nothing reads or writes it."""
Columns = dict[str, list[Real]]
"""One evaluation: a list over clients for each of CLIENT_COLUMNS that was measured."""


class Version(Struct):
    schema: Any = None


class MetricInfo(Fixed, kw_only=True, frozen=True):
    """A metric of this run that is not in the table of metrics: an extension measured it."""

    key: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}\Z")]
    label: Printable
    meaning: Printable
    unit: Literal["%", "points", ""] = ""
    digits: Annotated[int, Meta(ge=0, le=10)] = 2
    better: Literal["higher", "lower", "neither"] = "higher"
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, metric: Metric) -> "MetricInfo":
        told = {name: getattr(metric, name) for name in cls.__struct_fields__}
        return cls(**{name: value for name, value in told.items() if value not in (-math.inf, math.inf)})

    @property
    def metric(self) -> Metric:
        """For tables and pages; its values are in files, and it computes none."""
        told = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return Metric(**told, compute=lambda _: None, optional=True)


class RunInfo(Fixed, kw_only=True, frozen=True, omit_defaults=True):
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
    id: str = ""
    """Drawn when the run began, and the same when it is resumed: no other run has it."""
    trainer: Annotated[str, Meta(max_length=100)] = ""
    """How local training was computed: ``autograd``, ``chain``, ``compiled AVX512``; last digits depend on it."""
    metrics: list[MetricInfo] = []
    """Metrics of extensions, which the table of metrics does not have."""

    def __post_init__(self) -> None:
        super().__post_init__()
        keys, taken = [metric.key for metric in self.metrics], {"round", CLIENT_NAME, *CLIENT_COLUMNS}
        require(len(set(keys) - taken) == len(keys), "metrics have the name of another column")


class PartitionTable(Fixed, kw_only=True, frozen=True):
    """Who holds how many samples of which class."""

    name: str
    partition: str
    classes: Count
    counts: list[list[Count]]
    client_names: list[str] = []
    """Of each client, and of each class; empty in runs of an earlier comity."""
    class_names: list[str] = []
    tests_drawn: bool = False
    """Whether each seed draws its own tests from a client's samples."""
    folds: Count = 0
    """Number of consecutive seeds that together test each sample once; 0 where there are no folds."""
    is_uneven: bool = False
    """Whether balanced accuracy decides by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = all(len(row) == self.classes for row in self.counts)
        require(whole, f"counts should have {self.classes} numbers for each client")
        named = (self.client_names, len(self.counts)), (self.class_names, self.classes)
        require(all(len(names) in (0, count) for names, count in named), "names are not one for each")


class Summary(Fixed, kw_only=True, frozen=True):
    """One metric over all clients."""

    mean: Real
    std: Size
    samples: Real
    """The mean over samples rather than over clients."""
    worst10: Real
    """The mean over the worst tenth of the clients."""


Metrics = dict[str, Summary]


class Traffic(Record, kw_only=True):
    """Bytes of tensors; evaluation is not counted."""

    down: Cost = 0
    up: Cost = 0


class Seconds(Record, kw_only=True):
    train: Cost = 0.0
    aggregate: Cost = 0.0
    evaluate: Cost = 0.0


class Conflict(Record, kw_only=True):
    """Share of pairs of clients whose updates point against each other."""

    rate: Share = 0.0
    layers: dict[str, Share] = {}
    error: Share = 0.0
    """Share of the pairs and layers that are expected to be judged wrongly, where sketches tell; else 0."""
    loss_change: Real = 0.0
    """Of all clients together under the plain mean, to first order (ConFREE, Equation 8)."""
    loss_change_by_others: Real = 0.0
    """The same without what a client's own update does for it (FedCALM, Equation 10); above 0 others harm."""


class Against(Record, kw_only=True):
    """Clients whose own update a step points against (a negative inner product): it undoes what they have learnt."""

    clients: Count = 0
    """Of so many."""
    mean: Count = 0
    rule: Count = 0
    """By the plain mean of the updates, and by the rule's step."""
    mean_ids: list[int] = []
    """Who they are, the first of them where they are many."""
    rule_ids: list[int] = []


class Verdict(Fixed, kw_only=True, frozen=True):
    """What clients say that a step would do to them."""

    change: Real
    """Of their mean loss."""
    harmed: Count
    """Clients whose loss it would raise, of those with enough samples to tell."""


class RuleNote(Record, kw_only=True):
    """What the rule's solver says of its own step."""

    certificate: str
    residual: Real = 0.0
    stretch: dict[str, Real] = {}
    """By layer: the length of the step over that of the plain mean."""
    choice: dict[str, Real] = {}
    """Of a rule that chooses among others: each with its weight. The heaviest made the step."""
    verdicts: dict[str, Verdict] = {}
    """In rounds in which clients were asked: what they said of each choice."""


class ByClient(Fixed, kw_only=True, frozen=True):
    """Numbers of one round with a column for each client."""

    round: Count
    group: str
    ids: list[int | str]

    def _check(self, rows: list[list[float]]) -> None:
        require(len(set(self.ids)) == len(self.ids), "has a client twice")
        require(all(len(row) == len(self.ids) for row in rows), "has not a number for each client")


class Weights(ByClient, kw_only=True, frozen=True):
    """The rule's coefficients in one round: a row for the whole model, or one for each layer."""

    coefficients: list[list[Real]]
    multipliers: list[list[Real]] | None = None
    """CALM's λ: what each client's constraint adds to its coefficient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check([*self.coefficients, *(self.multipliers or [])])


class Cosines(ByClient, kw_only=True, frozen=True):
    """The cosine between every two clients' updates in one round."""

    cosines: list[list[Cosine]]
    error: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """The standard error of those near 0, where sketches tell; else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.cosines)
        require(len(self.cosines) == len(self.ids), "has not a row for each client")


class RoundRecord(Record, kw_only=True):
    """One round."""

    round: Count
    cohort: list[int] = []
    lost: list[int] = []
    """Those that trained and never answered."""
    failed: dict[int, str] = {}
    """Those whose answers were left out, and why."""
    warnings: list[str] = []
    """What deserves a look though nothing was left out: nodes without a seat, seats that changed, sizes out of line."""
    train_loss: Real = math.nan
    bytes: Traffic = msgspec.field(default_factory=Traffic)
    seconds: Seconds = msgspec.field(default_factory=Seconds)
    metrics: Metrics = {}
    """Empty where this round was not evaluated."""
    fell: dict[int, Real] = {}
    """Clients whose accuracy fell by more than FALL since the evaluation before, and by how much."""
    general_error: Real = 0.0
    """At most so large is the standard error of each client's S-acc and G-acc; 0 where every test was tried."""
    conflict: Conflict | None = None
    rule: RuleNote | None = None
    method: dict[str, Any] = {}
    """What the method notes of its own."""
    against: Against | None = None
    epsilon: float | None = None
    """Of differential privacy so far, where noise is added: of the client that took part in most rounds."""
    step_cosines: Dropped = msgspec.UNSET


class Evaluation(Fixed, kw_only=True, frozen=True):
    round: Count
    metrics: Metrics
    general_error: Real = 0.0


class Best(Evaluation, kw_only=True, frozen=True):
    chosen_by: Literal["validation", "test"]
    """Methods must not be compared by a best round that test accuracy chose."""


class Newcomers(Fixed, kw_only=True, frozen=True):
    """Clients that were held out of training and joined after it."""

    clients: Columns
    metrics: Metrics
    transfer: Transfer | None
    """Against Local for as many rounds as the others trained."""
    failed: dict[int, str]
    """Those that could not be served, and why."""


class Result(Fixed, kw_only=True, frozen=True):
    """Last and best round, who gained and who was harmed, what it cost, and on what it ran."""

    last: Evaluation
    best: Best
    transfer: Transfer | None
    """``None`` without a Local to compare with."""
    clients: Columns
    """The last evaluation."""
    malicious: list[int]
    conflict_rate: Share | None
    worst_residual: float | None
    bytes_per_round: Traffic
    seconds: Seconds
    failures: Count
    diverged: list[int] = []
    """Clients that ended with a loss that is not finite, or whose update in the last round was rejected for that."""
    written: str
    versions: dict[str, str]
    machine: dict[str, Any]
    unstable: list[int] = []
    """Clients whose accuracy fell by more than FALL between two evaluations."""
    newcomers: Newcomers | None = None
    mean_against: Share | None = None
    rule_against: Share | None = None
    """Mean over rounds of the share of clients whose own update the plain mean, and the rule's step, points against."""
    epsilon: float | None = None
    """What all rounds come to, with the option dp_delta, where noise is added."""
    conflict_error: Share = 0.0
    """The largest of a round."""
    contributions: Dropped = msgspec.UNSET


class PlannedRun(Fixed, kw_only=True, frozen=True):
    """One run of a study, as ``cells.json`` has it."""

    folder: str
    title: str
    error: str = ""
    traceback: str = ""


class Trial(Fixed, kw_only=True, frozen=True):
    value: Any
    validation: float | None


class Tuned(Fixed, kw_only=True, frozen=True):
    """One search for an option's value, as ``tuning.json`` has it."""

    cell: str
    option: str
    chosen: Any
    chosen_by: str
    seeds: list[int]
    tried: list[Trial]
    unit: Literal["%", ""] = "%"
    """``%``: scores are shares, shown in percent."""

    @property
    def at_an_end(self) -> bool:
        """Whether the chosen number is the smallest or the largest of several that were tried."""
        values = [trial.value for trial in self.tried]
        numbers = len(values) > 1 and all(isinstance(value, (int, float)) for value in values)
        return numbers and self.chosen in (min(values), max(values))
