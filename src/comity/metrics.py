"""Every number that is measured of a client's model, in one table.

Admission of replies, run folders, tables, terminal and page read this table; a new metric is one more entry. An
extension brings metrics of its own in ``Extension.metrics``.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from comity._errors import ComityError

if TYPE_CHECKING:  # help pages and lists do not wait for numpy
    import numpy as np
    from numpy.typing import ArrayLike, NDArray


class Judged(Protocol):
    """One client's model in an evaluation, as a metric sees it. Predictions are log-probabilities."""

    @property
    def predicted(self) -> Any:
        """Predictions of the model in use for the client's test samples."""

    @property
    def labels(self) -> Any:
        """Labels of the test samples."""

    @property
    def correct(self) -> Any:
        """Which test samples were predicted correctly."""

    @property
    def losses(self) -> Any:
        """Log-loss of each test sample."""

    @property
    def by_class(self) -> bool:
        """Whether this evaluation asks for metrics by class, which take longer."""

    def noted(self, name: str) -> float | None:
        """A number that the engine or an extension measured on the way; ``None`` if it was not."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of each client's model."""

    key: str
    """Its name in files, tables and charts."""
    label: str
    """Its heading."""
    meaning: str
    """One sentence for a tooltip or a help page."""
    compute: Callable[[Judged], float | None]
    """``None`` where the client has no such number."""
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
    rows = np.ascontiguousarray(scores.T[held])
    order = rows.argsort(1)
    is_own = labels[order] == held[:, None]
    own, ranks = is_own.sum(1), _ranks(np.take_along_axis(rows, order, 1))
    areas = (ranks.sum(1, where=is_own) / own - (own + 1) / 2) / (len(labels) - own)
    return float(areas.sum() / len(held))


def _ranks(ascending: "NDArray[Any]") -> "NDArray[np.float64]":
    """Ranks from 1 within each row; equal values share the mean of their ranks."""
    import numpy as np

    samples = ascending.shape[1]
    place, is_new = np.arange(samples), ascending[:, 1:] != ascending[:, :-1]
    first, last = np.zeros(ascending.shape, np.int64), np.full(ascending.shape, samples - 1)
    np.maximum.accumulate(np.where(is_new, place[1:], 0), 1, out=first[:, 1:])
    last[:, -2::-1] = np.minimum.accumulate(np.where(is_new, place[:-1], samples - 1)[:, ::-1], 1)
    return np.asarray((first + last) / 2 + 1)


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


def _noted(name: str) -> Callable[[Judged], float | None]:
    return lambda judged: judged.noted(name)


_SHARE: dict[str, Any] = {"unit": "%", "low": 0, "high": 1}
_ONE_CLASS = "mean over the clients whose tests hold more than one class"

OWN = Metric(
    key="L-acc",
    field="own",
    label="accuracy",
    meaning="Accuracy on the client's own tests",
    compute=lambda judged: float(judged.correct.double().mean()),
    always=True,
    **_SHARE,
)
BALANCED = Metric(
    key="balanced-acc",
    field="balanced",
    label="balanced accuracy",
    meaning=f"Accuracy on own tests in which each class counts the same, {_ONE_CLASS}",
    compute=lambda judged: balanced_accuracy(judged.correct.cpu(), judged.labels.cpu()) if judged.by_class else None,
    optional=True,
    undefined=True,
    **_SHARE,
)
AUC = Metric(
    key="AUC",
    field="auc",
    label="AUC",
    meaning=f"Area under the ROC curve on own tests, of several classes each against the rest, {_ONE_CLASS}",
    compute=lambda judged: area_under_curve(judged.predicted.cpu(), judged.labels.cpu()) if judged.by_class else None,
    digits=3,
    low=0,
    high=1,
    optional=True,
    undefined=True,
)
LOSS = Metric(
    key="loss",
    label="log-loss",
    meaning="Mean over clients of the log-loss on their own tests, in nats",
    compute=lambda judged: float(judged.losses.mean()),
    always=True,
    digits=3,
    low=0,
    better="lower",
)
VALIDATION = Metric(
    key="val-acc",
    field="validation",
    label="validation accuracy",
    meaning="Accuracy on the client's validation samples",
    compute=_noted("validation"),
    optional=True,
    **_SHARE,
)
VALIDATION_LOSS = Metric(
    key="val-loss",
    field="validation_loss",
    label="validation log-loss",
    meaning="Log-loss on the client's validation samples, in nats",
    compute=_noted("validation_loss"),
    digits=3,
    low=0,
    better="lower",
    optional=True,
)
SOME = Metric(
    key="S-acc",
    field="some",
    label="S-acc",
    meaning="Accuracy on the clients' own tests and those of some others",
    compute=_noted("some"),
    **_SHARE,
)
ALL = Metric(
    key="G-acc",
    field="all",
    label="G-acc",
    meaning="Accuracy on everybody's tests",
    compute=_noted("all"),
    **_SHARE,
)
COMMON = Metric(
    key="global-acc",
    field="common",
    label="common model",
    meaning="Accuracy of the common model on the clients' own tests",
    compute=_noted("common"),
    **_SHARE,
)
CALIBRATION = Metric(
    key="ECE",
    field="calibration",
    label="calibration error",
    meaning="Expected calibration error on own tests: how far confidence is from accuracy",
    compute=lambda judged: expected_calibration_error(
        judged.predicted.exp().amax(1).clamp(max=1).cpu(), judged.correct.cpu()
    ),
    digits=1,
    better="neither",
    **_SHARE,
)
UNGUARDED = Metric(
    key="unguarded",
    label="unguarded",
    meaning="Accuracy of the federated model without its guard on the clients' own tests",
    compute=_noted("unguarded"),
    **_SHARE,
)
OWN_WEIGHT = Metric(
    key="own-weight",
    label="weight of the own model",
    meaning="Weight of the client's own model under the guard",
    compute=_noted("own_weight"),
    better="neither",
    **_SHARE,
)
BOUND = Metric(
    key="bound",
    label="bound",
    meaning="Upper bound of the guard on the error above that of the client's own model",
    compute=_noted("bound"),
    low=-1,
    high=1,
    better="neither",
    optional=True,
)
ONLY_LOCAL = Metric(
    key="only-local",
    label="only local correct",
    meaning="Own tests that only the local baseline predicts correctly",
    compute=_noted("only_local"),
    better="neither",
    optional=True,
    count=True,
)
ONLY_JOINED = Metric(
    key="only-joined",
    label="only joined correct",
    meaning="Own tests that only the client's model in this run predicts correctly",
    compute=_noted("only_joined"),
    better="neither",
    optional=True,
    count=True,
)

METRICS = (
    *(OWN, BALANCED, AUC, LOSS, VALIDATION, VALIDATION_LOSS, SOME, ALL, COMMON, CALIBRATION),
    *(UNGUARDED, OWN_WEIGHT, BOUND),
)
"""All metrics, in the order of files and tables."""
COUNTS = (ONLY_LOCAL, ONLY_JOINED)
"""Numbers of test samples, stored beside the metrics and never averaged."""


def by_key(metrics: Iterable[Metric] = (*COUNTS, *METRICS)) -> dict[str, Metric]:
    """Metrics by their names in files."""
    return {metric.key: metric for metric in metrics}
