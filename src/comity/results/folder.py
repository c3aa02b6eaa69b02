"""Run folders and study folders: the only place that writes them or reads them back.

Reading needs no torch. The checkpoint's tensors are the engine's own (``comity.engine``); here is only where they lie.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml

from comity._errors import ComityError
from comity._write import write_text
from comity.config import parse_yaml
from comity.results import schema
from comity.results.schema import (
    Columns,
    Cosines,
    PartitionTable,
    PlannedRun,
    Result,
    RoundRecord,
    RunInfo,
    Tuned,
    Weights,
)

T = TypeVar("T")
Rows = list[dict[str, float | None]]

_ROUND = re.compile(r'\{"round": (\d+)[,}]')


class RunFolder:
    """What one run has written so far."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def started(self) -> bool:
        return (self / schema.CONFIG).is_file()

    @property
    def finished(self) -> bool:
        return (self / schema.RESULT).is_file()

    def model_file(self, client: int) -> Path:
        """Where this client's own model is, if models were saved."""
        return self / schema.MODELS / f"client_{client:03d}.safetensors"

    # Reading.

    def info(self) -> RunInfo:
        file = self / schema.INFO
        if not file.is_file():
            raise ComityError(f"{self.path} was written by an earlier comity; run it again")
        entries = _json(file)
        if not isinstance(entries, Mapping) or entries.get("schema") != schema.SCHEMA:
            raise ComityError(f"{self.path} was written by another version of comity; run it again")
        return schema.from_json(RunInfo, entries, str(file))

    def options(self) -> dict[str, Any]:
        """The configuration in plain values, as ``config.yaml`` has it."""
        file = self / schema.CONFIG
        try:
            entries = parse_yaml(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ComityError(f"{file} could not be read: {error.strerror}") from error
        except (yaml.YAMLError, ValueError) as error:
            raise ComityError(f"{file} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(entries, dict) or not isinstance(entries.get("method"), dict):
            raise ComityError(f"{file} is not the configuration of a run")
        return entries

    def partition(self) -> PartitionTable | None:
        file = self / schema.PARTITION
        if not file.is_file():
            return None
        table = schema.from_json(PartitionTable, _json(file), str(file))
        if any(len(row) != table.classes for row in table.counts):
            raise ComityError(f"{file}: counts should have {table.classes} numbers for each client")
        return table

    def result(self) -> Result:
        file = self / schema.RESULT
        if not file.is_file():
            raise ComityError(f"{self.path} holds no finished run")
        return schema.from_json(Result, _json(file), str(file))

    def rounds(self) -> list[RoundRecord]:
        return list(_records(RoundRecord, self / schema.ROUNDS))

    def weights(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Weights]:
        """Of the rounds that are ``wanted``; only their lines are parsed."""
        return _records(Weights, self / schema.WEIGHTS, wanted)

    def cosines(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Cosines]:
        return _records(Cosines, self / schema.COSINES, wanted)

    def client_rows(self) -> Rows:
        """``clients.csv``: one row for each client and evaluation; ``None`` for what was not measured."""
        file = self / schema.CLIENTS
        if not file.is_file():
            return []
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(line for line in stream if line.endswith("\n")))
        try:
            return [{name: _number(text) for name, text in row.items()} for row in rows if None not in row.values()]
        except (TypeError, ValueError) as error:
            raise ComityError(f"{file} is damaged: {error}") from error

    def newest_evaluation(self) -> Columns:
        """The last whole evaluation in ``clients.csv``, as ``result.json`` would have it."""
        by_round: dict[float | None, Rows] = {}
        for row in self.client_rows():
            by_round.setdefault(row.get("round"), []).append(row)
        whole = max(map(len, by_round.values()), default=0)
        newest = next((rows for rows in reversed(by_round.values()) if len(rows) == whole), [])
        columns = {name: [row.get(name) for row in newest] for name in schema.CLIENT_COLUMNS}
        return {name: values for name, values in columns.items() if values and None not in values}  # type: ignore[misc]

    # Writing.

    def open(self, info: RunInfo, options: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Make the folder ready for a run, or refuse before anything is written."""
        if self.path.exists() and not self.path.is_dir():
            raise ComityError(f"out {self.path} is a file, not a folder")
        if self.started and resume:
            if self.info().key != info.key:
                before = self.options()
                different = [key for key, value in options.items() if before.get(key) != value]
                raise ComityError(
                    f"{self.path} holds a run of another configuration ({', '.join(different)} differ); "
                    "give the same options, another --out, or --overwrite"
                )
        elif self.started and not overwrite:
            raise ComityError(
                f"{self.path} holds a run already; give --resume to go on with it, --overwrite to replace it, "
                "or another --out"
            )
        elif (
            self.path.exists()
            and not self.started
            and any(not _of_a_killed_start(file) for file in self.path.iterdir())
        ):
            raise ComityError(f"out {self.path} is not empty and holds no run; give another --out")
        if self.started and not resume:
            grown = (schema.ROUNDS, schema.WEIGHTS, schema.COSINES, schema.CLIENTS)
            for name in (schema.RESULT, schema.CHECKPOINT, *grown):
                (self / name).unlink(missing_ok=True)
        write_text(self / schema.INFO, schema.to_json(info, indent=2) + "\n")
        write_text(self / schema.CONFIG, yaml.safe_dump(dict(options), sort_keys=False))

    def move(self, to: Path) -> None:
        """To another place, which its configuration then names."""
        to.parent.mkdir(parents=True, exist_ok=True)
        self.path = self.path.rename(to)
        write_text(self / schema.CONFIG, yaml.safe_dump(self.options() | {"out": str(to)}, sort_keys=False))

    def add_partition(self, table: PartitionTable) -> None:
        write_text(self / schema.PARTITION, schema.to_json(table) + "\n")

    def add_round(self, record: RoundRecord, weights: Iterable[Weights] = (), cosines: Iterable[Cosines] = ()) -> None:
        for name, entries in ((schema.WEIGHTS, weights), (schema.COSINES, cosines), (schema.ROUNDS, [record])):
            lines = [schema.to_json(entry) + "\n" for entry in entries]
            if lines:
                with (self / name).open("a", encoding="utf-8") as stream:
                    stream.writelines(lines)

    def add_clients(self, round: int, columns: Columns) -> None:
        """One row a client. What this evaluation did not measure stays empty."""
        file = self / schema.CLIENTS
        new = not file.exists()
        with file.open("a", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            if new:
                writer.writerow(("round", *schema.CLIENT_COLUMNS))
            for i in range(len(columns[schema.CLIENT])):
                row = [columns[name][i] if name in columns else "" for name in schema.CLIENT_COLUMNS]
                writer.writerow([round, *row])

    def add_result(self, result: Result) -> None:
        write_text(self / schema.RESULT, schema.to_json(result, indent=2) + "\n")

    def rewind(self, round: int) -> list[RoundRecord]:
        """Forget what came after ``round``, and lines that a kill cut short; the records that stay."""
        for name in (schema.ROUNDS, schema.WEIGHTS, schema.COSINES):
            file = self / name
            if file.exists():
                kept = [line for line in _lines(file) if json.loads(line)["round"] <= round]
                write_text(file, "".join(kept))
        file = self / schema.CLIENTS
        if file.exists():
            header, *rows = _lines(file) or [""]
            whole = [row for row in rows if row.count(",") == header.count(",")]
            write_text(file, "".join([header, *(row for row in whole if int(row.split(",", 1)[0]) <= round)]))
        return self.rounds()


class StudyFolder:
    """What one study has written beside its run folders."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def planned(self) -> list[PlannedRun]:
        """The runs that the study consists of, in its order; none in a folder that no study made."""
        return self._list(PlannedRun, schema.CELLS)

    def tuning(self) -> list[Tuned]:
        return self._list(Tuned, schema.TUNING)

    def _list(self, record: type[T], name: str) -> list[T]:
        file = self / name
        entries = _json(file) if file.is_file() else []
        if not isinstance(entries, list):
            raise ComityError(f"{file} should hold a list, not {str(entries)[:40]!r}")
        return [schema.from_json(record, entry, f"{file}, entry {i}") for i, entry in enumerate(entries, 1)]

    def write_entries(self, entries: Mapping[str, Any]) -> None:
        write_text(self / schema.STUDY, yaml.safe_dump(dict(entries), sort_keys=False))

    def write_planned(self, runs: Sequence[PlannedRun]) -> None:
        write_text(self / schema.CELLS, schema.to_json(runs, indent=2) + "\n")

    def write_tuning(self, searches: Sequence[Tuned]) -> None:
        write_text(self / schema.TUNING, schema.to_json(searches, indent=2) + "\n")


def _of_a_killed_start(file: Path) -> bool:
    """Whether a run that was killed before it had begun left this file."""
    return file.name == schema.INFO or (file.name.startswith(".") and file.suffix == ".part")


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ComityError(f"{file} could not be read: {error.strerror}") from error
    except ValueError as error:
        raise ComityError(f"{file} is not JSON: {error}") from error


def _lines(file: Path) -> list[str]:
    """Whole lines only: a kill may have cut the last one short, or it is just being written."""
    return [line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def _records(record: type[T], file: Path, wanted: Callable[[int], bool] | None = None) -> Iterator[T]:
    if not file.is_file():
        return
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith("\n"):
                return
            head = _ROUND.match(line)
            if wanted is not None and head is not None and not wanted(int(head[1])):
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ComityError(f"{file}, line {number} is not JSON: {error}") from error
            yield schema.from_json(record, value, f"{file}, line {number}")


def _number(text: str) -> int | float | None:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)
