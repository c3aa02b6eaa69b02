"""Several runs: which belong together, and which cells are compared."""

import html
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from comity._errors import ComityError, unknown
from comity._words import listed
from comity._write import real
from comity.compare.cells import Cell, Setting
from comity.compare.conditions import Varying, in_words, of_cell, of_setting, shared_with_local
from comity.config import MEAN
from comity.results import DamagedRun, Flat, LoadedRun, PlannedRun, RunFolder, StudyFolder, Tuned, flatten, schema

if TYPE_CHECKING:
    from comity.compare.table import Table
    from comity.compare.verdict import Verdict


class NoRun(ComityError):
    """No run has started yet."""


class LoadedStudy:
    """The runs of a study, or all runs found in some folders."""

    def __init__(
        self,
        *paths: Path | str,
        base: str | None = None,
        read: Callable[[Path], LoadedRun] = LoadedRun,
        damaged: Mapping[Path, str] | None = None,
        thorough: bool = False,
    ) -> None:
        """``base``: label of the rule that other rules are compared with (default: the plain mean).

        ``damaged``: runs to leave out, with the reason. ``thorough``: also check data that a table does not need.
        """
        self.paths = [Path(path) for path in paths]
        self.damaged = dict(damaged or {})
        """Runs that cannot be read, or have impossible numbers, with the reason; they are left out."""

        def sound(folder: Path) -> LoadedRun | None:
            try:
                run = None if folder in self.damaged else read(folder)
                if run is not None:
                    run.check(thorough)
            except DamagedRun as error:
                self.damaged[folder] = str(error)
                return None
            return run

        folders = {real(folder): folder for path in self.paths for folder in _run_folders(path)}
        runs = [run for folder in folders.values() if (run := sound(folder)) is not None]
        if self.damaged and not runs:
            raise ComityError(next(iter(self.damaged.values())))
        runs = [*_cached_locals(runs, sound), *runs]
        self.runs = _unique(runs)
        """Started runs, in the study's order, with their local baselines."""
        self.doubles = len(runs) - len(self.runs)
        """Number of run folders that are left out because another one holds the same run."""
        self._asked_base = base

    def __repr__(self) -> str:
        return f"LoadedStudy({len(self.runs)} runs, {', '.join(map(str, self.paths))})"

    def _repr_html_(self) -> str:
        verdict = self.verdict
        parts = [f"<h3>{verdict.title}</h3><p>{html.escape(verdict.evidence)}</p>"]
        parts += [f"<p>→ {html.escape(f'{what}. {why}')}</p>" for what, why in verdict.advice]
        if verdict.cell is not None and verdict.cell.clients:
            parts.append(verdict.cell.client_table._repr_html_())
        return "".join([*parts, self.table()._repr_html_()])

    @property
    def plot(self) -> Any:
        """Figures for a notebook: ``study.plot.gain()``. Needs matplotlib."""
        return resolve_name("comity.report:Plots")(self)

    # Contents.

    @cached_property
    def planned(self) -> dict[Path, PlannedRun]:
        """The planned runs of the study by folder, in its order, with the errors of failed ones."""
        return {path / run.folder: run for path in self.paths for run in StudyFolder(path).planned()}

    @property
    def failed(self) -> dict[str, str]:
        """The error of each run that failed, by title."""
        return {run.title: run.error for run in self.planned.values() if run.error}

    @cached_property
    def tuning(self) -> list[Tuned]:
        """Each hyper-parameter search: values tried, their validation scores and the value chosen."""
        return [search for path in self.paths for search in StudyFolder(path).tuning()]

    @cached_property
    def tuned_training(self) -> set[str]:
        """Training options that were tuned for each method separately, so that they do not define a setting."""
        return {search.option for search in self.tuning if "." not in search.option}

    def _decisive(self, run: LoadedRun) -> Flat:
        tuned = self.tuned_training | ({"local_lr"} if "lr" in self.tuned_training else set())
        return {key: value for key, value in run.decisive.items() if key not in tuned}

    @property
    def waiting(self) -> int:
        """Number of planned runs that have not started."""
        return sum(not RunFolder(folder).started for folder in self.planned)

    @property
    def unfinished(self) -> int:
        return self.waiting + sum(not run.finished for run in self.runs)

    @property
    def over(self) -> bool:
        """Whether every run is finished or has failed."""
        return self.unfinished <= len(self.failed)

    # What is compared with what.

    @cached_property
    def varying(self) -> Varying:
        return Varying(map(self._decisive, self.runs))

    @cached_property
    def settings(self) -> list[Setting]:
        settings: dict[str, Setting] = {}
        for run in sorted(self.runs, key=lambda run: run.local):  # Local last: it joins settings that exist
            for setting in self._settings_of(run, settings):
                if run.repeats_local:
                    setting.repeated[run.seed] = run
                else:
                    self._cell_of(run, setting).runs[run.seed] = run
        for setting in settings.values():
            for cell in setting.cells:
                base = next(iter(self._base_candidates(cell)), cell)
                cell.base = base if cell.rule and base is not cell else None
            methods = list(dict.fromkeys(cell.method for cell in setting.cells))
            labels = list(dict.fromkeys(cell.method_label for cell in setting.cells))
            for cell in setting.cells:
                cell.runs = dict(sorted(cell.runs.items()))
            setting.cells.sort(key=lambda cell: (labels.index(cell.method_label), cell.base is not None))
            setting.cells.sort(key=lambda cell: (not cell.local, methods.index(cell.method)))
        return list(settings.values())

    def _settings_of(self, run: LoadedRun, settings: dict[str, Setting]) -> list[Setting]:
        decisive = self._decisive(run)
        if run.local:
            served = shared_with_local(decisive)
            same = [setting for setting in settings.values() if shared_with_local(setting.options) == served]
            if same:
                return same
        options = of_setting(decisive)
        label = in_words(self.varying.of(decisive))
        return [settings.setdefault(_key_of(options), Setting(options, label))]

    def _cell_of(self, run: LoadedRun, setting: Setting) -> Cell:
        options = of_cell(run.decisive)
        for cell in setting.cells:
            if cell.options == options:
                return cell
        method, rule = (self.varying.label(run.decisive, component) for component in ("method", "rule"))
        setting.cells.append(Cell(setting, options, method, rule))
        return setting.cells[-1]

    def _base_candidates(self, cell: Cell) -> list[Cell]:
        """The same method with the plain mean, weighted by size first; or with the rule given as base."""
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
        """Label of the rule that differences refer to."""
        labels = {cell.rule_label for cell in self.cells if cell.rule}
        if self._asked_base is not None and self._asked_base not in labels:
            raise unknown("base", self._asked_base, labels)
        return self._asked_base or MEAN

    @property
    def base_remark(self) -> str:
        """Remark on which of several Mean configurations is the base, if none was chosen; otherwise empty."""
        several = [means for cell in self.cells if len(means := self._base_candidates(cell)) > 1]
        if not several:
            return ""
        every = dict.fromkeys(cell.rule_label for means in several for cell in means)
        taken = dict.fromkeys(means[0].rule_label for means in several)
        return f"There are several means, {listed(every)}; differences are to {listed(taken)}, --base chooses another."

    @cached_property
    def verdict(self) -> "Verdict":
        """The overall verdict; with several settings, the most favourable one."""
        from comity.compare.verdict import Verdict, verdict_of

        found = [verdict_of(setting) for setting in self.settings]
        order = ("Join", "Join with the guard", "Undecided", "Train locally")
        best = min(found, key=lambda each: order.index(each.title), default=Verdict("Undecided", "No run.", None, []))
        if len(found) < 2:
            return best
        counts = {title: sum(each.title == title for each in found) for title in order}
        words = listed(f"{title} in {count}" for title, count in counts.items() if count)
        return replace(best, evidence=f"{best.evidence} Of {len(found)} settings: {words}.")

    def table(self) -> "Table":
        from comity.compare.table import Table

        return Table.of(self)


