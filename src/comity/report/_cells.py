"""What is compared with what: runs that differ by seed alone are a cell, cells under the same conditions a setting."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from comity.config import COMPONENTS
from comity.report._read import Floats, Plan, Run, configuration, find, plan, read
from comity.report._statistics import Difference, Spread
from comity.tables import SILENT, told

Options = dict[str, Any]
Reader = Callable[..., Run]


@dataclass(frozen=True)
class Clients:
    """A run's clients, as its newest evaluation has them, and how each does alone."""

    ids: list[int]
    joined: Floats
    alone: Floats
    """NaN where nobody knows."""
    train: Floats
    test: Floats

    @property
    def gain(self) -> Floats:
        return self.joined - self.alone

    @property
    def samples(self) -> Floats:
        """The gain in test samples."""
        return np.round(self.gain * self.test)


@dataclass
class Cell:
    """One method with one rule in one setting: its runs, one a seed."""

    method: str
    rule: str
    options: Options
    runs: dict[int, Run] = field(default_factory=dict)
    alone: dict[int, dict[int, float]] = field(default_factory=dict)
    """Accuracy of each client alone, by seed."""
    method_label: str = ""
    rule_label: str = ""

    @property
    def reference(self) -> bool:
        return self.method == "Local"

    @property
    def label(self) -> str:
        return f"{self.method_label} + {self.rule_label}" if self.rule else self.method_label

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs.values() if run.finished]

    @property
    def counted(self) -> list[Run]:
        """The runs whose numbers count: the finished ones, or all of them while none is."""
        return self.finished or list(self.runs.values())

    def by_seed(self, number: Callable[[Run], float], finished: bool = False) -> dict[int, float]:
        runs = self.finished if finished else self.counted
        values = {run.seed: number(run) for run in runs}
        return {seed: value for seed, value in values.items() if not math.isnan(value)}

    def spread(self, number: Callable[[Run], float]) -> Spread:
        return Spread.of(self.by_seed(number).values())

    def clients(self, run: Run) -> Clients:
        ids = [int(client) for client in run.clients.get("client", [])]

        def column(name: str) -> Floats:
            return np.array(run.clients.get(name, [math.nan] * len(ids)), dtype=np.float64)

        alone = self.alone.get(run.seed, {})
        return Clients(
            ids,
            column("L-acc"),
            np.array([alone.get(client, math.nan) for client in ids]),
            column("n_train"),
            column("n_test"),
        )

    @cached_property
    def same_clients(self) -> bool:
        """Whether client 3 is the same client in every seed: true when every seed has the same partition."""
        known = [run.partition.counts for run in self.counted if run.partition is not None]
        if len(self.counted) == 1:
            return True
        return len(known) == len(self.counted) and all(np.array_equal(known[0], other) for other in known)


@dataclass
class Setting:
    """The conditions that methods are compared under: data, partition, model, rounds and all the rest."""

    options: Options
    cells: list[Cell] = field(default_factory=list)
    label: str = ""

    @property
    def local(self) -> Cell | None:
        return next((cell for cell in self.cells if cell.reference), None)

    def local_accuracy(self) -> dict[int, float]:
        """Mean accuracy of clients alone, by seed: from Local's runs, or from what the others noted of them."""
        known: dict[int, float] = {}
        for cell in self.cells:
            for run in cell.finished:
                if cell.reference:
                    known[run.seed] = accuracy(run)
                elif run.transfer is not None:
                    known.setdefault(run.seed, float(run.transfer["local"]))
        return known

    def base(self, cell: Cell) -> Cell | None:
        """The same method with the plain mean, by size if there are several means."""
        same = [other for other in self.cells if other.method_label == cell.method_label and other.rule == "Mean"]
        if cell.rule in ("", "Mean"):
            return None
        return min(same, key=lambda other: other.options.get("rule.weighting") != "size", default=None)


@dataclass(frozen=True)
class Comparison:
    """A cell against the same method with the plain mean."""

    setting: Setting
    cell: Cell
    base: Cell
    difference: Difference


@dataclass
class Study:
    settings: list[Setting]
    varying: list[str]
    """Options that take several values, other than method, rule and seed."""
    plan: Plan = field(default_factory=Plan)
    doubles: int = 0
    """Run folders left out because another one holds the same run."""

    @property
    def cells(self) -> list[Cell]:
        return [cell for setting in self.settings for cell in setting.cells]

    @property
    def runs(self) -> list[Run]:
        return [run for cell in self.cells if not cell.reference for run in cell.runs.values()]

    @property
    def finished(self) -> bool:
        """Whether nothing more is to come: every run found is finished, and every one planned has begun or failed."""
        missing = [folder for folder in self.plan.folders if not (folder / "config.yaml").exists()]
        runs = [run for cell in self.cells for run in cell.runs.values()]
        return all(run.finished for run in runs) and len(missing) <= len(self.plan.failed)

    def comparisons(self) -> list[Comparison]:
        found = []
        for setting in self.settings:
            for cell in setting.cells:
                base = setting.base(cell)
                if base is None:
                    continue
                difference = Difference.of(cell.by_seed(accuracy, True), base.by_seed(accuracy, True))
                if difference is not None:
                    found.append(Comparison(setting, cell, base, difference))
        return found


def accuracy(run: Run) -> float:
    """Mean over clients of each client's accuracy on its own tests, in the last evaluated round."""
    return run.metric("L-acc")


