"""How many similar clients of natural federations gained by joining.

``calibration.json`` counts, for each range of the probe's gain, the clients of the leaderboard that gained by joining:
FedAvg with a small network compared with local training, both with a tuned learning rate. ``benchmarks/ask.py`` creates
it; evidence/ask.md has its evaluation on left-out federations.
"""

import json
from bisect import bisect_right
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from comity.config import ACCURACY

CALIBRATED = (ACCURACY, "balanced")
"""Metrics that decide on the federations of the calibration."""


class Similar(NamedTuple):
    """Clients of natural federations with a similar estimate by the probe."""

    clients: int
    gained: int

    @property
    def share(self) -> float:
        """Estimated probability of a gain, with one more client of either kind."""
        return (self.gained + 1) / (self.clients + 2)

    def __str__(self) -> str:
        return f"{self.gained} of {self.clients}"


@cache
def calibration() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("comity.probe") / "calibration.json").read_text())
    return found


def reference(metric: str) -> str:
    """The metric by which similar clients are found: ``metric`` if the calibration has it, otherwise accuracy."""
    return metric if metric in CALIBRATED else ACCURACY


def group_of(points: float) -> int:
    """The index of the range that a gain in accuracy or balanced accuracy belongs to, in points."""
    return bisect_right(calibration()["edges"], points)


def similar(points: float) -> Similar:
    """Clients with a similar gain by the probe, in points."""
    known, group = calibration(), group_of(points)
    return Similar(known["clients"][group], known["gained"][group])
