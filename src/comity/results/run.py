"""Load a run from its folder, for tables, reports and notebooks. Only tensors need torch."""

import csv
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comity import metrics
from comity._errors import ComityError, one_line
from comity._options import options as declared
from comity.config import ACCURACY, LOCAL, LOCAL_OPTIONS, Config, Overlay, reject_code
from comity.metrics import Metric
from comity.results import check, schema
from comity.results.check import Checks, DamagedRun
from comity.results.folder import RunFolder
from comity.results.records import plain, require
from comity.results.schema import Columns, Cosines, PartitionTable, Result, RoundRecord, RunInfo, Weights

if TYPE_CHECKING:
    from torch import Tensor

    from comity.results.samples import Samples


MOST_UNKNOWN = 10_000
"""Maximum clients of a run without partition and evaluation, which would show their number."""
Flat = dict[str, Any]
"""Options of a run, flat: ``rule`` is a name and ``rule.c`` an option of the rule."""
_UNDECISIVE = {option.name for option in declared(Config).values() if not option.decides} | {"seed", "training_seed"}


def flatten(options: Mapping[str, Any], *, own_rule: bool = False) -> Flat:
    """The options that affect results, without the seed.

    ``own_rule``: no rule can be chosen, so the configured one has no effect. Local sends no updates to a rule, and its
    models are the same at every evaluation point.
    """
    flat = Overlay(options).without(_UNDECISIVE)
    idle = LOCAL_OPTIONS.keys() - {"method"} if flat.get("method") == LOCAL else {"rule"} if own_rule else set()
    return flat.without(idle)


def show(value: Any, key: str = "") -> str:
    """The value of an option as text."""
    if value is None and key == "guard":
        return "none"
    if isinstance(value, (list, tuple)):
        return "×".join(map(str, value))
    return "default" if value is None else one_line(value, 200)


