"""The data of the page's plots: one JSON value, rounded, thinned and packed to stay small."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from comity._errors import one_line
from comity._overlay import owner
from comity.compare import CONFLICT, Cell, Difference, LoadedStudy, Spread
from comity.config import MEAN
from comity.metrics import ALL, OWN, SOME, Metric
from comity.report._binary import binary
from comity.report._choice import choices
from comity.report._curves import curve_of, curves_of
from comity.report._maps import CosineMaps, WeightMaps, digits, layers, several
from comity.report._series import RoundNumber, number_of_clients, thin
from comity.report._why import overlap
from comity.report._words import client_name
from comity.results import LoadedRun, PartitionTable, Result, show

POINTS = 160  # points per curve; more than a screen shows

NUMBERS = {"acc": (OWN.key, "mean"), "S": (SOME.key, "mean"), "G": (ALL.key, "mean"), "worst": (OWN.key, "worst10")}
COSTS: dict[str, Callable[[Result], float]] = {
    "train": lambda result: result.seconds.train / result.last.round,
    "aggregate": lambda result: result.seconds.aggregate / result.last.round,
    "evaluate": lambda result: result.seconds.evaluate / result.last.round,
    "down": lambda result: result.bytes_per_round.down / 1e6,
    "up": lambda result: result.bytes_per_round.up / 1e6,
}
"""Seconds and megabytes per round."""
ROW = {"train": 0, "tests": 0, "value": 4, "local": 4, "gain": 6, "low": 6, "high": 6, "detectable": 4}
"""Numbers of a client's row, with their decimal places."""


def payload(study: LoadedStudy) -> dict[str, Any]:
    """The data for all plots. ``cells``, ``runs`` and ``partitions`` refer to each other by index."""
    weights, cosines = WeightMaps(study), CosineMaps(study)
    partitions: dict[str, dict[str, Any]] = {}
    cells: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for cell in study.cells:
        entry = _cell(cell, study.varying.keys) | {"setting": study.settings.index(cell.setting), "runs": []}
        entry["clients"] = _clients(cell)
        for run in cell.runs.values():
            entry["runs"].append(len(runs))
            runs.append(_run(run) | cosines.of(cell, run) | {"cell": len(cells), "w": weights.of(run)})
            if run.partition is not None:
                table = _partition(run.partition)
                partitions.setdefault(str(table), table)  # each partition once, however many runs have it
                part = list(partitions).index(str(table))
                runs[-1] |= {"part": part, "overlap": several(overlap(run.partition), 3)}
        cells.append(entry)
    conditions = [key for key in study.varying.keys if owner(key) not in ("method", "rule")]
    return {
        "settings": [
            {
                "label": setting.label,
                "options": {key: _value(setting.options.get(key), key) for key in conditions},
                "metric": _metric(setting.metric) | {"margin": setting.margin},
            }
            for setting in study.settings
        ],
        "varying": [{"key": key, "name": key.rpartition(".")[2].replace("_", " ")} for key in study.varying.keys],
        "base": study.base_label,
        "curves": {key: curve[:2] for key, curve in curves_of(study.runs).items() if curve.label},
        "cells": cells,
        "runs": runs,
        "partitions": list(partitions.values()),
        "binary": binary(study.verdict.cell) if study.verdict.cell else {"clients": []},
    }


def _metric(metric: Metric) -> dict[str, Any]:
    """The metric that decides; the page shows a share in percent, and its gains in points."""
    share = metric.unit == "%"
    return {
        "label": metric.label,
        "share": share,
        "digits": 1 if share else metric.digits,
        "curve": curve_of(metric),
    }


def _partition(partition: PartitionTable) -> dict[str, Any]:
    return {
        "name": partition.name,
        "how": partition.partition,
        "counts": partition.counts,
        "clients": _own_names(partition.client_names),
        "classes": _own_names(partition.class_names),
    }


def _own_names(names: Sequence[str]) -> list[str]:
    """Names, or empty if they are just the indices."""
    own = ["" if name == str(i) else one_line(name, 40) for i, name in enumerate(names)]
    return own if any(own) else []


# Cells.


