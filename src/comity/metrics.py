"""All metrics of a client's model, in one table.

Admission of replies, run folders, tables, terminal and page read this table; a new metric is one more entry. An
extension adds metrics in ``Extension.metrics``.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from comity._errors import ComityError

if TYPE_CHECKING:  # help pages and lists do not wait for numpy
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from comity.engine import Judgement


@dataclass(frozen=True)
class Metric:
    """A metric of each client's model."""

    key: str
    """Name in files, tables and charts."""
    label: str
    """Heading."""
    meaning: str
    """One sentence for a tooltip or a help page."""
    compute: Callable[["Judgement"], float | None] | None = None
    """Value for one client, or ``None``; by default ``judgement.notes[field]``, which an extension sets."""
    _: KW_ONLY
    field: str = ""
    """Name in a client's reply; by default the key with underscores."""
    unit: Literal["%", "points", ""] = ""
    """``%``: a share from 0 to 1, shown in percent; ``points``: a difference of shares; empty: no unit."""
    digits: int = 2
    low: float = -math.inf
    high: float = math.inf
    """Largest valid value; ``low`` is the smallest. Replies outside are rejected."""
    better: Literal["higher", "lower", "neither"] = "higher"
    always: bool = False
    """Whether every evaluation of every client has it."""
    optional: bool = False
    """Whether some clients may lack it."""
    undefined: bool = False
    """Whether it may be undefined for a client: it is then stored as NaN and left out of averages."""
    averaged: bool = True
    """Whether the mean over clients is reported; otherwise only values per client are kept."""
    points: int = 1
    """Display factor of gains: 100 for shares, whose gains are shown in percentage points."""

    def __post_init__(self) -> None:
        if not self.field:
            object.__setattr__(self, "field", self.key.replace("-", "_").lower())
        if self.unit == "%":
            object.__setattr__(self, "points", 100)

    def __reduce__(self) -> Any:
        """Copy and pickle a metric of the table by its key."""
        return (_by_key, (self.key,)) if by_key().get(self.key) is self else super().__reduce_ex__(2)

    @property
    def sign(self) -> int:
        """1, or −1 if lower is better."""
        return -1 if self.better == "lower" else 1

    def gain(self, value: float, reference: float) -> float:
        """By how much a value is better than a reference; negative if it is worse."""
        return reference - value if self.better == "lower" else value - reference

    def measure(self, judgement: "Judgement") -> float | None:
        return self.compute(judgement) if self.compute else judgement.notes.get(self.field)

    def objection(self, value: float) -> str | None:
        """Reason to reject this value in a reply, or None. NaN and infinity are allowed: a diverged model has them."""
        if math.isfinite(self.high):
            if self.low <= value <= self.high:
                return None
            return f"that is {value:g}; it must be from {self.low:g} to {self.high:g}"
        return f"that is {value:g}; it must not be negative" if self.low == 0 and value < 0 else None


WORST_LOSS = 100.0
"""Upper limit of a sample's log-loss in scores, in nats, also for a diverged model."""


def class_weights(labels: "NDArray[Any]") -> "NDArray[Any]":
    """(samples,) n / (classes × samples of its class), so that every class in ``labels`` has the same weight."""
    import numpy as np

    samples = np.bincount(labels)
    return np.asarray(len(labels) / (np.count_nonzero(samples) * samples[labels]))


def unit(name: str, labels: "NDArray[Any]") -> float:
    """Largest difference that one test can make between two models, for metrics that count hits; otherwise 0."""
    return 1.0 if name == "accuracy" else float(class_weights(labels).max()) if name == "balanced" else 0.0


def balanced_decisions(predicted: "NDArray[Any]", shares: "NDArray[Any]") -> "NDArray[Any]":
    """Decisions for balanced accuracy: argmax p(y|x)/π(y), where π are the class shares that the model expects.

    A class with share 0 is never predicted.
    """
    import numpy as np

    held = shares > 0
    return np.asarray(np.where(held, predicted - np.log(np.where(held, shares, 1)), -np.inf).argmax(1))


def scores(name: str, predicted: "ArrayLike", labels: "ArrayLike", shares: "ArrayLike") -> "NDArray[Any] | None":
    """Score of each sample by a deciding metric, higher is better; their mean is the metric, or minus the metric.

    ``predicted`` are log-probabilities (samples, classes); ``shares`` are the class shares that the model expects, for
    balanced accuracy. ``None`` if the metric is undefined: balanced accuracy and AUC of tests with one class.
    """
    import numpy as np

    predicted, labels, shares = np.asarray(predicted, dtype=float), np.asarray(labels), np.asarray(shares, dtype=float)
    if name == "accuracy":
        return np.asarray(predicted.argmax(1) == labels, dtype=float)
    if name == "log-loss":
        losses = -predicted[np.arange(len(labels)), labels]
        return np.asarray(-np.minimum(np.nan_to_num(losses, nan=WORST_LOSS), WORST_LOSS))
    if name == "brier":
        return np.asarray(-((np.exp(predicted) - np.eye(predicted.shape[1])[labels]) ** 2).sum(1))
    if np.count_nonzero(np.bincount(labels)) < 2:
        return None
    if name == "balanced":
        return np.asarray(class_weights(labels) * (balanced_decisions(predicted, shares) == labels))
    return _placements(predicted, labels)


