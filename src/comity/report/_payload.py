"""What the page's plots are drawn from: one JSON value, rounded, thinned and packed for the sake of large studies."""

import base64
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from comity.report._cells import Cell, Study, accuracy, show
from comity.report._read import Floats, Run, Weights, thin
from comity.report._statistics import Difference
from comity.report._why import Conflict, overlap

POINTS = 160  # of a curve; more than a screen shows
COLUMNS = 120  # rounds of a heat map
WEIGHTS = 4_000_000  # bytes for all rules' coefficients together, before base64
COSINES = 2_000_000  # bytes for all cosine matrices together
ENDS = 3  # layers kept at either end where all of them are too many, as FedCALM's Figure 7 has it

CURVES = {
    "acc": "eval/L-acc/mean",
    "worst": "eval/L-acc/worst10",
    "val": "eval/val-acc/mean",
    "common": "eval/global-acc/mean",
    "test": "eval/loss/mean",
    "loss": "train/loss",
    "conflict": "conflict",
}
"""Names on the page, and of the series in ``rounds.jsonl``."""

NUMBERS = {
    "acc": ("L-acc", "mean"),
    "S": ("S-acc", "mean"),
    "G": ("G-acc", "mean"),
    "worst": ("L-acc", "worst10"),
    "common": ("global-acc", "mean"),
}


def payload(study: Study) -> dict[str, Any]:
    """Everything for the plots. ``cells`` and ``runs`` point at each other by their places."""
    weights = _Weights(study)
    held, single = cosine_budget(study)
    partitions: dict[str, int] = {}
    tables: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    conditions = [key for key in study.varying if key.split(".")[0] not in ("method", "rule")]
    for number, setting in enumerate(study.settings):
        local = setting.local_accuracy()
        for cell in setting.cells:
            known = _cell(cell, study.varying)
            known |= {"setting": number, "runs": []}
            base = setting.base(cell)
            if base is not None:
                difference = Difference.of(cell.by_seed(accuracy, True), base.by_seed(accuracy, True))
                known["diff"] = None if difference is None else [digits(difference.mean), digits(difference.half)]
            gain = None if cell.reference else Difference.of(cell.by_seed(accuracy, True), local)
            known["numbers"]["gain"] = None if gain is None else [digits(gain.mean), digits(gain.half)]
            for run in cell.runs.values():
                known["runs"].append(len(runs))
                runs.append(_run(cell, run, single if id(run) in held else None))
                runs[-1] |= {"cell": len(cells), "w": weights.of(run)}
                if run.partition is not None:
                    key = f"{run.partition.name} {run.partition.counts.tolist()}"
                    if key not in partitions:
                        partitions[key] = len(tables)
                        about = {"name": run.partition.name, "how": run.partition.how}
                        tables.append(about | {"counts": run.partition.counts.tolist()})
                    runs[-1]["part"] = partitions[key]
            cells.append(known)
    return {
        "settings": [
            {"label": setting.label, "options": {key: _value(setting.options.get(key)) for key in conditions}}
            for setting in study.settings
        ],
        "varying": [{"key": key, "name": key.rpartition(".")[2].replace("_", " ")} for key in study.varying],
        "cells": cells,
        "runs": runs,
        "partitions": tables,
    }


def digits(value: float | None, places: int = 4) -> float | None:
    """Rounded, and null for what is not a number: JSON knows no NaN."""
    return None if value is None or not math.isfinite(value) else round(value, places)


def several(values: Iterable[float], places: int = 4) -> list[float | None]:
    return [digits(float(value), places) for value in values]


