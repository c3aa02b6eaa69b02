"""Numbers over rounds that the page draws: metrics, including those of extensions, and numbers of the rounds."""

from collections.abc import Iterable
from typing import NamedTuple

from comity import metrics
from comity.metrics import Metric
from comity.report._series import RoundNumber, against, conflict, metric
from comity.results import LoadedRun


class Curve(NamedTuple):
    label: str
    """Empty for a curve that is not in the menu."""
    share: bool
    """Whether it is drawn in percent."""
    number: RoundNumber
    rarely: bool = False
    """Whether it may be measured only in the last round, and then has no curve."""
    key: str = ""
    """The key of its metric."""


def _of(each: Metric, rarely: bool = False) -> Curve:
    return Curve(each.label, each.high == 1, metric(each.key), rarely, each.key)


CURVES = {
    "acc": _of(metrics.OWN),
    "worst": Curve("accuracy, worst tenth", True, metric(metrics.OWN.key, "worst10")),
    "balanced": _of(metrics.BALANCED, rarely=True),
    "auc": _of(metrics.AUC, rarely=True),
    "val": _of(metrics.VALIDATION),
    "common": _of(metrics.COMMON),
    "S": _of(metrics.SOME, rarely=True),
    "G": _of(metrics.ALL, rarely=True),
    "test": _of(metrics.LOSS),
    "brier": _of(metrics.BRIER, rarely=True),
    "loss": Curve("training loss", False, lambda record: record.train_loss),
    "conflict": Curve("", True, conflict),
    "against": Curve("", True, against),
    "mean_against": Curve("", True, lambda record: against(record, of_mean=True)),
}


def curve_of(each: Metric) -> str:
    """The name of a metric's curve on the page; that of accuracy if the metric has none."""
    return next((name for name, curve in CURVES.items() if curve.key == each.key), "acc")


def curves_of(runs: Iterable[LoadedRun]) -> dict[str, Curve]:
    """All curves of these runs, by their names on the page."""
    own = {f"metric {each.key}": _of(each.metric, rarely=True) for run in runs for each in run.info.metrics}
    return CURVES | own
