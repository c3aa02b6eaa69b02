"""What the page's plots are drawn from: one JSON value, rounded, thinned and packed for the sake of large studies."""

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from comity._errors import one_line
from comity.config import MEAN
from comity.report._choice import Choices
from comity.report._series import (
    Coefficients,
    Floats,
    RoundNumber,
    against,
    coefficient_rows,
    coefficients,
    conflict,
    conflict_by_layer,
    layer_names,
    metric,
    number_of_clients,
    over_rounds,
    thin,
)
from comity.report._why import Agreement, overlap
from comity.results import Cell, Difference, LoadedRun, LoadedStudy, Spread
from comity.results.columns import CONFLICT
from comity.results.conditions import component_of, show
from comity.results.schema import (
    ALL,
    AUC,
    BALANCED,
    COMMON,
    LOSS,
    OWN,
    SOME,
    TEST_SAMPLES,
    TRAINING_SAMPLES,
    VALIDATION,
    PartitionTable,
    Result,
)

POINTS = 160  # of a curve; more than a screen shows
COLUMNS = 120  # rounds of a heat map
WEIGHTS = 4_000_000  # bytes for all rules' coefficients together, before base64
COSINES = 2_000_000  # bytes for all cosine matrices together
ENDS = 3  # layers kept at either end where all of them are too many, as FedCALM's Figure 7 has it

CURVES: dict[str, RoundNumber] = {
    "acc": metric(OWN),
    "worst": metric(OWN, "worst10"),
    "balanced": metric(BALANCED),
    "auc": metric(AUC),
    "val": metric(VALIDATION),
    "common": metric(COMMON),
    "S": metric(SOME),
    "G": metric(ALL),
    "test": metric(LOSS),
    "loss": lambda record: record.train_loss,
    "conflict": conflict,
    "against": against,
    "mean_against": lambda record: against(record, of_mean=True),
}
MEASURED_LAST = ("S", "G", "balanced", "auc")
"""Curves that are none where the last round alone was measured."""
NUMBERS = {"acc": (OWN, "mean"), "S": (SOME, "mean"), "G": (ALL, "mean"), "worst": (OWN, "worst10")}
COSTS: dict[str, Callable[[Result], float]] = {
    "train": lambda result: result.seconds.train / result.last.round,
    "aggregate": lambda result: result.seconds.aggregate / result.last.round,
    "evaluate": lambda result: result.seconds.evaluate / result.last.round,
    "down": lambda result: result.bytes_per_round.down / 1e6,
    "up": lambda result: result.bytes_per_round.up / 1e6,
}
"""Seconds and megabytes of a round."""


def payload(study: LoadedStudy) -> dict[str, Any]:
    """Everything for the plots. ``cells`` and ``runs`` point at each other by their places."""
    weights, cosines = _Weights(study), _Cosines(study)
    partitions = _Partitions()
    places = {id(cell): place for place, cell in enumerate(study.cells)}
    cells: list[dict[str, Any]] = []
    runs: list[dict[str, Any]] = []
    for cell in study.cells:
        entry = _cell(cell, study.varying.keys) | {"setting": study.settings.index(cell.setting), "runs": []}
        entry["base"] = None if cell.base is None else places[id(cell.base)]
        for run in cell.runs.values():
            entry["runs"].append(len(runs))
            runs.append(_run(cell, run) | cosines.of(cell, run) | {"cell": len(cells), "w": weights.of(run)})
            if run.partition is not None:
                runs[-1] |= {"part": partitions.place(run.partition), "overlap": several(overlap(run.partition), 3)}
        cells.append(entry)
    conditions = [key for key in study.varying.keys if component_of(key) not in ("method", "rule")]
    return {
        "settings": [
            {"label": setting.label, "options": {key: _value(setting.options.get(key), key) for key in conditions}}
            for setting in study.settings
        ],
        "varying": [{"key": key, "name": key.rpartition(".")[2].replace("_", " ")} for key in study.varying.keys],
        "base": study.base_label,
        "cells": cells,
        "runs": runs,
        "partitions": partitions.tables,
    }


def digits(value: float | None, places: int = 4) -> float | None:
    """Rounded, and null for what is not a number: JSON knows no NaN."""
    return None if value is None or not math.isfinite(value) else round(value, places)


def several(values: Iterable[float], places: int = 4) -> list[float | None]:
    return [digits(float(value), places) for value in values]


