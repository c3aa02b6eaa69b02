"""What joining did to clients that looked like this one, in natural federations.

``calibration.json`` counts, for each range of the probe's gain, the clients that gained by joining: by FedAvg with a
small network over local training. ``benchmarks/ask.py`` makes it; docs/how-to/ask.md has its evaluation on federations
that were left out.
"""

import json
from bisect import bisect_right
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Similar(NamedTuple):
    """Clients of natural federations for which the probe said about the same."""

    clients: int
    gained: int

    @property
    def share(self) -> float:
        """Estimated chance of a gain, with one client more of either kind."""
        return (self.gained + 1) / (self.clients + 2)

    def __str__(self) -> str:
        return f"{self.gained} of {self.clients}"


@cache
def calibration() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("comity.probe") / "calibration.json").read_text())
    return found


def group_of(points: float) -> int:
    """Which range a gain belongs to, in points of accuracy."""
    return bisect_right(calibration()["edges"], points)


def similar(points: float) -> Similar:
    """Clients with a similar gain by the probe, in points of accuracy."""
    known, group = calibration(), group_of(points)
    return Similar(known["clients"][group], known["gained"][group])
