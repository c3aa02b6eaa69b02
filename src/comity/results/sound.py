"""Whether what a run folder says can be true.

``records.from_json`` checks types. Here are values: accuracies between 0 and 1, rounds that go up, the same clients in
every file. A folder that was damaged, or that somebody made up, must not become a number in a table.
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
from comity.results import schema
from comity.results.harm import harmed
from comity.results.schema import Columns, Cosines, Metrics, PartitionTable, Result, RoundRecord, Transfer, Weights

MB = 10**6
LARGEST = {
    schema.INFO: MB,
    schema.CONFIG: MB,
    schema.PARTITION: 256 * MB,
    schema.RESULT: 256 * MB,
    schema.CLIENTS: 1000 * MB,
}
"""Bytes of files that are read as a whole."""
LONGEST_LINE = 64 * MB
"""Bytes of a line in the files that grow with the rounds."""
MOST_UNKNOWN = 10_000
"""Clients of a run that has neither a partition nor an evaluation to count them by."""


class DamagedRun(ComityError):
    """A run folder that cannot be read, or that says what cannot be true."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


class Untrue(Exception):
    """What is wrong with a file, in words."""


def check_sizes(folder: Path) -> None:
    for name, most in LARGEST.items():
        if (folder / name).is_file() and (size := (folder / name).stat().st_size) > most:
            raise Untrue(f"{name} has {size} bytes; at most {most} are read")
    for name in (schema.ROUNDS, schema.WEIGHTS, schema.COSINES):
        file = folder / name
        if file.is_file() and file.stat().st_size > LONGEST_LINE:
            with file.open("rb") as stream:
                while line := stream.readline(LONGEST_LINE):
                    _that(len(line) < LONGEST_LINE, f"{name} has a line of more than {LONGEST_LINE} bytes")


def check_options(entries: Mapping[str, Any]) -> None:
    for name in ("seed", "rounds", "clients"):
        _that(type(entries.get(name)) is int, f"{schema.CONFIG}: {name} should be a whole number")
    for name, value in entries.items():
        _that(name in declared(Config), f"{schema.CONFIG} has {str(name)[:40]!r}, which is no option")
        if name in COMPONENTS:
            named = isinstance(value, Mapping) and isinstance(value.get("name"), str)
            _that(named or (name in UNNAMED and value is None), f"{schema.CONFIG}: {name} has no name")
            for key, inner in (value or {}).items():
                _that(isinstance(key, str) and _plain(inner), f"{schema.CONFIG}: {name}.{str(key)[:40]} is no value")
        else:
            convert(value, declared(Config)[name].type, f"{schema.CONFIG}: {name}")


def last_round(options: Mapping[str, Any]) -> int:
    """With those in which clients train on their validation samples too."""
    return int(options["rounds"]) + int(options.get("refit") or 0)


def _plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_plain, value)) if len(value) < 1000 else False
    return value is None or isinstance(value, (str, bool)) or (isinstance(value, (int, float)) and abs(value) < 2**63)


def check_partition(table: PartitionTable, options: Mapping[str, Any]) -> None:
    trained = options["clients"] - int(options.get("newcomers", 0))
    _that(len(table.counts) == trained, f"{schema.PARTITION} and {schema.CONFIG} differ in their clients")
    _that(all(0 <= n < 2**53 for row in table.counts for n in row), f"{schema.PARTITION} has counts that are none")
    named = (table.client_names, len(table.counts)), (table.class_names, table.classes)
    _that(all(len(names) in (0, count) for names, count in named), f"{schema.PARTITION}: names are not one for each")


def check_result(result: Result, options: Mapping[str, Any]) -> None:
    name, rounds = schema.RESULT, last_round(options)
    _that(1 <= result.last.round <= rounds, f"{name}: the last round is {result.last.round} of {rounds}")
    _that(0 <= result.best.round <= result.last.round, f"{name}: the best round comes after the last one")
    for evaluation in (result.last, result.best):
        _check_metrics(evaluation.metrics, name)
    check_columns(result.clients, options, name)
    own, mean = result.clients.get(schema.OWN, []), result.last.metrics.get(schema.OWN)
    if mean is not None and own and not any(map(math.isnan, own)):
        _that(abs(fmean(own) - mean.mean) < 1e-6, f"{name}: the mean of {schema.OWN} is not that of its clients")
    clients = {int(client) for client in result.clients[schema.CLIENT]}
    if result.transfer is not None:
        _check_transfer(result.transfer, clients)
    if (late := result.newcomers) is not None and late.clients:
        _check_metrics(late.metrics, name)
        check_columns(late.clients, options, name)
        arrived = {int(client) for client in late.clients[schema.CLIENT]}
        _that(clients.isdisjoint(arrived), f"{name}: a newcomer is among the clients")
        if late.transfer is not None:
            _check_transfer(late.transfer, arrived)
    known = all(0 <= client < options["clients"] for client in result.malicious)
    _that(known and clients.isdisjoint(result.malicious), f"{name}: a malicious client is judged, or is none")
    rates = (result.conflict_rate, result.mean_against, result.rule_against, result.conflict_error)
    _that(_shares([rate or 0.0 for rate in rates]), f"{name}: conflict_rate or against is no share")
    _check_costs(name, result.bytes_per_round, result.seconds)