class _Partitions:
    """Each partition once, however many runs have it."""

    def __init__(self) -> None:
        self.tables: list[dict[str, Any]] = []
        self._places: dict[str, int] = {}

    def place(self, partition: PartitionTable) -> int:
        key = f"{partition.name} {partition.client_names} {partition.class_names} {partition.counts}"
        if key not in self._places:
            self._places[key] = len(self.tables)
            table = {"name": partition.name, "how": partition.partition, "counts": partition.counts}
            named = {"clients": _own_names(partition.client_names), "classes": _own_names(partition.class_names)}
            self.tables.append(table | named)
        return self._places[key]


def _own_names(names: Sequence[str]) -> list[str]:
    """Empty where they are the numbers that there are anyway."""
    own = ["" if name == str(i) else one_line(name, 40) for i, name in enumerate(names)]
    return own if any(own) else []


# Cells.


def _cell(cell: Cell, varying: Sequence[str]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, (metric_name, how) in NUMBERS.items():
        numbers[name] = _spread(cell.spread(lambda run, m=metric_name, h=how: run.metric(m, h)))  # type: ignore[misc]
    for name, cost in COSTS.items():
        spread = mean_cost(cell, cost)
        numbers[name] = None if spread is None else digits(spread.mean, 6)
    rate = CONFLICT.spread(cell)
    numbers["conflict"] = None if rate is None else digits(rate.mean / 100)
    numbers["conflict_error"] = digits(CONFLICT.error(cell) / 100)
    numbers["gain"] = _difference(cell.gain)
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
        "diff": _difference(cell.difference),
        "curves": curves(cell),
        "layers": _layers(cell),
    }


def mean_cost(cell: Cell, cost: Callable[[Result], float]) -> Spread | None:
    return cell.spread(lambda run: math.nan if run.result is None else cost(run.result))


def _spread(spread: Spread | None) -> list[float | None] | None:
    return None if spread is None else [digits(spread.mean), digits(spread.std)]


def _difference(difference: Difference | None) -> list[float | None] | None:
    """As a share, not in points; half the interval's width beside it."""
    if difference is None:
        return None
    return [digits(difference.mean / 100, 6), None if difference.half is None else digits(difference.half / 100, 6)]


def _value(option: Any, key: str) -> Any:
    return option if isinstance(option, (int, float)) and not isinstance(option, bool) else show(option, key)


def curves(cell: Cell) -> dict[str, Any]:
    """Mean and standard deviation over seeds, over the rounds that all of them have done."""
    runs = [run for run in cell.shown_runs if run.records]
    if not runs:
        return {}
    last = min(run.rounds_done for run in runs)
    drawn = {}
    for name, number in CURVES.items():
        tables = [table for run in runs if (table := _by_round(run, number, last))]
        common = sorted(set.intersection(*map(set, tables))) if tables else []
        if len(common) < (2 if name in MEASURED_LAST else 1):
            continue
        rounds = thin(common, POINTS)
        values = np.array([[table[round] for round in rounds] for table in tables])
        drawn[name] = {
            "r": rounds,
            "s": several(_spent(runs, lambda r: r.seconds.train + r.seconds.aggregate, rounds), 2),
            "b": several(_spent(runs, lambda r: (r.bytes.down + r.bytes.up) / 1e6, rounds), 3),
            "m": several(values.mean(0)),
            "d": several(values.std(0, ddof=1)) if len(tables) > 1 else None,
            "n": len(tables),
        }
    return drawn


def _by_round(run: LoadedRun, number: RoundNumber, last: int) -> dict[int, float]:
    values = {record.round: number(record) for record in run.records if record.round <= last}
    return {round: value for round, value in values.items() if not math.isnan(value)}


def _spent(runs: Sequence[LoadedRun], number: RoundNumber, rounds: Sequence[int]) -> Floats:
    """A cost from the start to the end of each round, a mean over runs."""
    totals = []
    for run in runs:
        sums = np.cumsum(np.nan_to_num(over_rounds(run, number)))
        by_round = {record.round: total for record, total in zip(run.records, sums, strict=True)}
        totals.append([by_round[round] for round in rounds])
    return np.asarray(np.mean(totals, axis=0), dtype=np.float64)


