"""A run's rounds as arrays: metrics per round, the rule's coefficients, and the cosines of updates."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from comity.results import LoadedRun, RoundRecord

Floats = npt.NDArray[np.float64]
RoundNumber = Callable[[RoundRecord], float]
"""A number of one round; NaN if not measured in that round."""


def metric(name: str, how: str = "mean") -> RoundNumber:
    def number(record: RoundRecord) -> float:
        summary = record.metrics.get(name)
        return math.nan if summary is None else float(getattr(summary, how))

    return number


def conflict(record: RoundRecord) -> float:
    return math.nan if record.conflict is None else record.conflict.rate


def against(record: RoundRecord, *, of_mean: bool = False) -> float:
    """Share of clients whose loss the rule's step, or the plain mean, increases."""
    noted = record.against
    return math.nan if noted is None or not noted.clients else (noted.mean if of_mean else noted.rule) / noted.clients


def thin(rounds: list[int], most: int) -> list[int]:
    """At most ``most`` of the rounds, evenly spaced, including the first and the last."""
    if len(rounds) <= most:
        return list(rounds)
    return [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, most).round().astype(int))]


def mean_of_known(values: Floats, axis: int, empty: float = math.nan) -> Floats:
    """The mean without NaNs; ``empty`` if all are NaN."""
    known = ~np.isnan(values)
    total, count = np.where(known, values, 0).sum(axis), known.sum(axis)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), empty), dtype=np.float64)


def layer_names(run: LoadedRun) -> list[str]:
    return list(dict.fromkeys(name for record in run.records if record.conflict for name in record.conflict.layers))


@dataclass(frozen=True)
class Coefficients:
    """A rule's coefficients: clients × rounds for each layer or the whole model; NaN if a client was absent."""

    rounds: list[int]
    layers: dict[str, Floats]
    multipliers: dict[str, Floats]
    """CALM's λ in the same form; empty for other rules."""

    @property
    def drawn(self) -> dict[str, Floats]:
        """λ if there is one, as in FedCALM's Figures 6 and 7, otherwise the coefficients."""
        return self.multipliers or self.layers


def coefficients(run: LoadedRun, most: int) -> Coefficients | None:
    """Coefficients in at most ``most`` of the run's rounds; only their lines of a large file are parsed."""
    rounds = thin([record.round for record in run.records], most)
    place = {number: i for i, number in enumerate(rounds)}
    clients, names = number_of_clients(run), layer_names(run)
    found = Coefficients(rounds, {}, {})
    for record in run.coefficients(lambda number: number in place):
        places, members = _clients_among(record.ids, clients)
        for layers, given in ((found.layers, record.coefficients), (found.multipliers, record.multipliers or [])):
            rows = np.array(given, dtype=np.float64, ndmin=2)
            for name, row in zip(_row_names(names, record.group, len(given)), rows, strict=False):
                if name not in layers:
                    layers[name] = np.full((clients, len(rounds)), np.nan)
                layers[name][members, place[record.round]] = row[places]
    return found if found.layers else None


def coefficient_rows(run: LoadedRun) -> int:
    """Number of layers with their own coefficients."""
    first = next(run.coefficients(), None)
    return 0 if first is None else len(first.coefficients)


def _row_names(layers: list[str], group: str, rows: int) -> list[str]:
    """Names of the rows of a coefficient matrix: the group's layers, or the whole model."""
    prefix = f"{group}/" if group else ""
    if rows == 1:
        return [f"{prefix}whole model"]
    names = [name for name in layers if name.startswith(prefix)]
    return names if len(names) == rows else []


def _clients_among(ids: list[Any], clients: int) -> tuple[list[int], list[int]]:
    """Positions and ids of clients; remembered updates of earlier rounds have names instead of ids."""
    places = [i for i, name in enumerate(ids) if isinstance(name, int) and 0 <= name < clients]
    return places, [ids[i] for i in places]


def cosines(run: LoadedRun) -> dict[int, Floats]:
    """Cosines of the clients' updates, clients × clients by round; NaN if one of the two was absent."""
    clients = number_of_clients(run)
    by_round: dict[int, Floats] = {}
    for record in run.cosines():
        places, members = _clients_among(record.ids, clients)
        if len(places) == len(record.ids):
            matrix = by_round.setdefault(record.round, np.full((clients, clients), np.nan))
            matrix[np.ix_(members, members)] = np.array(record.cosines, dtype=np.float64)
    return by_round


def number_of_clients(run: LoadedRun) -> int:
    return int(run.options["clients"])