class LoadedRun:
    """One run, read on access. Parts that do not exist yet are empty."""

    def __init__(self, path: Path | str) -> None:
        self.folder = RunFolder(path)
        self.path = self.folder.path
        with self._reading():
            self.info: RunInfo = self.folder.info()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn any error in a file of this run into ``DamagedRun``."""
        try:
            yield
        except DamagedRun:
            raise
        except ComityError as error:
            raise DamagedRun(self.path, str(error)) from error
        except OSError as error:
            raise DamagedRun(self.path, f"{self.path} could not be read: {error.strerror}") from error
        # content of files: not text, a number too large, nested too deeply, a malformed row
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError, csv.Error) as error:
            raise DamagedRun(self.path, f"{self.path} is damaged: {error}") from error

    def check(self, thorough: bool = False) -> None:
        """Raise an error if data for the table are missing or impossible; ``thorough``: also data for the report."""
        _ = self.options, self.decisive, self.result, self.partition, self.samples
        if thorough:
            _ = self.records, self.evaluation
            clients = self.options["clients"]
            if clients > MOST_UNKNOWN and not (self.partition or self.evaluation):
                raise DamagedRun(self.path, f"{self.path} has {clients} clients, of which nothing else is known")

    def __repr__(self) -> str:
        return f"LoadedRun({self.title}, seed {self.seed}, {self.path})"

    @property
    def title(self) -> str:
        return self.info.title

    @cached_property
    def options(self) -> dict[str, Any]:
        """The configuration as plain values, as in ``config.yaml``."""
        with self._reading():
            options = self.folder.options()
            check.check_options(options)
        return options

    @cached_property
    def config(self) -> Config:
        """The configuration; an error if it names your own classes: use ``Config.load`` with ``allow_code``."""
        reject_code(self.options, str(self.path))
        return Config.of(self.options)

    @cached_property
    def decisive(self) -> Flat:
        """The options that affect results, without the seed."""
        return flatten(self.options, own_rule=self.info.own_rule)

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    @property
    def local(self) -> bool:
        """Whether this is a local baseline."""
        return bool(self.options["method"]["name"] == LOCAL)

    # Numbers.

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """All metrics of this run by key, including those of its extensions."""
        return metrics.by_key() | {each.key: each.metric for each in self.info.metrics}

    @property
    def _checks(self) -> Checks:
        return Checks(self.options, self.metrics)

    @cached_property
    def result(self) -> Result | None:
        """The result; ``None`` until the run is finished."""
        if not self.folder.finished:
            return None
        with self._reading():
            result = self.folder.result()
            self._checks.result(result)
        return result

    @property
    def finished(self) -> bool:
        return self.result is not None

    @cached_property
    def records(self) -> list[RoundRecord]:
        with self._reading():
            records = self.folder.rounds()
            self._checks.records(records)
        return records

    @cached_property
    def evaluation(self) -> Columns:
        """The newest evaluation: one list over clients per metric."""
        if self.result is not None:
            return self.result.clients
        with self._reading():
            columns = self.folder.newest_evaluation()
            if columns:
                self._checks.columns(columns, schema.CLIENTS)
        return columns

    @cached_property
    def samples(self) -> "Samples | None":
        """Score of each test sample; ``None`` if clients ran on other machines, or the run is not finished."""
        with self._reading():
            found = self.folder.samples() if self.finished else None
            require(found is None or found.keys() <= set(self.client_ids), f"{schema.SAMPLES} has unknown clients")
        return found

    @property
    def deciding(self) -> str:
        """Name of the metric that decides."""
        return str(self.options.get("metric") or ACCURACY)

    @property
    def repeats_local(self) -> bool:
        """Whether this is a repeated local baseline (another training seed)."""
        return self.local and self.options.get("training_seed") is not None

    @property
    def client_ids(self) -> list[int]:
        return [int(client) for client in self.evaluation.get(schema.CLIENT, ())]

    def by_client(self, column: str) -> dict[int, float]:
        """One column of the newest evaluation by client; empty if not measured."""
        return dict(zip(self.client_ids, self.evaluation.get(column, ()), strict=False))

    def metric(self, name: str, how: str = "mean") -> float:
        """A metric of the last round; ``how`` is mean, std, samples or worst10. NaN if not measured or not finished."""
        summary = self.result.last.metrics.get(name) if self.result is not None else None
        return math.nan if summary is None else float(getattr(summary, how))

    @property
    def rounds_done(self) -> int:
        return self.records[-1].round if self.records else 0

    @cached_property
    def partition(self) -> PartitionTable | None:
        with self._reading():
            table = self.folder.partition()
            if table is not None:
                check.check_partition(table, self.options)
        return table

    def coefficients(self, wanted: Callable[[int], bool] = lambda _: True) -> Iterator[Weights]:
        """The rule's coefficients in the ``wanted`` rounds; only their lines are parsed."""
        with self._reading():
            for record in self.folder.weights(wanted):
                if wanted(record.round):
                    yield record

    def cosines(self) -> Iterator[Cosines]:
        """Cosines between clients' updates, by round."""
        with self._reading():
            yield from self.folder.cosines()

    # For notebooks.

    @cached_property
    def rounds(self) -> Any:
        """One row per round, as a pandas data frame (columns like ``seconds.train``), or a list without pandas."""
        return _frame([plain(record) for record in self.records])

    @cached_property
    def clients(self) -> Any:
        """One row per client and evaluation, in the same form as ``rounds``."""
        return _frame(self.folder.client_rows())

    @cached_property
    def weights(self) -> list[Weights]:
        """The rule's coefficients, by round."""
        return list(self.coefficients())

    @cached_property
    def state(self) -> "dict[str, Tensor]":
        """All tensors of the checkpoint by name: ``server/theta``, ``client/3/method/personal``, ..."""
        missing = "this run has no checkpoint, or its study did not keep it (--keep-checkpoints)"
        return _tensors(self.folder / schema.CHECKPOINT, missing)

    @property
    def theta(self) -> "Tensor":
        """The shared vector: parameters first, then buffers."""
        return self.state["server/theta"]

    def model(self, cid: int) -> "dict[str, Tensor]":
        """A client's federated model with the network's own names: ``net.load_state_dict(run.model(3))``.

        ``comity.load_model`` returns everything that the client uses, ready to predict.
        """
        models = self.folder / schema.MODELS
        place = next(models.glob(f"{cid:03d}-*"), models / f"{cid:03d}")
        tensors = _tensors(place / schema.TENSORS, f"client {cid} has no model here; train with --save-models")
        kind = "own." if self.local else "federated."
        return {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}


def _frame(rows: list[dict[str, Any]]) -> Any:
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        return rows
    return pandas.json_normalize(rows)


def _tensors(file: Path, missing: str) -> "dict[str, Tensor]":
    from safetensors.torch import load_file

    if not file.exists():
        raise ComityError(f"{file}: {missing}")
    return load_file(file)