def _check_transfer(transfer: Transfer, clients: set[int]) -> None:
    name, gain = f"{schema.RESULT}: transfer", transfer.gain
    _that(clients.issuperset(gain), f"{name} has clients that are none")
    _that(all(-1 <= value <= 1 for value in gain.values()), f"{name} has gains that are no differences of shares")
    _that(sorted(transfer.harmed) == sorted(c for c, g in gain.items() if harmed(g)), f"{name} names others as harmed")
    _that(_shares([transfer.local, transfer.positive_transfer]), f"{name} has shares that are none")
    _that(set(transfer.harmed).issuperset(transfer.beyond_chance), f"{name}: who is harmed beyond chance is not harmed")
    counts = transfer.only_local, transfer.only_joined
    _that(all(each.keys() == counts[0].keys() for each in counts), f"{name} has counts of different clients")
    _that(all(0 <= n < 2**53 for each in counts for n in each.values()), f"{name} has counts that are none")
    _that(not math.isinf(transfer.relative_accuracy), f"{name} is infinite")


def check_columns(columns: Columns, options: Mapping[str, Any], name: str) -> None:
    """One evaluation of all clients."""
    ids = columns.get(schema.CLIENT, [])
    _that(
        all(isinstance(client, (int, float)) and client in range(options["clients"]) for client in ids) and bool(ids),
        f"{name} has clients that are none",
    )
    _that(len(set(ids)) == len(ids), f"{name} has a client twice")
    for column, values in columns.items():
        _that(column in schema.CLIENT_COLUMNS, f"{name} has a column {column[:40]!r}, which is not known")
        _that(len(values) == len(ids), f"{name}: {column} is not there for each client")
        if column in (schema.TRAINING_SAMPLES, schema.TEST_SAMPLES, schema.ONLY_LOCAL, schema.ONLY_JOINED):
            _that(all(0 <= value < 2**53 for value in values), f"{name}: {column} has numbers of samples that are none")
        elif column != schema.CLIENT:
            _check_values(values, column, name)


def check_records(records: Iterable[RoundRecord], options: Mapping[str, Any]) -> None:
    name, before = schema.ROUNDS, 0
    for record in records:
        where = f"{name}, round {record.round}"
        _that(before < record.round <= last_round(options), f"{name}: round {record.round} comes after round {before}")
        before = record.round
        members = (*record.cohort, *record.lost, *record.failed)
        _that(all(0 <= client < options["clients"] for client in members), f"{where} has clients that are none")
        _that(not math.isinf(record.train_loss), f"{where}: train_loss is infinite")
        _check_metrics(record.metrics, where)
        _check_costs(where, record.bytes, record.seconds)
        if record.conflict is not None:
            _that(
                _shares([record.conflict.rate, record.conflict.error, *record.conflict.layers.values()]),
                f"{where}: conflict is no share",
            )
        if (against := record.against) is not None:
            most = min(against.clients, options["clients"])
            _that(
                all(0 <= n <= most for n in (against.mean, against.rule)), f"{where}: against has more than all clients"
            )
            named = (*against.mean_ids, *against.rule_ids)
            _that(all(0 <= client < options["clients"] for client in named), f"{where} has clients that are none")


def check_weights(record: Weights) -> None:
    where = f"{schema.WEIGHTS}, round {record.round}"
    for rows in (record.coefficients, record.multipliers):
        if rows is not None:
            _check_matrix(record.ids, rows, where)
            _that(not any(math.isinf(value) for row in rows for value in row), f"{where}: one is infinite")


def check_cosines(record: Cosines) -> None:
    where = f"{schema.COSINES}, round {record.round}"
    _check_matrix(record.ids, record.cosines, where)
    _that(len(record.cosines) == len(record.ids), f"{where} has not a row for each client")
    _that(0 <= record.error <= 2, f"{where} has an error that is none")
    _that(not any(abs(value) > 1.001 for row in record.cosines for value in row), f"{where} has what is no cosine")


def check_number_of_clients(options: Mapping[str, Any], known: bool) -> None:
    few = known or options["clients"] <= MOST_UNKNOWN
    _that(few, f"{schema.CONFIG} has {options['clients']} clients, of which nothing else is known")


def _check_matrix(ids: list[int | str], rows: list[list[float]], where: str) -> None:
    _that(len(set(ids)) == len(ids), f"{where} has a client twice")
    _that(all(len(row) == len(ids) for row in rows), f"{where} has not a number for each client")


def _check_metrics(metrics: Metrics, where: str) -> None:
    for name, summary in metrics.items():
        _that(name in schema.METRICS, f"{where} has a metric {name[:40]!r}, which is not known")
        _check_values([summary.mean, summary.samples, summary.worst10], name, where)
        _that(not summary.std < 0 and not math.isinf(summary.std), f"{where}: the spread of {name} is none")


def _check_values(values: Iterable[float], metric: str, where: str) -> None:
    accuracy = metric not in (schema.LOSS, schema.VALIDATION_LOSS, schema.BOUND)
    sound = _shares(values) if accuracy else not any(map(math.isinf, values))
    _that(sound, f"{where}: {metric} has a value that is no {'accuracy' if accuracy else 'loss'}")


def _check_costs(where: str, *costs: schema.Traffic | schema.Seconds) -> None:
    every = [value for cost in costs for value in vars(cost).values()]
    _that(all(0 <= value < 1e18 for value in every), f"{where} has a cost that is none")


def _shares(values: Iterable[float]) -> bool:
    """Each between 0 and 1, with room for rounding, or not measured."""
    return all(-1e-9 <= value <= 1 + 1e-9 or math.isnan(value) for value in values)


def _that(true: bool, otherwise: str) -> None:
    if not true:
        raise Untrue(otherwise)
