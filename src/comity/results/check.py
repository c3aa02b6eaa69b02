"""Whether the content of a run folder can be true.

Reading a record checks types and ranges. Here is what needs several fields or files: rounds that go up, the same
clients everywhere, metrics in their range. A damaged or forged folder must not become a number in a table.
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
from comity.metrics import Metric
from comity.results import schema
from comity.results.schema import Columns, Cosines, Metrics, PartitionTable, Result, RoundRecord, Transfer, Weights

MOST_UNKNOWN = 10_000
"""Clients of a run that has neither a partition nor an evaluation to count them by."""


class DamagedRun(ComityError):
    """A run folder that cannot be read, or whose content cannot be true."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class Untrue(Exception):
    """What is wrong with a file, in words."""


def check_options(entries: Mapping[str, Any]) -> None:
    for name in ("seed", "rounds", "clients"):
        _that(type(entries.get(name)) is int, f"{schema.CONFIG}: {name} should be a whole number")
    for name, value in entries.items():
        _that(name in declared(Config), f"{schema.CONFIG} has {str(name)[:40]!r}, which is no option")
        if name in COMPONENTS:
            named = isinstance(value, Mapping) and isinstance(value.get("name"), str)
            _that(named or (name in UNNAMED and value is None), f"{schema.CONFIG}: {name} has no name")
            for key, inner in (value or {}).items():
                _that(isinstance(key, str) and _plain(inner), f"{schema.CONFIG}: {name}.{str(key)[:40]} is invalid")
        else:
            convert(value, declared(Config)[name].type, f"{schema.CONFIG}: {name}")


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) < 1000 and all(map(_plain, value))
    return value is None or isinstance(value, (str, bool)) or (isinstance(value, (int, float)) and abs(value) < 2**63)


def check_partition(table: PartitionTable, options: Mapping[str, Any]) -> None:
    trained = options["clients"] - int(options.get("newcomers", 0))
    _that(len(table.counts) == trained, f"{schema.PARTITION} and {schema.CONFIG} differ in their clients")
    named = (table.client_names, len(table.counts)), (table.class_names, table.classes)
    _that(all(len(names) in (0, count) for names, count in named), f"{schema.PARTITION}: names are not one for each")


def check_number_of_clients(options: Mapping[str, Any], known: bool) -> None:
    few = known or options["clients"] <= MOST_UNKNOWN
    _that(few, f"{schema.CONFIG} has {options['clients']} clients, of which nothing else is known")


class Checks:
    """Checks of one run's numbers."""

    def __init__(self, options: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
        self.clients = int(options["clients"])
        self.last_round = int(options["rounds"]) + int(options.get("refit") or 0)
        self.metrics = metrics

    def result(self, result: Result) -> None:
        name, last = schema.RESULT, result.last.round
        _that(1 <= last <= self.last_round, f"{name}: the last round is {last} of {self.last_round}")
        _that(result.best.round <= last, f"{name}: the best round comes after the last one")
        for evaluation in (result.last, result.best):
            self._summaries(evaluation.metrics, name)
        self.columns(result.clients, name)
        own, mean = result.clients.get(schema.OWN, []), result.last.metrics.get(schema.OWN)
        if mean is not None and own and not any(map(math.isnan, own)):
            _that(abs(fmean(own) - mean.mean) < 1e-6, f"{name}: the mean of {schema.OWN} is not that of its clients")
        clients = set(map(int, result.clients[schema.CLIENT]))
        _check_transfer(result.transfer, clients)
        if (late := result.newcomers) is not None and late.clients:
            self._summaries(late.metrics, name)
            self.columns(late.clients, name)
            arrived = set(map(int, late.clients[schema.CLIENT]))
            _that(clients.isdisjoint(arrived), f"{name}: a newcomer is among the clients")
            _check_transfer(late.transfer, arrived)
        self._ids(result.malicious, name)
        _that(clients.isdisjoint(result.malicious), f"{name}: a malicious client is judged")

    def columns(self, columns: Columns, name: str) -> None:
        """One evaluation of all clients."""
        ids = columns.get(schema.CLIENT, [])
        _that(bool(ids), f"{name} has no clients")
        self._ids(ids, name)
        _that(len(set(ids)) == len(ids), f"{name} has a client twice")
        for column, values in columns.items():
            known = column in self.metrics or column in schema.CLIENT_COLUMNS
            _that(known, f"{name} has a column {column[:40]!r}, which is not known")
            _that(len(values) == len(ids), f"{name}: {column} is not there for each client")
            metric = self.metrics.get(column)
            if metric is not None and not metric.count:
                _check_values(values, metric, name)
            elif column != schema.CLIENT:
                _that(all(0 <= value < 2**53 for value in values), f"{name}: {column} has an invalid number of samples")

    def records(self, records: Iterable[RoundRecord]) -> None:
        name, before = schema.ROUNDS, 0
        for record in records:
            where = f"{name}, round {record.round}"
            in_order = before < record.round <= self.last_round
            _that(in_order, f"{name}: round {record.round} comes after round {before}")
            before = record.round
            self._ids((*record.cohort, *record.lost, *record.failed), where)
            self._summaries(record.metrics, where)
            if (against := record.against) is not None:
                most = min(against.clients, self.clients)
                _that(max(against.mean, against.rule) <= most, f"{where}: against has more than all clients")
                self._ids((*against.mean_ids, *against.rule_ids), where)

    def _ids(self, ids: Iterable[float], where: str) -> None:
        known = range(self.clients)
        _that(all(client in known for client in ids), f"{where} refers to unknown client ids")

    def _summaries(self, metrics: Metrics, where: str) -> None:
        for name, summary in metrics.items():
            _that(name in self.metrics, f"{where} has a metric {name[:40]!r}, which is not known")
            _check_values((summary.mean, summary.samples, summary.worst10), self.metrics[name], where)


def _check_transfer(transfer: Transfer | None, clients: set[int]) -> None:
    if transfer is None:
        return
    name, gain = f"{schema.RESULT}: transfer", transfer.gain
    _that(clients.issuperset(gain), f"{name} refers to unknown client ids")
    worse = sorted(client for client, value in gain.items() if value < -schema.ZERO)
    _that(sorted(transfer.harmed) == worse, f"{name} names others as harmed")
    _that(set(worse).issuperset(transfer.beyond_chance), f"{name}: who is harmed beyond chance is not harmed")
    same = transfer.only_local.keys() == transfer.only_joined.keys()
    _that(same, f"{name} has counts of different clients")


def _check_values(values: Iterable[float], metric: Metric, where: str) -> None:
    low, high = metric.low - schema.ZERO, metric.high + schema.ZERO
    sound = all(math.isnan(value) or (low <= value <= high and math.isfinite(value)) for value in values)
    _that(sound, f"{where}: {metric.key} has a value outside its range")


def check_weights(record: Weights) -> None:
    where = f"{schema.WEIGHTS}, round {record.round}"
    for rows in (record.coefficients, record.multipliers or []):
        _check_matrix(record.ids, rows, where)


def check_cosines(record: Cosines) -> None:
    where = f"{schema.COSINES}, round {record.round}"
    _check_matrix(record.ids, record.cosines, where)
    _that(len(record.cosines) == len(record.ids), f"{where} has not a row for each client")


def _check_matrix(ids: list[int | str], rows: list[list[float]], where: str) -> None:
    _that(len(set(ids)) == len(ids), f"{where} has a client twice")
    _that(all(len(row) == len(ids) for row in rows), f"{where} has not a number for each client")


def _that(true: bool, otherwise: str) -> None:
    if not true:
        raise Untrue(otherwise)