def _layers(cell: Cell) -> dict[str, Any] | None:
    """Conflict rate of each layer over rounds, a mean over seeds; 0 to 250 stands for 0 to 1, 255 for not measured."""
    runs = [run for run in cell.shown_runs if layer_names(run)]
    if not runs:
        return None
    last = min(run.rounds_done for run in runs)
    names = layer_names(runs[0])
    rounds = thin([record.round for record in runs[0].records if record.round <= last], COLUMNS)
    stack = np.full((len(runs), len(names), len(rounds)), np.nan)
    for i, run in enumerate(runs):
        rates = conflict_by_layer(run)
        place = {record.round: j for j, record in enumerate(run.records)}
        columns = [place[number] for number in rounds if number in place]
        for j, name in enumerate(names):
            if name in rates and len(columns) == len(rounds):
                stack[i, j] = rates[name][columns]
    known = ~np.isnan(stack)
    mean = np.where(known, stack, 0).sum(0) / np.maximum(known.sum(0), 1)
    packed = np.where(known.any(0), np.round(250 * mean), 255)
    return {"names": names, "rounds": rounds, "data": pack(packed)}


def pack(values: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(values).astype(np.uint8).tobytes()).decode()


# Runs.


def _run(cell: Cell, run: LoadedRun) -> dict[str, Any]:
    ids, joined, alone, transfer = run.client_ids, run.by_client(OWN), cell.alone(run), cell.transfer(run)
    parts = run.result.contributions if run.result else {}
    return {
        "seed": run.seed,
        "done": run.finished,
        "round": run.rounds_done,
        "rounds": run.options["rounds"],
        "ids": ids,
        "acc": several(joined.get(client, math.nan) for client in ids),
        "alone": several(alone.get(client, math.nan) for client in ids) if transfer else None,
        "gain": several((transfer.gain.get(client, math.nan) for client in ids), 6) if transfer else None,
        "harmed": transfer.harmed if transfer else [],
        "sure": _beyond_chance(cell, run),
        "only": [[transfer.only_local.get(i), transfer.only_joined.get(i)] for i in ids] if transfer else None,
        "against": _against(run),
        "contribution": several(parts.get(client, math.nan) for client in ids) if parts else None,
        "train": several(run.evaluation.get(TRAINING_SAMPLES, [math.nan] * len(ids)), 0),
        "test": several(run.evaluation.get(TEST_SAMPLES, [math.nan] * len(ids)), 0),
        "bad": run.result.malicious if run.result else [],
        "choice": _choice(run),
    }


def _choice(run: LoadedRun) -> dict[str, Any] | None:
    """Of a rule that chooses among others; 0 to 250 stands for a weight of 0 to 1."""
    choices = Choices.of(run)
    if choices is None:
        return None
    rounds, taken = thin(choices.rounds, COLUMNS), choices.taken
    columns = [choices.rounds.index(round) for round in rounds]
    asked = thin(sorted(choices.verdicts), COLUMNS)
    return {
        "names": choices.names,
        "rounds": rounds,
        "taken": [taken[column] for column in columns],
        "weights": pack(np.round(250 * np.clip(choices.weights[:, columns], 0, 1))),
        "asked": asked,
        "verdicts": [
            {name: [digits(told.change, 5), told.harmed] for name, told in choices.verdicts[round].items()}
            for round in asked
        ],
        "words": choices.sentence,
    }


def _beyond_chance(cell: Cell, run: LoadedRun) -> list[int] | None:
    """As the table counts them, over all seeds; ``None`` where that is not known."""
    if not run.finished or cell.balance is None or not cell.balance.counted:
        return None
    return [harm.client for harm in cell.balance.beyond_chance if harm.seed in (None, run.seed)]


def _against(run: LoadedRun) -> list[list[int]] | None:
    """For each client: rounds whose step went against it, and rounds in all that it was in; ``None`` if not noted."""
    clients = number_of_clients(run)
    times = [[0, 0] for _ in range(clients)]
    for record in run.records:
        if record.against is not None:
            if len(record.against.rule_ids) < record.against.rule:
                return None
            for client in record.cohort:
                times[client][1] += client not in record.lost and client not in record.failed
            for client in record.against.rule_ids:
                times[client][0] += 1
    return times if any(total for _, total in times) else None


class _Cosines:
    """Cosines of updates within the page's budget: all runs' where they fit, else those of one seed of each cell."""

    def __init__(self, study: LoadedStudy) -> None:
        self.held, self.single = cosine_budget(study)

    def of(self, cell: Cell, run: LoadedRun) -> dict[str, Any]:
        agreement = None if cell.local else Agreement.of(run)
        if agreement is None:
            return {}
        agree = {"agree": several(agreement.of_clients, 3)}
        if id(run) not in self.held:
            return agree
        rounds = thin(sorted(agreement.rounds), self.single) if self.single else []
        return agree | {
            "cos": {
                "n": len(agreement.mean),
                "mean": _pack_cosines(agreement.mean),
                "rounds": rounds,
                "each": [_pack_cosines(agreement.rounds[number]) for number in rounds],
                "error": max(record.error for record in run.cosines()),
            }
        }