def _placements(predicted: "NDArray[Any]", labels: "NDArray[Any]") -> "NDArray[Any] | None":
    """Each sample's part of the area under the ROC curve (DeLong's placements), scaled to have the area as mean.

    The area is averaged over the classes in ``labels``, each against the rest; ties count half. ``None`` if a diverged
    model gives all classes probability 0.
    """
    import numpy as np

    held = np.bincount(labels).nonzero()[0]
    if not np.isfinite(predicted.max(1)).all():
        return None
    if predicted.shape[1] == 2:  # the difference: a float cannot resolve probabilities close to 1
        predicted, held = predicted - predicted[:, ::-1], held[:1]
    parts = []
    for label in held:
        own = labels == label
        above = _shares_below(predicted[:, label], own)
        area = above[own].mean()
        parts.append(area + (above - area) * len(labels) / np.where(own, own.sum(), (~own).sum()))
    return np.asarray(np.mean(parts, axis=0))


def _shares_below(values: "NDArray[Any]", own: "NDArray[np.bool]") -> "NDArray[Any]":
    """For each own sample the share of others below it; for each other sample the share of own ones above it."""
    import numpy as np

    def below(of: "NDArray[Any]", among: "NDArray[Any]") -> "NDArray[Any]":
        ordered = np.sort(among)
        return (np.searchsorted(ordered, of, "left") + np.searchsorted(ordered, of, "right")) / (2 * len(among))

    return np.where(own, below(values, values[~own]), 1 - below(values, values[own]))


def expected_calibration_error(confidence: "ArrayLike", correct: "ArrayLike", bins: int = 15) -> float:
    """Mean over equal-width bins of |accuracy − confidence|, weighted by samples."""
    import numpy as np

    sure, right = np.asarray(confidence, dtype=float), np.asarray(correct, dtype=float)
    if sure.shape != right.shape or sure.ndim != 1 or not np.all((sure >= 0) & (sure <= 1)):
        raise ComityError("confidence must be numbers from 0 to 1, as many as there are samples")
    if not len(sure):
        return 0.0
    bin_of_sample = np.maximum(np.ceil(sure * bins).astype(int) - 1, 0)
    return float(np.abs(np.bincount(bin_of_sample, right - sure)).sum() / len(sure))


_SHARE: dict[str, Any] = {"unit": "%", "low": 0, "high": 1}
_LOSS: dict[str, Any] = {"digits": 3, "low": 0, "better": "lower"}
_BY_CLASS: dict[str, Any] = {"optional": True, "undefined": True}
_KEPT: dict[str, Any] = {"better": "neither", "optional": True, "undefined": True, "averaged": False}
_CLIENTS = "mean over the clients whose tests have more than one class"

