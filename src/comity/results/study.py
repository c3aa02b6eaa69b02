"""Several runs and what is compared with what.

Runs that differ by their seed alone are a cell, cells under the same conditions are a setting. Every comparison is made
here, once: which Local goes with a run, which cell is the base of another, and how clients that gain are counted.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from comity._errors import ComityError, unknown
from comity._labels import titled
from comity.config import LOCAL, MEAN
from comity.results import schema
from comity.results.conditions import (
    Flat,
    Varying,
    component_of,
    in_words,
    of_cell,
    of_setting,
    shared_with_local,
)
from comity.results.folder import RunFolder, StudyFolder
from comity.results.found import cached_locals, key_of, planned_runs, run_folders, study_file, unique
from comity.results.harm import Balance, transfer
from comity.results.run import LoadedRun
from comity.results.schema import PlannedRun, Transfer, Tuned
from comity.results.sound import DamagedRun
from comity.results.statistics import Difference, Spread
from comity.results.words import listed

if TYPE_CHECKING:
    from comity.results.table import Table


T = TypeVar("T")


@dataclass(eq=False)
class Cell:
    """One method with one rule in one setting: its runs, one a seed."""

    setting: "Setting" = field(repr=False)
    options: Flat
    """Of method, rule and guard."""
    method_label: str
    rule_label: str
    """Empty where no rule can be chosen."""
    runs: dict[int, LoadedRun] = field(default_factory=dict)
    base: "Cell | None" = None
    """The cell that this one is compared with: the same method with the plain mean, or with the rule asked for."""

    @property
    def method(self) -> str:
        return str(self.options["method"])

    @property
    def rule(self) -> str:
        return str(self.options.get("rule", ""))

    @property
    def local(self) -> bool:
        return self.method == LOCAL

    @property
    def guarded(self) -> bool:
        return self.options.get("guard") is not None

    @property
    def without_guard(self) -> "Cell | None":
        """The same method and rule in the same setting, where this cell has a guard and that one none."""

        def kept(cell: Cell) -> Flat:
            return {key: v for key, v in cell.options.items() if component_of(key) in ("method", "rule")}

        same = (cell for cell in self.setting.cells if not cell.guarded and kept(cell) == kept(self))
        return next(same, None) if self.guarded else None

    @property
    def label(self) -> str:
        return titled(self.method_label, self.rule_label if self.rule else "")

    @property
    def finished(self) -> list[LoadedRun]:
        return [run for run in self.runs.values() if run.finished]

    @property
    def shown_runs(self) -> list[LoadedRun]:
        """The runs that plots show: the finished ones, or all of them while none is."""
        return self.finished or list(self.runs.values())

    def spread(self, number: Callable[[LoadedRun], float]) -> Spread | None:
        """A number of the finished runs."""
        return Spread.of({run.seed: number(run) for run in self.finished})

    @cached_property
    def accuracy(self) -> Spread | None:
        """Mean over clients of each client's accuracy on its own tests in the last round, in percent."""
        return self.spread(lambda run: 100 * run.metric(schema.OWN))

    @cached_property
    def difference(self) -> Difference | None:
        """To the base, in points."""
        return Difference.between(self.accuracy, self.base.accuracy) if self.base is not None else None

    # Against training alone.

    def alone(self, run: LoadedRun) -> dict[int, float]:
        """Accuracy of each client alone: as the run noted it, or from the Local of the same seed; empty if neither."""
        noted = run.result.transfer if run.result is not None else None
        if noted is not None:
            joined = run.by_client(schema.OWN)
            return {client: joined[client] - gain for client, gain in noted.gain.items() if client in joined}
        local = self.setting.local
        other = local.runs.get(run.seed) if local is not None and not self.local else None
        return other.by_client(schema.OWN) if other is not None and other.finished else {}

    def transfer(self, run: LoadedRun) -> Transfer | None:
        """What joining changed for each client so far; ``None`` where nobody knows how they do alone."""
        noted = run.result.transfer if run.result is not None else None
        return noted if noted is not None else transfer(run.by_client(schema.OWN), self.alone(run))

    @cached_property
    def transfers(self) -> dict[int, Transfer]:
        """Of the finished runs, by seed."""
        found = {run.seed: self.transfer(run) for run in self.finished}
        return {seed: known for seed, known in found.items() if known is not None and known.gain}

    @cached_property
    def gain(self) -> Difference | None:
        """Mean over clients of what they gain over training alone, in points."""
        means = {seed: sum(known.gain.values()) / len(known.gain) for seed, known in self.transfers.items()}
        return Difference.of(Spread.of({seed: 100 * mean for seed, mean in means.items()}))

    @cached_property
    def balance(self) -> Balance | None:
        """How many clients gain and which are harmed."""
        tables = {seed: self.runs[seed].partition for seed in self.transfers}
        names = {seed: table.client_names for seed, table in tables.items() if table is not None}
        drawn = all(table is not None and table.tests_drawn for table in tables.values())
        shares = {float(self.runs[seed].options["test_share"]) for seed in tables} if drawn else set()
        return Balance.of(
            self.transfers,
            same_clients=self._same_clients(self.transfers),
            names=names,
            test_share=shares.pop() if len(shares) == 1 else None,
        )

    def _same_clients(self, seeds: Iterable[int]) -> bool:
        """Whether client 3 is the same client in all of these seeds: true when they have the same partition."""
        partitions = [self.runs[seed].partition for seed in seeds]
        return all(partition is not None and partition == partitions[0] for partition in partitions)