def _pack_cosines(matrix: Floats) -> str:
    """0 to 240 stands for -1 to 1, 255 for a pair that was not there."""
    return pack(np.where(np.isnan(matrix), 255, np.round(120 + 120 * np.clip(np.nan_to_num(matrix), -1, 1))))


def cosine_budget(study: LoadedStudy) -> tuple[set[int], int]:
    """Whose cosines the page holds (by ``id``), and how many single rounds of each beside their mean.

    All runs' where they fit; else those of one seed of each cell, as many as fit.
    """
    cells = [cell for cell in study.cells if not cell.local and cell.runs]
    first = [cell.shown_runs[0] for cell in cells]
    runs = [run for cell in cells for run in cell.runs.values()]
    if sum(map(_matrix_size, runs)) > COSINES:
        room = np.cumsum([_matrix_size(run) for run in first]) <= COSINES
        runs = [run for run, fits in zip(first, room, strict=True) if fits]
    whole = sum(map(_matrix_size, runs))
    return {id(run) for run in runs}, min(12, COSINES // whole - 1) if whole else 0


def _matrix_size(run: LoadedRun) -> int:
    return number_of_clients(run) ** 2


class _Weights:
    """Rules' coefficients within the page's budget: fewer rounds first, then one seed of each, then fewer layers."""

    def __init__(self, study: LoadedStudy) -> None:
        cells = [cell for cell in study.cells if not cell.local and cell.runs]
        rows = {id(run): coefficient_rows(run) for cell in cells for run in cell.runs.values()}
        first = [cell.shown_runs[0] for cell in cells]
        sizes = {
            id(run): rows[id(run)] * number_of_clients(run) for cell in cells for run in cell.runs.values()
        }  # bytes for each round
        self.wanted = set(sizes)
        self.ends = False
        if sum(sizes.values()) * COLUMNS // 2 > WEIGHTS:
            self.wanted = {id(run) for run in first}
        self.columns = WEIGHTS // max(1, sum(sizes[key] for key in self.wanted))
        if self.columns < COLUMNS // 3:
            self.ends = True
            narrow = sum(min(rows[id(run)], 2 * ENDS) * number_of_clients(run) for run in first)
            self.columns = WEIGHTS // max(1, narrow)
        self.columns = max(8, min(COLUMNS, self.columns))

    def of(self, run: LoadedRun) -> dict[str, Any] | None:
        if id(run) not in self.wanted:
            return None
        maps = coefficients(run, self.columns)
        if maps is None:
            return None
        layers = maps.drawn
        left_out = 0
        if self.ends and len(layers) > 2 * ENDS:
            names = list(layers)
            layers = {name: layers[name] for name in (*names[:ENDS], *names[-ENDS:])}
            left_out = len(names) - len(layers)
        return {
            "rounds": maps.rounds,
            "names": list(layers),
            "left": left_out,
            "lambda": bool(maps.multipliers),
            "share": several(_shares(maps)),
            "maps": [_pack_weights(values) for values in layers.values()],
        }


def _shares(maps: Coefficients) -> Floats:
    """Each client's part of all the weight, a mean over layers and the rounds that it was in."""
    parts = []
    for values in maps.layers.values():
        size = np.abs(values)
        total = np.nansum(size, axis=0, keepdims=True)
        parts.append(size / np.where(total > 0, total, np.nan))
    stack = np.concatenate(parts, axis=1)
    known = ~np.isnan(stack)
    return np.asarray(np.where(known, stack, 0).sum(1) / np.maximum(known.sum(1), 1), dtype=np.float64)


def _pack_weights(values: Floats) -> list[Any]:
    """The largest size and a byte each: 255 absent, otherwise 127 ± the square root, so that small ones stay exact."""
    known = values[~np.isnan(values)]
    top = float(np.abs(known).max()) if len(known) else 0.0
    scaled = np.nan_to_num(values) / (top or 1.0)
    levels = np.round(127 + 127 * np.sign(scaled) * np.sqrt(np.abs(scaled)))
    return [float(f"{top:.5g}"), pack(np.where(np.isnan(values), 255, levels))]