def study_of(paths: list[Path], reader: Reader = read) -> Study:
    """Every run at or below ``paths`` in its place, with Local beside them where it was trained for them."""
    runs = [reader(path) for path in find(paths)]
    runs += _references(runs, reader)
    settings: dict[tuple[Any, ...], Setting] = {}
    doubles = 0
    for run in sorted(runs, key=_is_local):  # Local last: it finds its setting made
        for setting in _settings_of(run, settings):
            cell = _cell_of(run, setting)
            known = cell.runs.get(run.seed)
            if known is not None:
                doubles += 1
                if known.finished or not run.finished:
                    continue
            cell.runs[run.seed] = run
    study = Study(list(settings.values()), [], plan(paths), doubles)
    for setting in study.settings:
        methods = list(dict.fromkeys(cell.method for cell in setting.cells))
        setting.cells.sort(key=lambda cell: (not cell.reference, methods.index(cell.method), cell.rule != "Mean"))
        for cell in setting.cells:
            cell.runs = dict(sorted(cell.runs.items()))
            _know_alone(cell, setting)
    study.varying = _varying(study)
    _name(study)
    return study


def _is_local(run: Run) -> bool:
    return bool(run.config["method"]["name"] == "Local")


def _references(runs: list[Run], reader: Reader) -> list[Run]:
    """Local's runs that comity trained and cached for these."""
    wanted = {_alone_key(run.config): run for run in runs if not _is_local(run)}
    for run in runs:
        if _is_local(run):
            wanted.pop(_alone_key(run.config), None)
    found = []
    for cache in dict.fromkeys(run.path.resolve().parent / ".local" for run in runs):
        for file in sorted(cache.glob("*/config.yaml")):
            config = configuration(file.parent)
            if wanted.pop(_alone_key(config), None) is not None:
                found.append(reader(file.parent, config))
    return found


def _alone_key(config: Any) -> str:
    """The same for a run and the Local that goes with it."""
    differ = (SILENT - {"seed"}) | {"method", "rule", "moment"}
    return repr(sorted((key, str(value)) for key, value in config.items() if key not in differ))


def _conditions(options: Options, but: tuple[str, ...] = ()) -> tuple[Any, ...]:
    return tuple(
        (key, value) for key, value in sorted(options.items()) if key.split(".")[0] not in ("method", "rule", *but)
    )


def _settings_of(run: Run, settings: dict[tuple[Any, ...], Setting]) -> Iterable[Setting]:
    """The run's setting. Local serves every setting that differs from its own by the moment of judgement alone."""
    if _is_local(run):
        alike = [
            s for s in settings.values() if _conditions(s.options, ("moment",)) == _conditions(run.options, ("moment",))
        ]
        if alike:
            return alike
    return [settings.setdefault(_conditions(run.options), Setting(run.options))]


def _cell_of(run: Run, setting: Setting) -> Cell:
    own = {key: value for key, value in run.options.items() if key.split(".")[0] in ("method", "rule")}
    if _is_local(run):
        own = {"method": "Local"}
    for cell in setting.cells:
        if all(cell.options.get(key) == value for key, value in own.items()) and cell.method == own["method"]:
            if run.own_rule:
                cell.rule = ""
            return cell
    rule = "" if run.own_rule else str(own["rule"])
    cell = Cell(str(own["method"]), rule, {**_without_parts(setting.options), **own})
    setting.cells.append(cell)
    return cell


def _without_parts(options: Options) -> Options:
    return {key: value for key, value in options.items() if key.split(".")[0] not in ("method", "rule")}


def _know_alone(cell: Cell, setting: Setting) -> None:
    """How each client does alone: from the run's own note, or from Local's run of the same seed."""
    local = setting.local
    for seed, run in cell.runs.items():
        if cell.reference:
            continue
        if run.transfer is not None:
            mine = dict(zip(run.clients["client"], run.clients["L-acc"], strict=True))
            gain = {int(client): value for client, value in run.transfer["gain"].items() if value is not None}
            cell.alone[seed] = {client: mine[client] - value for client, value in gain.items() if client in mine}
        elif local is not None and seed in local.runs and local.runs[seed].finished:
            other = local.runs[seed].clients
            cell.alone[seed] = {int(c): a for c, a in zip(other["client"], other["L-acc"], strict=True)}


def _varying(study: Study) -> list[str]:
    """Options with several values. One of a method or rule counts only among the cells of that method or rule."""
    seen: dict[str, dict[Any, set[Any]]] = {}
    for cell in study.cells:
        if cell.reference:
            continue
        for key, value in cell.options.items():
            part, dot, _ = key.partition(".")
            if key in ("method", "rule") or (part == "rule" and not cell.rule):
                continue
            owner = cell.options.get(part) if dot and part in COMPONENTS else None
            seen.setdefault(key, {}).setdefault(owner, set()).add(value)
    return [key for key, owners in seen.items() if any(len(values) > 1 for values in owners.values())]


def _name(study: Study) -> None:
    """Labels that say what differs, and nothing else."""
    for setting in study.settings:
        conditions = [key for key in study.varying if key.split(".")[0] not in ("method", "rule")]
        setting.label = told({key: show(setting.options[key]) for key in conditions if key in setting.options})
        for cell in setting.cells:
            cell.method_label, cell.rule_label = (_named(part, cell, study.varying) for part in ("method", "rule"))


def _named(part: str, cell: Cell, varying: list[str]) -> str:
    name = str(cell.options.get(part, "")).rpartition(".")[2]  # of a user's own class the name is enough
    mine = {key: show(cell.options[key]) for key in varying if key.startswith(f"{part}.") and key in cell.options}
    return f"{name} ({told(mine)})" if mine and not cell.reference else name


def show(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, tuple):
        return ",".join(show(inner) for inner in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
