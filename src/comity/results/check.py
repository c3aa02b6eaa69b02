"""Checks on the content of a run folder.

Reading a record checks types and ranges. The checks here need several fields or files: increasing rounds, the same
clients everywhere, metrics in range. A damaged or forged folder must not become a number in a table.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from comity._errors import ComityError
from comity._options import convert
from comity._options import options as declared
from comity.config import COMPONENTS, UNNAMED, Config
from comity.metrics import OWN, Metric
from comity.results import schema
from comity.results.records import require
from comity.results.schema import Columns, Metrics, PartitionTable, Result, RoundRecord


class DamagedRun(ComityError):
    """A run folder that cannot be read, or has impossible content."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


def check_options(entries: Mapping[str, Any]) -> None:
    for name in ("seed", "rounds", "clients"):
        require(type(entries.get(name)) is int, f"{schema.CONFIG}: {name} should be a whole number")
    for name, value in entries.items():
        require(name in declared(Config), f"{schema.CONFIG} has {str(name)[:40]!r}, which is no option")
        if name in COMPONENTS:
            named = isinstance(value, Mapping) and isinstance(value.get("name"), str)
            require(named or (name in UNNAMED and value is None), f"{schema.CONFIG}: {name} has no name")
            for key, inner in (value or {}).items():
                require(
                    isinstance(key, str) and key.isprintable() and _plain(inner),
                    f"{schema.CONFIG}: {name}.{str(key)[:40]} is invalid",
                )
        else:
            convert(value, declared(Config)[name].type, f"{schema.CONFIG}: {name}")


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) < 1000 and all(map(_plain, value))
    return value is None or isinstance(value, (str, bool)) or (isinstance(value, (int, float)) and abs(value) < 2**63)


def check_partition(table: PartitionTable, options: Mapping[str, Any]) -> None:
    trained = options["clients"] - int(options.get("newcomers", 0))
    require(len(table.counts) == trained, f"{schema.PARTITION} and {schema.CONFIG} differ in their clients")


class Checks:
    """Checks of one run's numbers."""

    def __init__(self, options: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
        self.clients = int(options["clients"])
        self.last_round = int(options["rounds"]) + int(options.get("refit") or 0)
        self.metrics = metrics

    def result(self, result: Result) -> None:
        name, last = schema.RESULT, result.last.round
        require(1 <= last <= self.last_round, f"{name}: the last round is {last} of {self.last_round}")
        require(result.best.round <= last, f"{name}: the best round comes after the last one")
        judged = [(result.clients, [result.last.metrics, result.best.metrics], result.transfer)]
        if (late := result.newcomers) is not None and late.clients:
            judged.append((late.clients, [late.metrics], late.transfer))
        seen = set(result.malicious)
        self._ids(seen, name)
        for columns, metrics, transfer in judged:
            for each in metrics:
                self._summaries(each, name)
            self.columns(columns, name)
            clients = set(map(int, columns[schema.CLIENT]))
            known = transfer is None or clients.issuperset(transfer.clients)
            require(known, f"{name}: transfer refers to unknown client ids")
            require(clients.isdisjoint(seen), f"{name}: a malicious client is judged, or a client twice")
            seen |= clients
        own, mean = result.clients.get(OWN.key, []), result.last.metrics.get(OWN.key)
        if mean is not None and own and not any(map(math.isnan, own)):
            require(abs(fmean(own) - mean.mean) < 1e-6, f"{name}: the mean of {OWN.key} is not that of its clients")

    def columns(self, columns: Columns, name: str) -> None:
        """One evaluation of all clients."""
        ids = columns.get(schema.CLIENT, [])
        require(bool(ids), f"{name} has no clients")
        self._ids(ids, name)
        require(len(set(ids)) == len(ids), f"{name} has a client twice")
        for column, values in columns.items():
            known = column in self.metrics or column in schema.CLIENT_COLUMNS
            require(known, f"{name} has a column {column[:40]!r}, which is not known")
            require(len(values) == len(ids), f"{name}: {column} is not there for each client")
            metric = self.metrics.get(column)
            if metric is not None:
                _check_values(values, metric, name)
            elif column != schema.CLIENT:
                require(
                    all(0 <= value < 2**53 for value in values), f"{name}: {column} has an invalid number of samples"
                )

    def records(self, records: Iterable[RoundRecord]) -> None:
        name, before = schema.ROUNDS, 0
        for record in records:
            where = f"{name}, round {record.round}"
            in_order = before < record.round <= self.last_round
            require(in_order, f"{name}: round {record.round} comes after round {before}")
            before = record.round
            self._ids((*record.cohort, *record.lost, *record.failed), where)
            self._summaries(record.metrics, where)
            if (against := record.against) is not None:
                possible = max(against.mean, against.rule) <= against.clients <= self.clients
                require(possible, f"{where}: against has more than all clients")
                self._ids((*against.mean_ids, *against.rule_ids), where)

    def _ids(self, ids: Iterable[float], where: str) -> None:
        known = range(self.clients)
        require(all(client in known for client in ids), f"{where} refers to unknown client ids")

    def _summaries(self, metrics: Metrics, where: str) -> None:
        for name, summary in metrics.items():
            require(name in self.metrics, f"{where} has a metric {name[:40]!r}, which is not known")
            _check_values((summary.mean, summary.samples, summary.worst10), self.metrics[name], where)


def _check_values(values: Iterable[float], metric: Metric, where: str) -> None:
    low, high = metric.low - schema.ZERO, metric.high + schema.ZERO
    sound = all(math.isnan(value) or (low <= value <= high and math.isfinite(value)) for value in values)
    require(sound, f"{where}: {metric.key} has a value outside its range")
