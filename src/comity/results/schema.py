"""Files of run and study folders: their names and records.

Increase ``SCHEMA`` for a change that makes old folders unreadable.
"""

# ruff: noqa: RUF012  # msgspec creates a new list or dictionary per record

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
"""Schema of the table that the run was trained on."""
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
"""Beside run folders: their local baselines."""

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
"""Training is unstable if a client's accuracy drops by more than this share, and by at least so many tests."""

ZERO = 1e-9
"""Smaller differences of accuracies are rounding: no test set is large enough to show them."""

Printable = Annotated[str, Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f\u200e-\u202e]*\Z")]
Dropped = Any | msgspec.UnsetType
"""A field of earlier versions, accepted in files but not used."""
Columns = dict[str, list[Real]]
"""One evaluation: one list over clients for each measured one of CLIENT_COLUMNS."""


class Version(Struct):
    schema: Any = None


class MetricInfo(Fixed, kw_only=True, frozen=True):
    """A metric of an extension, which is not in the table of metrics."""

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
        known = {name: getattr(metric, name) for name in cls.__struct_fields__}
        return cls(**{name: value for name, value in known.items() if value not in (-math.inf, math.inf)})

    @property
    def metric(self) -> Metric:
        """The metric for tables and pages; it reads values from files and computes none."""
        known = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        return Metric(**known, compute=lambda _: None, optional=True)


class RunInfo(Fixed, kw_only=True, frozen=True, omit_defaults=True):
    """Description of a run, written before its first round."""

    schema: int
    comity: str
    """The version that wrote the folder."""
    title: str
    key: str
    """Hash of the options that affect results."""
    own_rule: bool
    """Whether the option ``rule`` has no effect: Local has no rule, and some methods bring their own."""
    eval_point: Literal["received", "fitted"] = msgspec.field(name="moment")
    """Evaluation point: with the newest shared part (received), or after local training (fitted)."""
    data: str = ""
    """Fingerprint of samples and labels; empty in folders of earlier versions."""
    id: str = ""
    """Unique id, drawn at the start and kept when the run is resumed."""
    trainer: Annotated[str, Meta(max_length=100)] = ""
    """How local training was computed: ``autograd``, ``chain``, ``compiled AVX512``; it affects rounding."""
    metrics: list[MetricInfo] = []
    """Metrics of extensions, which are not in the table of metrics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        keys, taken = [metric.key for metric in self.metrics], {"round", CLIENT_NAME, *CLIENT_COLUMNS}
        require(len(set(keys) - taken) == len(keys), "metrics have the name of another column")


class PartitionTable(Fixed, kw_only=True, frozen=True):
    """Number of samples per client and class."""

    name: str
    partition: str
    classes: Count
    counts: list[list[Count]]
    client_names: list[str] = []
    """Names of clients (and of classes); empty in runs of earlier versions."""
    class_names: list[str] = []
    tests_drawn: bool = False
    """Whether each seed draws its own test samples."""
    folds: Count = 0
    """Number of consecutive seeds that together test each sample once; 0 without folds."""
    is_uneven: bool = False
    """Whether balanced accuracy is the default metric."""

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
    """Mean over samples instead of clients."""
    worst10: Real
    """Mean over the worst tenth of the clients."""


Metrics = dict[str, Summary]


class Traffic(Record, kw_only=True):
    """Bytes of tensors, without evaluation."""

    down: Cost = 0
    up: Cost = 0


class Seconds(Record, kw_only=True):
    train: Cost = 0.0
    aggregate: Cost = 0.0
    evaluate: Cost = 0.0


class Conflict(Record, kw_only=True):
    """Share of client pairs whose updates conflict (negative inner product)."""

    rate: Share = 0.0
    layers: dict[str, Share] = {}
    error: Share = 0.0
    """Expected share of pairs and layers that sketches misjudge; 0 if products are exact."""
    loss_change: Real = 0.0
    """First-order change of the clients' summed loss under the plain mean (ConFREE, Equation 8)."""
    loss_change_by_others: Real = 0.0
    """The same without the effect of each client's own update (FedCALM, Equation 10); positive if others harm."""


class Against(Record, kw_only=True):
    """Clients whose update has a negative inner product with a step, so that their loss increases to first order."""

    clients: Count = 0
    """Total number of clients."""
    mean: Count = 0
    rule: Count = 0
    """Number under the rule's step (``mean``: under the plain mean of the updates)."""
    mean_ids: list[int] = []
    """Ids of these clients; only the first ones if there are many."""
    rule_ids: list[int] = []


class Verdict(Fixed, kw_only=True, frozen=True):
    """Effect of a step as reported by clients."""

    change: Real
    """Change of their mean loss."""
    harmed: Count
    """Number of clients with enough samples whose loss it would raise."""


