"""Run folders and study folders: the only code that writes or reads them.

Reading needs no torch. The engine reads and writes the checkpoint's tensors (``comity.engine``).
"""

import csv
import io
import os
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from comity._errors import ComityError, one_line
from comity._words import csv_cell
from comity._write import inside, is_locked, is_part, locked, open_plain, real, remove_parts, to_disk, write_text
from comity.config import Config, read_yaml
from comity.results import schema
from comity.results.records import from_json, to_json
from comity.results.schema import Columns, Cosines, PartitionTable, PlannedRun, Result, RoundRecord, RunInfo, Weights
from comity.results.transfer import ClientScores

if TYPE_CHECKING:
    from comity.results.samples import Samples

T = TypeVar("T")
Rows = list[dict[str, float | None]]
Marks = dict[str, tuple[int, int]]
"""Length of each of the LOGS at a checkpoint: bytes and their CRC-32."""

LOGS = (schema.ROUNDS, schema.WEIGHTS, schema.COSINES, schema.CLIENTS)
"""Files that grow with the rounds."""
ANEW = "give --overwrite, or remove the folder, to start anew"

MB = 10**6
LARGEST = {schema.INFO: MB, schema.CLIENTS: 1000 * MB}
"""Maximum bytes of files that are read as a whole."""
LARGEST_OTHER, LONGEST_LINE = 256 * MB, 64 * MB
"""Maximum bytes of other files, and of a line in files that grow with the rounds."""

_ROUND = re.compile(rb'\{"round": (\d{1,9})[,}]')


