"""How many similar clients of natural federations gained by joining.

``calibration.json`` counts, for each range of the probe's gain, the clients that gained by joining: FedAvg with a small
network compared with local training. ``benchmarks/ask.py`` creates it; docs/how-to/ask.md has its evaluation on
left-out federations.
"""

import json
from bisect import bisect_right
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


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


def group_of(points: float) -> int:
    """The index of the range that a gain belongs to, in points of accuracy."""
    return bisect_right(calibration()["edges"], points)


def similar(points: float) -> Similar:
    """Clients with a similar gain by the probe, in points of accuracy."""
    known, group = calibration(), group_of(points)
    return Similar(known["clients"][group], known["gained"][group])
