"""Every number that is measured of a client's model, in one table.

Admission of replies, run folders, tables, terminal and page read this table; a new metric is one more entry. An
extension brings metrics of its own in ``Extension.metrics``.
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
    """One number of each client's model."""

    key: str
    """Its name in files, tables and charts."""
    label: str
    """Its heading."""
    meaning: str
    """One sentence for a tooltip or a help page."""
    compute: Callable[["Judgement"], float | None] | None = None
    """Its value for one client, ``None`` where the client has no such number; by default the note called ``field``."""
    _: KW_ONLY
    field: str = ""
    """Its name in a client's reply; by default the key with underscores."""
    unit: Literal["%", "points", ""] = ""
    """``%``: stored as a share from 0 to 1, shown in percent."""
    digits: int = 2
    low: float = -math.inf
    high: float = math.inf
    """The range of valid values; a reply outside is rejected."""
    better: Literal["higher", "lower", "neither"] = "higher"
    always: bool = False
    """Whether every evaluation of every client has it."""
    optional: bool = False
    """Whether one client may have it and another not."""
    undefined: bool = False
    """Whether it may be undefined for a client: then it is stored as NaN, and means leave it out."""
    count: bool = False
    """Whether it is a number of test samples: a whole number from 0 to all of them."""

    def __post_init__(self) -> None:
        if not self.field:
            object.__setattr__(self, "field", self.key.replace("-", "_").lower())

    def measure(self, judgement: "Judgement") -> float | None:
        return self.compute(judgement) if self.compute else judgement.notes.get(self.field)

    def objection(self, value: float, tests: int) -> str | None:
        """Why a reply cannot hold this value; NaN and infinity are honest losses of a model that diverged."""
        if self.count:
            return None if 0 <= value <= tests else f"that is {value}; there are {tests} tests"
        if math.isfinite(self.high):
            if self.low <= value <= self.high:
                return None
            return f"that is {value:g}; it must be from {self.low:g} to {self.high:g}"
        return f"that is {value:g}; it must not be negative" if self.low == 0 and value < 0 else None


def balanced_accuracy(correct: "ArrayLike", labels: "ArrayLike") -> float | None:
    """Per-class recall averaged over the classes in ``labels``; ``None`` where they hold a single class."""
    import numpy as np

    labels = np.asarray(labels)
    samples, hits = np.bincount(labels), np.bincount(labels, np.asarray(correct))
    held = samples.nonzero()[0]
    return None if len(held) < 2 else float((hits[held] / samples[held]).sum() / len(held))


def area_under_curve(predicted: "ArrayLike", labels: "ArrayLike") -> float | None:
    """Area under the ROC curve, averaged over the classes in ``labels``, each against the rest; ties count half.

    ``predicted`` are log-probabilities (samples, classes). ``None`` where ``labels`` hold a single class, or where a
    model that diverged gives every class the probability 0.
    """
    import numpy as np

    scores, labels = np.asarray(predicted), np.asarray(labels)
    held = np.bincount(labels).nonzero()[0]
    if len(held) < 2 or not np.isfinite(scores.max(1)).all():
        return None
    if scores.shape[1] == 2:  # their difference: a float has no room for a probability that is nearly 1
        scores, held = scores - scores[:, ::-1], held[:1]
    return float(np.mean([_area(scores[:, label], labels == label) for label in held]))


def _area(scores: "NDArray[Any]", is_own: "NDArray[np.bool]") -> float:
    """From the sum of the ranks of a class's own samples; equal scores share the mean of their ranks."""
    import numpy as np

    _, place, times = np.unique(scores, return_inverse=True, return_counts=True)
    ranks, own = (times.cumsum() - (times - 1) / 2)[place], is_own.sum()
    return float((ranks[is_own].sum() / own - (own + 1) / 2) / (len(scores) - own))


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
_COUNT: dict[str, Any] = {"better": "neither", "optional": True, "count": True}
_CLIENTS = "mean over the clients whose tests hold more than one class"

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
    f"Accuracy on own tests in which each class counts the same, {_CLIENTS}",
    lambda judged: balanced_accuracy(judged.correct.cpu(), judged.labels.cpu()) if judged.by_class else None,
    field="balanced",
    **_SHARE,
    **_BY_CLASS,
)
AUC = Metric(
    "AUC",
    "AUC",
    f"Area under the ROC curve on own tests, of several classes each against the rest, {_CLIENTS}",
    lambda judged: area_under_curve(judged.predicted.cpu(), judged.labels.cpu()) if judged.by_class else None,
    digits=3,
    low=0,
    high=1,
    **_BY_CLASS,
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
    "Expected calibration error on own tests: how far confidence is from accuracy",
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
SOME = Metric("S-acc", "S-acc", "Accuracy on the clients' own tests and those of some others", field="some", **_SHARE)
ALL = Metric("G-acc", "G-acc", "Accuracy on everybody's tests", field="all", **_SHARE)
COMMON = Metric(
    "global-acc", "common model", "Accuracy of the common model on the clients' own tests", field="common", **_SHARE
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
    "Upper bound of the guard on the error above that of the client's own model",
    low=-1,
    high=1,
    better="neither",
    optional=True,
)
ONLY_LOCAL = Metric(
    "only-local", "only local correct", "Own tests that only the local baseline predicts correctly", **_COUNT
)
ONLY_JOINED = Metric(
    "only-joined",
    "only joined correct",
    "Own tests that only the client's model in this run predicts correctly",
    **_COUNT,
)

METRICS = (
    *(OWN, BALANCED, AUC, LOSS, VALIDATION, VALIDATION_LOSS, SOME, ALL, COMMON, CALIBRATION),
    *(UNGUARDED, OWN_WEIGHT, BOUND),
)
"""All metrics, in the order of files and tables."""
COUNTS = (ONLY_LOCAL, ONLY_JOINED)
"""Numbers of test samples, stored beside the metrics and never averaged."""


def by_key() -> dict[str, Metric]:
    """Metrics by their names in files."""
    return {metric.key: metric for metric in (*COUNTS, *METRICS)}