class RuleNote(Record, kw_only=True):
    """The solver's report on the rule's step."""

    certificate: str
    residual: Real = 0.0
    length_ratio: dict[str, Real] = msgspec.field(name="stretch", default_factory=dict)
    """By layer: length of the step divided by that of the plain mean. Files keep the field's former name."""
    choice: dict[str, Real] = {}
    """Weights of the candidates of a rule that chooses among others. The heaviest made the step."""
    verdicts: dict[str, Verdict] = {}
    """In rounds in which clients were asked: their verdict on each candidate."""


class ByClient(Fixed, kw_only=True, frozen=True):
    """Numbers of one round with one column per client."""

    round: Count
    group: str
    ids: list[int | str]

    def _check(self, rows: list[list[float]]) -> None:
        require(len(set(self.ids)) == len(self.ids), "has a client twice")
        require(all(len(row) == len(self.ids) for row in rows), "has not a number for each client")


class Weights(ByClient, kw_only=True, frozen=True):
    """The rule's coefficients in one round: one row for the whole model, or one per layer."""

    coefficients: list[list[Real]]
    multipliers: list[list[Real]] | None = None
    """CALM's λ: the part of each client's coefficient that comes from its constraint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check([*self.coefficients, *(self.multipliers or [])])


class Cosines(ByClient, kw_only=True, frozen=True):
    """Cosines between all pairs of clients' updates in one round."""

    cosines: list[list[Cosine]]
    error: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Standard error of cosines near 0 if sketches estimate them, otherwise 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check(self.cosines)
        require(len(self.cosines) == len(self.ids), "has not a row for each client")


class RoundRecord(Record, kw_only=True):
    """One round."""

    round: Count
    cohort: list[int] = []
    lost: list[int] = []
    """Clients that trained and then dropped out."""
    failed: dict[int, str] = {}
    """Clients whose answers were left out, with the reason."""
    warnings: list[str] = []
    """Warnings without consequences: nodes without a seat, seats that changed, suspicious sizes."""
    train_loss: Real = math.nan
    bytes: Traffic = msgspec.field(default_factory=Traffic)
    seconds: Seconds = msgspec.field(default_factory=Seconds)
    metrics: Metrics = {}
    """Empty if this round was not evaluated."""
    fell: dict[int, Real] = {}
    """Drop in accuracy of clients that fell by more than FALL (20 points) since the previous evaluation."""
    general_error: Real = 0.0
    """Upper bound of the standard error of each client's S-acc and G-acc; 0 if all tests were used."""
    conflict: Conflict | None = None
    rule: RuleNote | None = None
    method: dict[str, Any] = {}
    """Additional values recorded by the method."""
    against: Against | None = None
    epsilon: float | None = None
    """Epsilon of differential privacy so far, for the client with most rounds; None without noise."""
    step_cosines: Dropped = msgspec.UNSET


class Evaluation(Fixed, kw_only=True, frozen=True):
    round: Count
    metrics: Metrics
    general_error: Real = 0.0


class Best(Evaluation, kw_only=True, frozen=True):
    chosen_by: Literal["validation", "test"]
    """Do not compare methods by a best round that test accuracy chose."""


class Newcomers(Fixed, kw_only=True, frozen=True):
    """Clients that were held out of training and joined afterwards."""

    clients: Columns
    metrics: Metrics
    transfer: Transfer | None
    """Compared with Local for as many rounds as the other clients trained."""
    failed: dict[int, str]
    """Clients that could not be served, with the reason."""


class Result(Fixed, kw_only=True, frozen=True):
    """Last and best round, gains and harm per client, cost, and machine."""

    last: Evaluation
    best: Best
    transfer: Transfer | None
    """``None`` without a local baseline."""
    clients: Columns
    """The last evaluation."""
    malicious: list[int]
    conflict_rate: Share | None
    worst_residual: float | None
    bytes_per_round: Traffic
    seconds: Seconds
    failures: Count
    diverged: list[int] = []
    """Clients whose final loss, or whose update in the last round, is not finite."""
    written: str
    versions: dict[str, str]
    machine: dict[str, Any]
    unstable: list[int] = []
    """Clients whose accuracy dropped by more than FALL between two evaluations."""
    newcomers: Newcomers | None = None
    mean_against: Share | None = None
    rule_against: Share | None = None
    """Mean share of clients whose loss the rule's step increases; ``mean_against`` is the same for the plain mean."""
    epsilon: float | None = None
    """Total epsilon at delta = dp_delta; None without noise."""
    conflict_error: Share = 0.0
    """Largest conflict error of any round."""
    contributions: Dropped = msgspec.UNSET


class PlannedRun(Fixed, kw_only=True, frozen=True):
    """One run of a study, in ``cells.json``."""

    folder: str
    title: str
    error: str = ""
    traceback: str = ""


class Trial(Fixed, kw_only=True, frozen=True):
    value: Any
    validation: float | None


class Tuned(Fixed, kw_only=True, frozen=True):
    """One search for an option's value, in ``tuning.json``."""

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
        """Whether the chosen number is the smallest or largest of those tried."""
        values = [trial.value for trial in self.tried]
        numbers = len(values) > 1 and all(isinstance(value, (int, float)) for value in values)
        return numbers and self.chosen in (min(values), max(values))