def _cell(cell: Cell, varying: Sequence[str]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, (metric_name, how) in (NUMBERS | {"value": (cell.setting.metric.key, "mean")}).items():
        numbers[name] = _spread(cell.spread(lambda run, m=metric_name, h=how: run.metric(m, h)))  # type: ignore[misc]
    for name, cost in COSTS.items():
        spread = cell.spread(lambda run, c=cost: math.nan if run.result is None else c(run.result))  # type: ignore[misc]
        numbers[name] = None if spread is None else digits(spread.mean, 6)
    rate = CONFLICT.of(cell)
    numbers["conflict"] = None if rate is None else digits(rate.mean / 100)
    numbers["conflict_error"] = digits(CONFLICT.error(cell) / 100)
    options = cell.setting.options | cell.options
    return {
        "method": cell.method_label,
        "methodName": cell.method,
        "rule": cell.rule_label,
        "ruleName": cell.rule,
        "plain": cell.rule == MEAN,
        "ref": cell.local,
        "label": cell.label,
        "options": {key: _value(options[key], key) for key in varying if key in options and not cell.local},
        "numbers": numbers,
        "mean": _mean(cell),
        "diff": _difference(cell.difference, cell.setting.metric.points),
        "curves": curves(cell),
        "layers": layers(cell),
    }


def _mean(cell: Cell) -> dict[str, Any] | None:
    """The effect of joining on the mean over clients, in the form of a client's row."""
    if cell.gain is None:
        return None
    numbers = {name: digits(getattr(cell.gain, name), 6) for name in ("gain", "low", "high", "detectable")}
    return numbers | {"state": cell.state}


def _spread(spread: Spread | None) -> list[float | None] | None:
    return None if spread is None else [digits(spread.mean), digits(spread.std)]


def _difference(difference: Difference | None, scale: float) -> list[float | None] | None:
    """A mean and half the width of its interval, in the metric's own unit."""
    if difference is None:
        return None
    low, high = difference.low, difference.high
    half = None if low is None or high is None else digits((high - low) / 2 / scale, 6)
    return [digits(difference.mean / scale, 6), half]


def _value(option: Any, key: str) -> Any:
    return option if isinstance(option, (int, float)) and not isinstance(option, bool) else show(option, key)


def curves(cell: Cell) -> dict[str, Any]:
    """Mean and standard deviation over seeds, for the rounds that all of them have finished."""
    runs = [run for run in cell.shown_runs if run.records]
    if not runs:
        return {}
    last = min(run.rounds_done for run in runs)
    spent = [_spent(run) for run in runs]
    drawn = {}
    for name, curve in curves_of(runs).items():
        tables = [table for run in runs if (table := _by_round(run, curve.number, last))]
        common = sorted(set.intersection(*map(set, tables))) if tables else []
        if len(common) < (2 if curve.rarely else 1):
            continue
        rounds = thin(common, POINTS)
        values = np.array([[table[round] for round in rounds] for table in tables])
        seconds, megabytes = np.mean([[costs[round] for round in rounds] for costs in spent], axis=0).T
        drawn[name] = {
            "r": rounds,
            "s": several(seconds, 2),
            "b": several(megabytes, 3),
            "m": several(values.mean(0)),
            "d": several(values.std(0, ddof=1)) if len(tables) > 1 else None,
            "n": len(tables),
        }
    return drawn


def _by_round(run: LoadedRun, number: RoundNumber, last: int) -> dict[int, float]:
    values = {record.round: number(record) for record in run.records if record.round <= last}
    return {round: value for round, value in values.items() if not math.isnan(value)}


def _spent(run: LoadedRun) -> dict[int, tuple[float, float]]:
    """Seconds and megabytes from the start to the end of each round."""
    seconds = megabytes = 0.0
    spent = {}
    for record in run.records:
        seconds += record.seconds.train + record.seconds.aggregate
        megabytes += (record.bytes.down + record.bytes.up) / 1e6
        spent[record.round] = seconds, megabytes
    return spent


# Clients and runs.


def _clients(cell: Cell) -> dict[str, list[Any]]:
    """The numbers of each client over all repetitions; for local training only its metric."""
    rows = cell.clients
    if rows and not cell.local:
        about = {name: [getattr(row, name) for row in rows] for name in ("seed", "state", "constant")}
        about |= {"id": [row.client for row in rows], "name": [client_name(row) for row in rows]}
        return about | {key: several((getattr(row, key) for row in rows), places) for key, places in ROW.items()}
    if compared := next((other.clients for other in cell.setting.cells if other.clients), None):
        found = [(row.client, row.seed, row.local) for row in compared] if cell.local else []
    else:
        key = cell.setting.metric.key
        found = [(client, run.seed, v) for run in cell.finished for client, v in run.by_client(key).items()]
    ids, seeds, values = zip(*found, strict=True) if found else ((), (), ())
    return {"id": list(ids), "seed": list(seeds), "value": several(values)}


def _run(run: LoadedRun) -> dict[str, Any]:
    return {
        "seed": run.seed,
        "done": run.finished,
        "round": run.rounds_done,
        "rounds": run.options["rounds"],
        "ids": run.client_ids,
        "against": _against(run),
        "bad": run.result.malicious if run.result else [],
        "choice": choices(run),
    }


def _against(run: LoadedRun) -> list[list[int]] | None:
    """For each client: rounds whose step increased its loss, and rounds it took part in; ``None`` if not recorded."""
    times = [[0, 0] for _ in range(number_of_clients(run))]
    for record in run.records:
        if record.against is not None:
            if len(record.against.rule_ids) < record.against.rule:
                return None
            for client in record.cohort:
                times[client][1] += client not in record.lost and client not in record.failed
            for client in record.against.rule_ids:
                times[client][0] += 1
    return times if any(total for _, total in times) else None
