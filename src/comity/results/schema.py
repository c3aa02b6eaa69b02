"""What a run and a study leave behind: the names of files and metrics, and the records in them.

``records`` writes and reads them. A change that old folders do not meet raises ``SCHEMA``.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = 3

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
TOKEN = ".token"
FETCHED = ".fetched"

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
BALANCED = "balanced-acc"
"""Mean over the classes of the client's own tests of the share that is told right."""
AUC = "AUC"
"""Area under the ROC curve on the client's own tests, a mean over their classes, each against the rest."""
BY_CLASS = (BALANCED, AUC)
"""Metrics that are NaN for a client whose tests hold one class; their summaries are over the other clients."""
CALIBRATION = "ECE"
"""How far the confidence of answers on own tests is from their accuracy: the expected calibration error."""
UNGUARDED = "unguarded"
"""Accuracy of the federated model without its guard on the client's own tests."""
OWN_WEIGHT = "own-weight"
"""What the client's own model counts for under the guard."""
BOUND = "bound"
"""The guard's promise: the error is above that of the client's own model by at most so much."""
METRICS = (
    *(OWN, *BY_CLASS, LOSS, VALIDATION, VALIDATION_LOSS, SOME, ALL, COMMON, CALIBRATION, UNGUARDED, OWN_WEIGHT, BOUND),
)

FALL, FALLEN_TESTS = 0.2, 5
"""Training is not stable where a client's accuracy falls by more than this, and by so many tests or more."""

CLIENT, TRAINING_SAMPLES, TEST_SAMPLES = "client", "n_train", "n_test"
ONLY_LOCAL, ONLY_JOINED = "only-local", "only-joined"
"""Own tests that only Local, and only the client's model in this run, gets right."""
CLIENT_NAME = "name"
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
    id: str = ""
    """Drawn when the run began, and the same when it goes on: no other run has it."""


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
    tests_drawn: bool = False
    """Whether each seed draws its own tests from a client's samples."""

    @property
    def is_uneven(self) -> bool:
        """Whether accuracy leaves much open: of two classes, or where one has over twice the samples of another."""
        totals = [total for total in map(sum, zip(*self.counts, strict=True)) if total]
        return self.classes == 2 or max(totals, default=0) > 2 * min(totals, default=0)


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
    error: float = 0.0
    """Share of the pairs and layers that are expected to be judged wrongly, where sketches tell; else 0."""
    loss_change: float = 0.0
    """Of all clients together under the plain mean, to first order (ConFREE, Equation 8)."""
    loss_change_by_others: float = 0.0
    """The same without what a client's own update does for it (FedCALM, Equation 10); above 0 others harm."""


@dataclass(kw_only=True)
class Against:
    """Clients whose own update a step points against (a negative inner product): it undoes what they have learnt."""

    clients: int = 0
    """Of so many."""
    mean: int = 0
    """By the plain mean of the updates."""
    rule: int = 0
    """By the rule's step."""
    mean_ids: list[int] = field(default_factory=list)
    """Who they are, the first of them where they are many."""
    rule_ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What clients say that a step would do to them."""

    change: float
    """Of their mean loss."""
    harmed: int
    """Clients whose loss it would raise, of those with enough samples to tell."""


@dataclass(kw_only=True)
class RuleNote:
    """What the rule's solver says of its own step."""

    certificate: str
    residual: float = 0.0
    stretch: dict[str, float] = field(default_factory=dict)
    """By layer: the length of the step over that of the plain mean."""
    choice: dict[str, float] = field(default_factory=dict)
    """Of a rule that chooses among others: each with its weight. The heaviest made the step."""
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    """In rounds in which clients were asked: what they said of each choice."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The rule's coefficients in one round: a row for the whole model, or one for each layer."""

    round: int
    group: str
    ids: list[int | str]
    coefficients: list[list[float]]
    multipliers: list[list[float]] | None = None
    """CALM's λ: what each client's constraint adds to its coefficient."""


@dataclass(frozen=True, kw_only=True)
class Cosines:
    """The cosine between every two clients' updates in one round."""

    round: int
    group: str
    ids: list[int | str]
    cosines: list[list[float]]
    error: float = 0.0
    """The standard error of those near 0, where sketches tell; else 0."""


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
    fell: dict[int, float] = field(default_factory=dict)
    """Clients whose accuracy fell by more than FALL since the evaluation before, and by how much."""
    general_error: float = 0.0
    """At most so large is the standard error of each client's S-acc and G-acc; 0 where every test was tried."""
    conflict: Conflict | None = None
    rule: RuleNote | None = None
    method: dict[str, Any] = field(default_factory=dict)
    """What the method notes of its own."""
    against: Against | None = None
    epsilon: float | None = None
    """Of differential privacy so far, where noise is added: of the client that took part in most rounds."""


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
class Newcomers:
    """Clients that were held out of training and joined after it."""

    clients: Columns
    metrics: Metrics
    transfer: Transfer | None
    """Against Local for as many rounds as the others trained."""
    failed: dict[int, str]
    """Those that could not be served, and why."""


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
    unstable: list[int] = field(default_factory=list)
    """Clients whose accuracy fell by more than FALL between two evaluations."""
    newcomers: Newcomers | None = None
    mean_against: float | None = None
    """Mean over rounds of the share of clients whose own update the plain mean of all updates points against."""
    rule_against: float | None = None
    """The same of the rule's step."""
    epsilon: float | None = None
    """What all rounds come to, with the option dp_delta, where noise is added."""
    conflict_error: float = 0.0
    """The largest error of a round's conflict rate, where sketches tell; else 0."""


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

    @property
    def at_an_end(self) -> bool:
        """Whether the chosen number is the smallest or the largest of several that were tried."""
        values = [trial.value for trial in self.tried]
        numbers = len(values) > 1 and all(isinstance(value, (int, float)) for value in values)
        return numbers and self.chosen in (min(values), max(values))