class _Folder:
    """A folder with JSON records. Every path in it is checked here, because others may have placed links there."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return inside(self.path, name)

    def _has(self, name: str) -> bool:
        """Whether an entry with this name exists; reading it checks its kind."""
        return os.path.lexists(self.path / name)

    def _read(self, record: type[T], name: str) -> T:
        return from_json(record, _content(self / name), str(self / name))

    def _write(self, name: str, record: Any, indent: int | None = 2) -> None:
        write_text(self / name, to_json(record, indent=indent) + "\n")


class RunFolder(_Folder):
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path)
        self._written: Marks = {}

    @property
    def started(self) -> bool:
        return self._has(schema.CONFIG)

    @property
    def finished(self) -> bool:
        return self._has(schema.RESULT)

    @property
    def in_use(self) -> bool:
        """Whether a run is active in it."""
        return is_locked(self / schema.LOCK)

    # Reading.

    def info(self) -> RunInfo:
        if not (self / schema.INFO).is_file():
            raise ComityError(f"{self.path} was written by an earlier comity; run it again")
        if self._read(schema.Version, schema.INFO).schema != schema.SCHEMA:
            raise ComityError(f"{self.path} was written by another version of comity; run it again")
        return self._read(RunInfo, schema.INFO)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of ``clients.csv`` between round and name: those of every run, then metrics of extensions."""
        return (*schema.CLIENT_COLUMNS, *(metric.key for metric in self.info().metrics))

    def options(self) -> dict[str, Any]:
        """The configuration as plain values, as in ``config.yaml``."""
        file = self / schema.CONFIG
        entries = read_yaml(file, allow_code=True)  # nothing is built here
        if not isinstance(entries.get("method"), dict):
            raise ComityError(f"{file} is not the configuration of a run")
        return entries

    def partition(self) -> PartitionTable | None:
        return self._read(PartitionTable, schema.PARTITION) if (self / schema.PARTITION).is_file() else None

    def result(self) -> Result:
        if not self.finished:
            raise ComityError(f"{self.path} holds no finished run")
        return self._read(Result, schema.RESULT)

    def samples(self) -> "Samples | None":
        """Score of each test sample; ``None`` if the clients ran on other machines."""
        from comity.results.samples import read_samples  # lists and errors do not wait for numpy

        return read_samples(self / schema.SAMPLES)

    def rounds(self) -> list[RoundRecord]:
        return list(_records(RoundRecord, self / schema.ROUNDS))

    def weights(self, wanted: Callable[[int], bool] | None = None) -> Iterator[Weights]:
        """Coefficients of the ``wanted`` rounds; only their lines are parsed."""
        return _records(Weights, self / schema.WEIGHTS, wanted)

    def cosines(self) -> Iterator[Cosines]:
        return _records(Cosines, self / schema.COSINES)

    def client_rows(self) -> Rows:
        """Numbers of ``clients.csv``: one row per client and evaluation; ``None`` if not measured."""
        file = self / schema.CLIENTS
        if not file.is_file():
            return []
        try:
            with _checked(file).open(encoding="utf-8", newline="") as stream:
                rows = list(csv.DictReader(line for line in stream if line.endswith("\n")))
            whole = [row for row in rows if None not in row.values()]
            return [{name: _number(row[name]) for name in row if name != schema.CLIENT_NAME} for row in whole]
        except (TypeError, ValueError, AttributeError, csv.Error) as error:
            raise ComityError(f"{file} is damaged: {one_line(error, 200)}") from error

    def newest_evaluation(self) -> Columns:
        """The last complete evaluation in ``clients.csv``, in the form of ``result.json``."""
        by_round: dict[float | None, Rows] = {}
        for row in self.client_rows():
            by_round.setdefault(row.get("round"), []).append(row)
        whole = max(map(len, by_round.values()), default=0)
        newest = next((rows for rows in reversed(by_round.values()) if len(rows) == whole), [])
        columns = {name: [row.get(name) for row in newest] for name in self.columns}
        return {name: values for name, values in columns.items() if values and None not in values}  # type: ignore[misc]

    # Writing.

    def locked(self, stop: Callable[[], bool] | None = None) -> AbstractContextManager[bool]:
        """Lock the folder for writing. Raises an error if another run holds it; with ``stop``, waits for its end."""
        if self.path.exists() and not self.path.is_dir():
            raise ComityError(f"out {self.path} is a file, not a folder")
        taken = f"another run is at work in {self.path}; wait for its end, or give another --out"
        return locked(self / schema.LOCK, taken, stop)

    @contextmanager
    def new(self, rounds: Callable[[], int]) -> Iterator[None]:
        """Remove all files if a run fails before its first round in an empty folder. It must be locked."""
        empty = all(file.name == schema.LOCK for file in self.path.iterdir())
        try:
            yield
        except Exception:
            if empty and not rounds():
                self.clear()
            raise

    def open(self, info: RunInfo, options: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        """Prepare the folder for a run, or raise an error before anything is written."""
        for name in (*LOGS, schema.INFO, schema.CONFIG, schema.PARTITION, schema.RESULT, schema.SAMPLES):
            _ = self / name
        if self.started and resume:
            self._check_same(info, options)
        elif self.started and not overwrite:
            raise ComityError(
                f"{self.path} holds a run already; give --resume to resume it, --overwrite to replace it, "
                "or another --out"
            )
        elif not self.started and self.path.exists() and not all(map(_of_a_killed_start, self.path.iterdir())):
            raise ComityError(f"out {self.path} is not empty and holds no run; give another --out")
        for folder in (self.path, (self / schema.CHECKPOINT).parent, *(self / schema.MODELS).glob("*")):
            remove_parts(folder)
        if self.started and not resume:
            for name in (schema.RESULT, schema.CHECKPOINT, schema.COLUMNS, *LOGS):
                (self / name).unlink(missing_ok=True)
            shutil.rmtree(self / schema.MODELS, ignore_errors=True)
        self._write(schema.INFO, info)
        write_text(self / schema.CONFIG, yaml.safe_dump(dict(options), sort_keys=False))

    def _check_same(self, info: RunInfo, options: Mapping[str, Any]) -> None:
        """Reject resuming a run with another configuration or other data."""
        before = self.info()
        if before.key != info.key:
            different = Config.of(self.options()).differences(Config.of(options))
            if not different:
                raise ComityError(f"{self / schema.CONFIG} is not the configuration that the run began with; {ANEW}")
            raise other_configuration(self.path, different)
        if before.data != info.data:
            raise other_data(self.path, options["data"]["name"])
        if before.comity != info.comity:
            words = f"{self.path} was begun by comity {one_line(before.comity, 40)} and is resumed with {info.comity}"
            warnings.warn_explicit(words, UserWarning, "comity", 1)

    def clear(self) -> None:
        """Remove everything except the lock."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != schema.LOCK:
                path.unlink()

    def move(self, to: Path) -> None:
        """Move the folder, and update its path in the configuration."""
        to.parent.mkdir(parents=True, exist_ok=True)
        self.path = self.path.rename(to)
        write_text(self / schema.CONFIG, yaml.safe_dump(self.options() | {"out": str(to)}, sort_keys=False))

    def add_partition(self, table: PartitionTable, columns: str = "") -> None:
        """``columns``: the text of ``schema.yaml``, if the data are a table."""
        self._write(schema.PARTITION, table, indent=None)
        if columns:
            write_text(self / schema.COLUMNS, columns)

    def add_round(self, record: RoundRecord, weights: Iterable[Weights] = (), cosines: Iterable[Cosines] = ()) -> None:
        for name, entries in ((schema.WEIGHTS, weights), (schema.COSINES, cosines), (schema.ROUNDS, [record])):
            self._append(name, "".join(to_json(entry) + "\n" for entry in entries))

    def add_clients(self, round: int, columns: Columns, names: Sequence[str] = ()) -> None:
        """One row per client, with its name last. Metrics that were not measured stay empty."""
        stream = io.StringIO(newline="")
        writer, written = csv.writer(stream), self.columns
        if not (self / schema.CLIENTS).exists():
            writer.writerow(("round", *written, schema.CLIENT_NAME))
        for i, client in enumerate(map(int, columns[schema.CLIENT])):
            row = [columns[name][i] if name in columns else "" for name in written]
            writer.writerow([round, *row, csv_cell(one_line(names[client], 100)) if names else client])
        self._append(schema.CLIENTS, stream.getvalue())

    def _append(self, name: str, text: str) -> None:
        if text:
            content = text.encode()
            length, checksum = self._mark(name)
            with open_plain(self / name, "ab") as stream:
                stream.write(content)
            self._written[name] = length + len(content), zlib.crc32(content, checksum)

    def _mark(self, name: str) -> tuple[int, int]:
        """Length and checksum of a log."""
        if name not in self._written:
            file = self / name
            content = file.read_bytes() if file.is_file() else b""
            self._written[name] = len(content), zlib.crc32(content)
        return self._written[name]

    def secure(self) -> Marks:
        """Sync the logs to disk and return their lengths, for a checkpoint that relies on them."""
        marks = {name: self._mark(name) for name in LOGS if (self / name).is_file()}
        for name in marks:
            to_disk(self / name)
        to_disk(self.path)
        return marks

    def add_samples(self, scores: Mapping[int, ClientScores]) -> None:
        from comity.results.samples import write_samples

        write_samples(self / schema.SAMPLES, scores)

    def add_result(self, result: Result) -> None:
        self._write(schema.RESULT, result)

    def rewind(self, marks: Marks) -> list[RoundRecord]:
        """Truncate the logs to a checkpoint and return the remaining records. Nothing is cut if a log is damaged."""
        for name in LOGS:
            file, (length, checksum) = self / name, marks.get(name, (0, 0))
            size = file.stat().st_size if file.is_file() else 0
            if size < length:
                raise ComityError(f"{file} lost lines: {size:,} of {length:,} bytes are left; {ANEW}")
            if length and zlib.crc32(file.read_bytes()[:length]) != checksum:
                raise ComityError(f"{file} was changed after it was written; {ANEW}")
        for name in LOGS:
            file, self._written[name] = self / name, marks.get(name, (0, 0))
            if name not in marks:
                file.unlink(missing_ok=True)
            else:
                with open_plain(file, "rb+") as stream:
                    stream.truncate(marks[name][0])
        return self.rounds()


class StudyFolder(_Folder):
    """The files of a study beside its run folders."""

    @property
    def in_use(self) -> bool:
        """Whether the study or one of its shards is active, also between two runs."""
        return any(is_locked(self / file.name) for file in self.path.glob(f"{schema.LOCK}*"))

    def planned(self) -> list[PlannedRun]:
        """The runs of the study in order; empty if the folder is not a study."""
        planned, path = self._read(list[PlannedRun], schema.CELLS) if (self / schema.CELLS).is_file() else [], self.path
        for run in planned:
            if not real(path / run.folder).is_relative_to(real(path)):
                raise ComityError(f"{path / schema.CELLS} names the folder {run.folder!r}, which is not in the study")
        return planned

    def tuning(self) -> list[schema.Tuned]:
        return self._read(list[schema.Tuned], schema.TUNING) if (self / schema.TUNING).is_file() else []

    def write_entries(self, entries: Mapping[str, Any]) -> None:
        write_text(self / schema.STUDY, yaml.safe_dump(dict(entries), sort_keys=False))

    def write_planned(self, runs: Sequence[PlannedRun]) -> None:
        self._write(schema.CELLS, runs)

    def write_tuning(self, searches: Sequence[schema.Tuned]) -> None:
        self._write(schema.TUNING, searches)


def other_configuration(folder: Path, different: Iterable[str]) -> ComityError:
    return ComityError(
        f"{folder} holds a run of another configuration ({', '.join(different)} differ); give the same options, "
        "another --out, or --overwrite to replace it"
    )


def other_data(folder: Path, data: object) -> ComityError:
    return ComityError(
        f"{folder} holds a run of other data: {data} is not what it was when the run began; give the former data, "
        "another --out, or --overwrite to replace it"
    )


def _of_a_killed_start(file: Path) -> bool:
    """Whether this file is left from a run that was killed before it started, or is the lock of the starting one."""
    return file.name in (schema.INFO, schema.LOCK) or is_part(file)


def _content(file: Path) -> bytes:
    try:
        return _checked(file).read_bytes()
    except OSError as error:
        raise ComityError(f"{file} could not be read: {error.strerror}") from error


def _checked(file: Path) -> Path:
    """The file, unless it is too large to be one of ours."""
    most = LARGEST.get(file.name, LARGEST_OTHER)
    if file.is_file() and (size := file.stat().st_size) > most:
        raise ComityError(f"{file} has {size} bytes; at most {most} are read")
    return file


def _records(record: type[T], file: Path, wanted: Callable[[int], bool] | None = None) -> Iterator[T]:
    if not file.is_file():
        return
    with file.open("rb") as stream:
        for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE), b""), 1):
            if len(line) == LONGEST_LINE:
                raise ComityError(f"{file} has a line of more than {LONGEST_LINE} bytes")
            if not line.endswith(b"\n"):
                return
            head = _ROUND.match(line)
            if wanted is not None and head is not None and not wanted(int(head[1])):
                continue
            yield from_json(record, line, f"{file}, line {number}")


def _number(text: str) -> int | float | None:
    if not text:
        return None
    return int(text) if text.lstrip("-").isdigit() else float(text)