def _cell(cell: Cell, varying: Sequence[str]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, (metric, how) in NUMBERS.items():
        spread = cell.spread(lambda run, metric=metric, how=how: run.metric(metric, how))  # type: ignore[misc]
        numbers[name] = [digits(spread.mean), digits(spread.std)] if spread.n else None
    costs = {
        "train": "seconds/train",
        "aggregate": "seconds/aggregate",
        "evaluate": "seconds/evaluate",
        "conflict": "conflict",
        "down": "bytes/down",
        "up": "bytes/up",
    }
    for name, series in costs.items():
        spread = cell.spread(lambda run, series=series: run.mean(series))  # type: ignore[misc]
        scale = 1e-6 if series.startswith("bytes") else 1.0
        numbers[name] = digits(spread.mean * scale, 6)
    return {
        "method": cell.method_label,
        "methodName": cell.method.rpartition(".")[2],
        "rule": cell.rule_label if cell.rule else "",
        "ruleName": cell.rule.rpartition(".")[2],
        "plain": cell.rule == "Mean",
        "ref": cell.reference,
        "label": cell.label,
        "options": {key: _value(cell.options[key]) for key in varying if key in cell.options and not cell.reference},
        "numbers": numbers,
        "curves": curves(cell),
        "layers": _layers(cell),
    }


def _value(option: Any) -> Any:
    return option if isinstance(option, (int, float)) and not isinstance(option, bool) else show(option)


def curves(cell: Cell) -> dict[str, Any]:
    """Mean and standard deviation over seeds, over the rounds that all of them have done."""
    runs = [run for run in cell.counted if run.rounds]
    if not runs:
        return {}
    last = min(run.round for run in runs)
    found = {}
    for name, series in CURVES.items():
        tables = [_by_round(run, series, last) for run in runs if series in run.series]
        common = sorted(set.intersection(*map(set, tables))) if tables else []
        if not common:
            continue
        rounds = thin(common, POINTS)
        values = np.array([[table[number] for number in rounds] for table in tables])
        spent = {x: np.mean([_spent(run, x, rounds) for run in runs], axis=0) for x in ("seconds", "bytes")}
        found[name] = {
            "r": rounds,
            "s": several(spent["seconds"], 2),
            "b": several(spent["bytes"] / 1e6, 3),
            "m": several(values.mean(0)),
            "d": several(values.std(0, ddof=1)) if len(tables) > 1 else None,
            "n": len(tables),
        }
    return found


def _by_round(run: Run, series: str, last: int) -> dict[int, float]:
    pairs = zip(run.rounds, run.series[series].tolist(), strict=True)
    return {number: value for number, value in pairs if number <= last and not math.isnan(value)}


def _spent(run: Run, what: str, rounds: Sequence[int]) -> Floats:
    """Seconds of training and aggregation, or bytes, from the start to the end of each round."""
    parts = {"seconds": ("seconds/train", "seconds/aggregate"), "bytes": ("bytes/down", "bytes/up")}[what]
    total = np.zeros(len(run.rounds))
    for part in parts:
        total += np.nan_to_num(run.series.get(part, np.zeros(len(run.rounds))))
    sums = dict(zip(run.rounds, np.cumsum(total), strict=True))
    return np.array([sums[number] for number in rounds])


def _layers(cell: Cell) -> dict[str, Any] | None:
    """Conflict rate of each layer over rounds, a mean over seeds; 0 to 250 stands for 0 to 1, 255 for not measured."""
    runs = [run for run in cell.counted if run.conflict]
    if not runs:
        return None
    last = min(run.round for run in runs)
    names = list(runs[0].conflict)
    rounds = thin([number for number in runs[0].rounds if number <= last], COLUMNS)
    stack = np.full((len(runs), len(names), len(rounds)), np.nan)
    for i, run in enumerate(runs):
        place = {number: j for j, number in enumerate(run.rounds)}
        columns = [place[number] for number in rounds if number in place]
        for j, name in enumerate(names):
            if name in run.conflict and len(columns) == len(rounds):
                stack[i, j] = run.conflict[name][columns]
    known = ~np.isnan(stack)
    mean = np.where(known, stack, 0).sum(0) / np.maximum(known.sum(0), 1)
    packed = np.where(known.any(0), np.round(250 * mean), 255)
    return {"names": names, "rounds": rounds, "data": pack(packed)}


def pack(values: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(np.uint8).tobytes()).decode()


def _run(cell: Cell, run: Run, single: int | None) -> dict[str, Any]:
    """``single``: how many rounds' cosines besides their mean; ``None`` for no cosines at all."""
    clients = cell.clients(run)
    known: dict[str, Any] = {
        "seed": run.seed,
        "done": run.finished,
        "round": run.round,
        "rounds": run.planned,
        "ids": clients.ids,
        "acc": several(clients.joined),
        "alone": None if np.isnan(clients.alone).all() else several(clients.alone),
        "train": several(clients.train, 0),
        "test": several(clients.test, 0),
        "bad": list(run.result.get("malicious", [])) if run.result else [],
    }
    if run.partition is not None:
        known["overlap"] = several(overlap(run.partition), 3)
    conflict = None if cell.reference else Conflict.of(run)
    if conflict is not None:
        known["agree"] = several(conflict.agreement, 3)
    if conflict is not None and single is not None:
        rounds = thin(sorted(conflict.rounds), single) if single else []
        known["cos"] = {
            "n": len(conflict.mean),
            "mean": _pack_cosines(conflict.mean),
            "rounds": rounds,
            "each": [_pack_cosines(conflict.rounds[number]) for number in rounds],
        }
    return known


def _pack_cosines(matrix: Floats) -> str:
    """0 to 240 stands for -1 to 1, 255 for a pair that was not there."""
    return pack(np.where(np.isnan(matrix), 255, np.round(120 + 120 * np.clip(np.nan_to_num(matrix), -1, 1))))


def cosine_budget(study: Study) -> tuple[set[int], int]:
    """Whose cosines the page holds (by ``id``), and how many single rounds of each beside their mean.

    All runs' where they fit; else those of one seed of each cell, as many as fit.
    """
    rivals = [cell for cell in study.cells if not cell.reference and cell.counted]
    first = [cell.counted[0] for cell in rivals]
    runs = [run for cell in rivals for run in cell.runs.values()]
    if sum(map(_matrix_size, runs)) > COSINES:
        room = np.cumsum([_matrix_size(run) for run in first]) <= COSINES
        runs = [run for run, fits in zip(first, room, strict=True) if fits]
    whole = sum(map(_matrix_size, runs))
    return {id(run) for run in runs}, min(12, COSINES // whole - 1) if whole else 0


def _matrix_size(run: Run) -> int:
    return int(run.config.get("clients", 0)) ** 2


class _Weights:
    """Rules' coefficients within the page's budget: fewer rounds first, then one seed of each, then fewer layers."""

    def __init__(self, study: Study) -> None:
        cells = [cell for cell in study.cells if not cell.reference]
        sizes = {id(run): _map_size(run) for cell in cells for run in cell.runs.values()}
        first = [cell.counted[0] for cell in cells if cell.counted]
        self.wanted = set(sizes)
        self.ends = False
        if sum(sizes.values()) * COLUMNS // 2 > WEIGHTS:
            self.wanted = {id(run) for run in first}
        self.columns = WEIGHTS // max(1, sum(sizes[key] for key in self.wanted))
        if self.columns < COLUMNS // 3:
            self.ends = True
            narrow = {id(run): min(run.weight_rows, 2 * ENDS) * int(run.config.get("clients", 0)) for run in first}
            self.columns = WEIGHTS // max(1, sum(narrow.values()))
        self.columns = max(8, min(COLUMNS, self.columns))

    def of(self, run: Run) -> dict[str, Any] | None:
        if id(run) not in self.wanted:
            return None
        weights = run.weights(self.columns)
        if weights is None:
            return None
        layers = weights.layers
        left_out = 0
        if self.ends and len(layers) > 2 * ENDS:
            names = list(layers)
            layers = {name: layers[name] for name in (*names[:ENDS], *names[-ENDS:])}
            left_out = len(names) - len(layers)
        return {
            "rounds": weights.rounds,
            "names": list(layers),
            "left": left_out,
            "share": several(_shares(weights)),
            "maps": [_pack_weights(values) for values in layers.values()],
        }


def _shares(weights: Weights) -> Floats:
    """Each client's part of all the weight, a mean over layers and the rounds that it was in."""
    parts = []
    for values in weights.layers.values():
        size = np.abs(values)
        total = np.nansum(size, axis=0, keepdims=True)
        parts.append(size / np.where(total > 0, total, np.nan))
    stack = np.concatenate(parts, axis=1)
    known = ~np.isnan(stack)
    return np.asarray(np.where(known, stack, 0).sum(1) / np.maximum(known.sum(1), 1), dtype=np.float64)


def _map_size(run: Run) -> int:
    """Bytes of a run's coefficients for each round."""
    return run.weight_rows * int(run.config.get("clients", 0))


def _pack_weights(values: Floats) -> list[Any]:
    """The largest size and a byte each: 255 absent, otherwise 127 ± the square root, so that small ones stay exact."""
    known = values[~np.isnan(values)]
    top = float(np.abs(known).max()) if len(known) else 0.0
    scaled = np.nan_to_num(values) / (top or 1.0)
    levels = np.round(127 + 127 * np.sign(scaled) * np.sqrt(np.abs(scaled)))
    return [float(f"{top:.5g}"), pack(np.where(np.isnan(values), 255, levels))]