@dataclass(eq=False)
class Setting:
    """The conditions that methods are compared under: data, partition, model, rounds and all the rest."""

    options: Flat
    label: str
    cells: list[Cell] = field(default_factory=list)

    @property
    def local(self) -> Cell | None:
        return next((cell for cell in self.cells if cell.local), None)

    @property
    def local_on(self) -> Literal["all", "train"]:
        """Whether Local learns from a client's validation samples too, or nobody has any."""
        held_out = any(run.options.get("val_share") for cell in self.cells for run in cell.runs.values())
        return "train" if held_out and self.options.get("local_on") != "all" else "all"

    @property
    def noted_local(self) -> Spread | None:
        """Mean accuracy of the clients alone, in percent, as the finished runs noted it."""
        noted: dict[int, float] = {}
        for cell in self.cells:
            for seed, known in cell.transfers.items():
                noted.setdefault(seed, 100 * known.local)
        return Spread.of(dict(sorted(noted.items())))


class LoadedStudy:
    """Several runs: those that a study consists of, or all at or below some folders."""

    def __init__(
        self,
        *paths: Path | str,
        base: str | None = None,
        read: Callable[[Path], LoadedRun] = LoadedRun,
        damaged: Mapping[Path, str] | None = None,
        thorough: bool = False,
    ) -> None:
        """``base``: the label of the rule that other rules are compared with, where it is not the plain mean.

        ``damaged``: runs that are left out, and why. ``thorough``: what a table does not need is checked too.
        """
        self.paths = [Path(path) for path in paths]
        self.damaged = dict(damaged or {})
        """Runs that cannot be read, or whose numbers cannot be true, and what is wrong with each; they are left out."""

        def sound(folder: Path) -> LoadedRun | None:
            try:
                run = None if folder in self.damaged else read(folder)
                if run is not None:
                    run.check(thorough)
            except DamagedRun as error:
                self.damaged[folder] = str(error)
                return None
            return run

        folders = {folder.resolve(): folder for path in self.paths for folder in run_folders(path)}
        runs = [run for folder in folders.values() if (run := sound(folder)) is not None]
        if self.damaged and not runs:
            raise ComityError(next(iter(self.damaged.values())))
        runs = [*cached_locals(runs, sound), *runs]
        self.runs = unique(runs)
        """Those that have begun, in the study's order, and the Local that goes with them."""
        self.doubles = len(runs) - len(self.runs)
        """Run folders that are left out because another one holds the same run."""
        self._asked_base = base

    def __repr__(self) -> str:
        return f"LoadedStudy({len(self.runs)} runs, {', '.join(map(str, self.paths))})"

    # What there is.

    @cached_property
    def planned(self) -> dict[Path, PlannedRun]:
        """The runs that the study consists of by folder, in its order, with the errors of those that failed."""
        return {path / run.folder: run for path in self.paths for run in planned_runs(path)}

    @property
    def failed(self) -> dict[str, str]:
        """The error of each run that failed, by title."""
        return {run.title: run.error for run in self.planned.values() if run.error}

    @cached_property
    def tuning(self) -> list[Tuned]:
        """Each search: what was tried, how it did in validation and what was chosen."""
        return [search for path in self.paths for search in study_file(path, schema.TUNING, StudyFolder.tuning)]

    @cached_property
    def tuned_training(self) -> set[str]:
        """Options of local training that each method has at its best value: they are no conditions."""
        return {search.option for search in self.tuning if "." not in search.option}

    def _decisive(self, run: LoadedRun) -> Flat:
        return {key: value for key, value in run.decisive.items() if key not in self.tuned_training}

    @property
    def waiting(self) -> int:
        """Runs that are planned and have not begun."""
        return sum(not RunFolder(folder).started for folder in self.planned)

    @property
    def unfinished(self) -> int:
        return self.waiting + sum(not run.finished for run in self.runs)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come: every run is finished or has failed."""
        return self.unfinished <= len(self.failed)

    # What is compared with what.

    @cached_property
    def varying(self) -> Varying:
        return Varying(map(self._decisive, self.runs))

    @cached_property
    def settings(self) -> list[Setting]:
        settings: dict[str, Setting] = {}
        for run in sorted(self.runs, key=lambda run: run.local):  # Local last: it finds the settings that it serves
            for setting in self._settings_of(run, settings):
                self._cell_of(run, setting).runs[run.seed] = run
        for setting in settings.values():
            self._choose_bases(setting)
            methods = list(dict.fromkeys(cell.method for cell in setting.cells))
            labels = list(dict.fromkeys(cell.method_label for cell in setting.cells))
            setting.cells.sort(
                key=lambda cell: (
                    not cell.local,
                    methods.index(cell.method),
                    labels.index(cell.method_label),
                    cell.base is not None,
                )
            )
            for cell in setting.cells:
                cell.runs = dict(sorted(cell.runs.items()))
        return list(settings.values())

    def _settings_of(self, run: LoadedRun, settings: dict[str, Setting]) -> list[Setting]:
        decisive = self._decisive(run)
        if run.local:
            served = shared_with_local(decisive)
            alike = [setting for setting in settings.values() if shared_with_local(setting.options) == served]
            if alike:
                return alike
        options = of_setting(decisive)
        label = in_words(self.varying.of(decisive))
        return [settings.setdefault(key_of(options), Setting(options, label))]

    def _cell_of(self, run: LoadedRun, setting: Setting) -> Cell:
        options = of_cell(run.decisive)
        for cell in setting.cells:
            if cell.options == options:
                return cell
        method, rule = (self.varying.label(run.decisive, component) for component in ("method", "rule"))
        setting.cells.append(Cell(setting, options, method, rule))
        return setting.cells[-1]

    def _choose_bases(self, setting: Setting) -> None:
        for cell in setting.cells:
            candidates = self._base_candidates(cell)
            if cell.rule and candidates and candidates[0] is not cell:
                cell.base = candidates[0]

    def _base_candidates(self, cell: Cell) -> list[Cell]:
        """The same method with the plain mean, the one by size first; or with the rule that was asked for."""
        same = [other for other in cell.setting.cells if other.method_label == cell.method_label and other.rule]
        if self._asked_base is not None:
            return [other for other in same if other.rule_label == self._asked_base]
        means = [other for other in same if other.rule == MEAN]
        return sorted(means, key=lambda other: other.options.get("rule.by") != "size")

    @property
    def cells(self) -> list[Cell]:
        return [cell for setting in self.settings for cell in setting.cells]

    @cached_property
    def base_label(self) -> str:
        """What differences are to, in a word."""
        labels = {cell.rule_label for cell in self.cells if cell.rule}
        if self._asked_base is not None and self._asked_base not in labels:
            raise unknown("base", self._asked_base, labels)
        return self._asked_base or MEAN

    @property
    def base_remark(self) -> str:
        """Which mean differences are to, where there are several and none was asked for; else empty."""
        several = [means for cell in self.cells if len(means := self._base_candidates(cell)) > 1]
        if not several:
            return ""
        every = dict.fromkeys(cell.rule_label for means in several for cell in means)
        taken = dict.fromkeys(means[0].rule_label for means in several)
        return f"There are several means, {listed(every)}; differences are to {listed(taken)}, --base chooses another."

    def table(self) -> "Table":
        from comity.results.table import Table

        return Table.of(self)


def load(path: str | Path, *, base: str | None = None) -> LoadedRun | LoadedStudy:
    """The run or the study in a folder. ``base``: the label of the rule that a study's rules are compared with."""
    if RunFolder(path).started:
        return LoadedRun(path)
    return LoadedStudy(path, base=base)
