"""The page's matrices, one byte per entry and within a size budget: cosines, coefficients, and conflict by layer."""

import base64
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from comity.compare import Cell, LoadedStudy
from comity.report._series import (
    Coefficients,
    Floats,
    coefficient_rows,
    coefficients,
    layer_names,
    mean_of_known,
    number_of_clients,
    thin,
)
from comity.report._why import Agreement
from comity.results import LoadedRun

COLUMNS = 120  # rounds of a heat map
WEIGHTS = 4_000_000  # bytes for the coefficients of all rules, before base64
COSINES = 2_000_000  # bytes for all cosine matrices together
ENDS = 3  # layers kept at either end if there are too many, as in FedCALM's Figure 7


def digits(value: float | None, places: int = 4) -> float | None:
    """Round a number; None for NaN and infinity, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else round(value, places)


def several(values: Iterable[float], places: int = 4) -> list[float | None]:
    return [digits(float(value), places) for value in values]


def pack(values: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(np.uint8).tobytes()).decode()


def _rivals(study: LoadedStudy) -> list[Cell]:
    return [cell for cell in study.cells if not cell.local and cell.runs]


def layers(cell: Cell) -> dict[str, Any] | None:
    """Conflict rate of each layer by round, averaged over seeds; 0 to 250 for 0 to 1, 255 if not measured."""
    runs = [run for run in cell.shown_runs if layer_names(run)]
    if not runs:
        return None
    last, names = min(run.rounds_done for run in runs), layer_names(runs[0])
    rounds = thin([record.round for record in runs[0].records if record.round <= last], COLUMNS)
    noted = [{record.round: record.conflict.layers for record in run.records if record.conflict} for run in runs]
    rates = [[[by.get(round, {}).get(name, math.nan) for round in rounds] for name in names] for by in noted]
    mean = mean_of_known(np.array(rates, dtype=np.float64), axis=0)
    return {"names": names, "rounds": rounds, "data": pack(np.where(np.isnan(mean), 255, np.round(250 * mean)))}


class CosineMaps:
    """Cosines of updates: of all runs if they fit, otherwise of one seed per cell, as many as fit."""

    def __init__(self, study: LoadedStudy) -> None:
        cells = _rivals(study)
        runs = [run for cell in cells for run in cell.runs.values()]
        if sum(map(_matrix_size, runs)) > COSINES:
            first = [cell.shown_runs[0] for cell in cells]
            room = np.cumsum(list(map(_matrix_size, first))) <= COSINES
            runs = [run for run, fits in zip(first, room, strict=True) if fits]
        whole = sum(map(_matrix_size, runs))
        self.held = {id(run) for run in runs}
        self.single_rounds = min(12, COSINES // whole - 1) if whole else 0
        """Number of single rounds per run that are kept beside their mean."""

    def of(self, cell: Cell, run: LoadedRun) -> dict[str, Any]:
        agreement = None if cell.local else Agreement.of(run)
        if agreement is None:
            return {}
        agree = {"agree": several(agreement.of_clients, 3)}
        if id(run) not in self.held:
            return agree
        rounds = thin(sorted(agreement.rounds), self.single_rounds) if self.single_rounds else []
        return agree | {
            "cos": {
                "n": len(agreement.mean),
                "mean": _pack_cosines(agreement.mean),
                "rounds": rounds,
                "each": [_pack_cosines(agreement.rounds[number]) for number in rounds],
                "error": max(record.error for record in run.cosines()),
            }
        }


def _matrix_size(run: LoadedRun) -> int:
    return number_of_clients(run) ** 2


def _pack_cosines(matrix: Floats) -> str:
    """Bytes 0 to 240 for −1 to 1, 255 for a missing pair."""
    return pack(np.where(np.isnan(matrix), 255, np.round(120 + 120 * np.clip(np.nan_to_num(matrix), -1, 1))))


class WeightMaps:
    """Coefficients of rules. If they are too many: fewer rounds, then one seed per cell, then fewer layers."""

    def __init__(self, study: LoadedStudy) -> None:
        cells = _rivals(study)
        rows = {id(run): coefficient_rows(run) for cell in cells for run in cell.runs.values()}
        clients = {id(run): number_of_clients(run) for cell in cells for run in cell.runs.values()}
        self.held, self.most_layers = set(rows), math.inf

        def bytes_per_round() -> int:
            return max(1, sum(int(min(rows[key], self.most_layers)) * clients[key] for key in self.held))

        if bytes_per_round() * COLUMNS // 2 > WEIGHTS:
            self.held = {id(cell.shown_runs[0]) for cell in cells}
        if WEIGHTS // bytes_per_round() < COLUMNS // 3:
            self.most_layers = 2 * ENDS
        self.columns = max(8, min(COLUMNS, WEIGHTS // bytes_per_round()))

    def of(self, run: LoadedRun) -> dict[str, Any] | None:
        maps = coefficients(run, self.columns) if id(run) in self.held else None
        if maps is None:
            return None
        names = list(maps.drawn)
        kept = names if len(names) <= self.most_layers else [*names[:ENDS], *names[-ENDS:]]
        return {
            "rounds": maps.rounds,
            "names": kept,
            "left": len(names) - len(kept),
            "lambda": bool(maps.multipliers),
            "share": several(_shares(maps)),
            "maps": [_pack_weights(maps.drawn[name]) for name in kept],
        }


def _shares(maps: Coefficients) -> Floats:
    """Each client's share of the total weight, averaged over layers and the rounds it took part in."""
    parts = []
    for values in maps.layers.values():
        total = np.nansum(np.abs(values), axis=0, keepdims=True)
        parts.append(np.abs(values) / np.where(total > 0, total, np.nan))
    return mean_of_known(np.concatenate(parts, axis=1), axis=1, empty=0.0)


def _pack_weights(values: Floats) -> list[Any]:
    """The largest magnitude, and a byte per entry: 255 absent, otherwise 127 ± its square root."""
    known = values[~np.isnan(values)]
    top = float(np.abs(known).max()) if len(known) else 0.0
    scaled = np.nan_to_num(values) / (top or 1.0)
    levels = np.round(127 + 127 * np.sign(scaled) * np.sqrt(np.abs(scaled)))
    return [float(f"{top:.5g}"), pack(np.where(np.isnan(values), 255, levels))]