def load(path: str | Path, *, base: str | None = None) -> LoadedRun | LoadedStudy:
    """Load the run or the study in a folder. ``base``: label of the rule that a study's rules are compared with."""
    if RunFolder(path).started:
        return LoadedRun(path)
    return LoadedStudy(path, base=base)


def _key_of(options: Flat) -> str:
    return repr(sorted(options.items()))


def _unique(runs: Iterable[LoadedRun]) -> list[LoadedRun]:
    """Each run once, preferring a folder where it is finished."""
    found: dict[tuple[str, int, bool], LoadedRun] = {}
    for run in runs:
        key = (_key_of(run.decisive), run.seed, run.repeats_local)
        if key not in found or (run.finished and not found[key].finished):
            found[key] = run
    return list(found.values())


def _cached_locals(runs: list[LoadedRun], read: Callable[[Path], LoadedRun | None]) -> list[LoadedRun]:
    """The local baselines of the runs, and the repeated ones, from the caches beside them, if not among the runs."""
    wanted = {(_local_key(run), repeated) for run in runs if not run.local for repeated in (False, True)}
    missing = wanted - {(_local_key(run), run.repeats_local) for run in runs if run.local}
    found = []
    around = [folder for run in runs for folder in (real(run.path).parent, real(run.path))]
    for cache in dict.fromkeys(folder / schema.LOCAL_CACHE for folder in around):
        for folder in sorted(cache.glob("*")):
            run = read(folder) if missing and RunFolder(folder).started else None
            if run is not None and (key := (_local_key(run), run.repeats_local)) in missing:
                missing.remove(key)
                found.append(run)
    return found


def _local_key(run: LoadedRun) -> tuple[str, int, str, str]:
    """A key that a run shares with its local baseline, trained on the same kind of machine."""
    width = run.info.trainer.partition(" ")[2]
    return _key_of(shared_with_local(flatten(run.options))), run.seed, run.info.data, width


def _run_folders(path: Path) -> list[Path]:
    """The started runs in a folder; for a study its own runs, in its order."""
    if not path.exists():
        raise NoRun(f"{path} does not exist; give run or study folders")
    if not path.is_dir():
        raise ComityError(f"{path} is a file; give run or study folders")
    planned = StudyFolder(path).planned()
    found = [path / run.folder for run in planned] if planned else list(below(path))
    begun = [folder for folder in found if RunFolder(folder).started]
    if not begun and not planned:
        raise NoRun(f"{path} holds no run: there is no {schema.CONFIG} in it or below it")
    return begun


def below(path: Path, seen: set[Path] | None = None, *, studies: bool = False) -> Iterator[Path]:
    """Run folders in a folder, each once despite links; comity's hidden folders are skipped.

    ``studies``: yield a study folder itself instead of its runs.
    """
    seen = set() if seen is None else seen
    if (place := real(path)) in seen:
        return
    seen.add(place)
    if RunFolder(path).started or (studies and (path / schema.CELLS).is_file()):
        yield path
        return
    for child in sorted(path.iterdir(), key=_natural):
        if child.is_dir() and not child.name.startswith("."):
            yield from below(child, seen, studies=studies)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key: seed 2 before seed 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]