OWN = Metric(
    "L-acc",
    "accuracy",
    "Accuracy on the client's own tests",
    lambda judged: float(judged.correct.double().mean()),
    field="own",
    always=True,
    **_SHARE,
)
BALANCED = Metric(
    "balanced-acc",
    "balanced accuracy",
    "Mean recall over classes on the client's own tests. The model predicts the class with the largest p(y|x) / π(y), "
    f"where π is its mean prediction on the client's other samples; {_CLIENTS}",
    lambda judged: judged.mean_score("balanced"),
    field="balanced",
    **_SHARE,
    **_BY_CLASS,
)
AUC = Metric(
    "AUC",
    "AUC",
    f"Area under the ROC curve on own tests (several classes: each against the rest), {_CLIENTS}",
    lambda judged: judged.mean_score("auc"),
    digits=3,
    low=0,
    high=1,
    **_BY_CLASS,
)
BRIER = Metric(
    "Brier",
    "Brier score",
    "Mean over clients of the squared distance between predicted probabilities and the truth on their own tests",
    lambda judged: judged.mean_score("brier"),
    digits=3,
    low=0,
    high=2,
    better="lower",
    optional=True,
)
LOSS = Metric(
    "loss",
    "log-loss",
    "Mean over clients of the log-loss on their own tests, in nats",
    lambda judged: float(judged.losses.mean()),
    always=True,
    **_LOSS,
)
CALIBRATION = Metric(
    "ECE",
    "calibration error",
    "Expected calibration error on own tests: mean difference between confidence and accuracy",
    lambda judged: expected_calibration_error(judged.predicted.exp().amax(1).clamp(max=1).cpu(), judged.correct.cpu()),
    field="calibration",
    digits=1,
    better="neither",
    **_SHARE,
)
VALIDATION = Metric(
    "val-acc",
    "validation accuracy",
    "Accuracy on the client's validation samples",
    field="validation",
    optional=True,
    **_SHARE,
)
VALIDATION_LOSS = Metric(
    "val-loss",
    "validation log-loss",
    "Log-loss on the client's validation samples, in nats",
    field="validation_loss",
    optional=True,
    **_LOSS,
)
SOME = Metric("S-acc", "S-acc", "Accuracy on the tests of the client and of some other clients", field="some", **_SHARE)
ALL = Metric("G-acc", "G-acc", "Accuracy on the tests of all clients", field="all", **_SHARE)
COMMON = Metric(
    "global-acc", "global model", "Accuracy of the global model on the clients' own tests", field="common", **_SHARE
)
UNGUARDED = Metric(
    "unguarded", "unguarded", "Accuracy of the federated model without its guard on the clients' own tests", **_SHARE
)
OWN_WEIGHT = Metric(
    "own-weight",
    "weight of the own model",
    "Weight of the client's own model under the guard",
    better="neither",
    **_SHARE,
)
BOUND = Metric(
    "bound",
    "bound",
    "Upper bound, by the guard certified, of the excess loss over the local baseline, by the metric that decides; "
    "undefined for clients that use the local baseline",
    low=-1,
    high=1,
    better="neither",
    optional=True,
    undefined=True,
)
CONSTANT = Metric(
    "constant",
    "clients with a constant model",
    "Share of the clients whose model predicts one class for all tests although the tests have several",
    lambda judged: judged.constant,
    digits=0,
    better="neither",
    **_SHARE,
    optional=True,
)
MAJORITY = Metric(
    "majority",
    "majority class",
    "The deciding metric of a model that always predicts the client's class shares",
    optional=True,
    undefined=True,
    better="neither",
)
MIXED = Metric(
    "mixed",
    "two local models mixed",
    "The deciding metric of two local models whose predictions are averaged",
    optional=True,
    undefined=True,
    better="neither",
)
GAIN = Metric(
    "gain", "gain", "Gain over the local model on own tests, by the deciding metric", low=-1e2, high=1e2, **_KEPT
)
SQUARES = Metric("gain-squares", "squares", "Mean square of the tests' gains", low=0, high=1e12, **_KEPT)
ABSOLUTE = Metric("gain-absolute", "absolute", "Mean absolute value of the tests' gains", low=0, high=1e6, **_KEPT)
FOURTH = Metric("gain-fourth", "fourth powers", "Mean fourth power of the tests' gains", low=0, high=1e24, **_KEPT)
LEAST = Metric(
    "gain-least", "least", "Smallest absolute gain of a test above 0; 0 if all are 0", low=0, high=1e6, **_KEPT
)
UNIT = Metric(
    "gain-unit", "unit", "Largest gain that one test can make, by metrics that count hits", low=0, high=1e7, **_KEPT
)

DECIDING = {"accuracy": OWN, "balanced": BALANCED, "log-loss": LOSS, "brier": BRIER, "auc": AUC}
"""Metrics that may decide, by their ``--metric`` name."""
VALIDATED = {"accuracy": VALIDATION, "log-loss": VALIDATION_LOSS} | {
    name: Metric(
        f"val-{metric.key}",
        f"validation {metric.label}",
        f"{metric.label} on the client's validation samples, where it decides",
        field=f"validation_{name}",
        unit=metric.unit,
        digits=metric.digits,
        low=metric.low,
        high=metric.high,
        better=metric.better,
        optional=True,
        undefined=metric.undefined,
    )
    for name, metric in DECIDING.items()
    if name not in ("accuracy", "log-loss")
}
"""The same on validation samples."""
GENERAL_VALIDATED = {
    metric.key: Metric(
        f"val-{metric.key}",
        f"validation {metric.label}",
        f"{metric.label} on validation samples in place of tests",
        optional=True,
        **_SHARE,
    )
    for metric in (SOME, ALL, COMMON)
}
"""S-acc, G-acc and the global model's accuracy on validation samples, in runs with ``general_validation``."""

METRICS = (
    *(OWN, BALANCED, AUC, BRIER, LOSS, *VALIDATED.values(), SOME, ALL, COMMON, CALIBRATION, CONSTANT),
    *(UNGUARDED, OWN_WEIGHT, BOUND, MAJORITY, MIXED),
)
"""All metrics, in the order of files and tables."""
EVIDENCE = (GAIN, SQUARES, ABSOLUTE, FOURTH, LEAST, UNIT)
"""Numbers per client for the test for harm, stored beside the metrics and never averaged."""


def by_key() -> dict[str, Metric]:
    """Metrics by their key in files."""
    return {metric.key: metric for metric in (*METRICS, *EVIDENCE)}


def _by_key(key: str) -> Metric:
    return by_key()[key]
