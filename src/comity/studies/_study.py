"""A study from its entries to its table."""

import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from comity._components import plain
from comity._datasets import whereabouts
from comity._errors import ComityError
from comity._options import Count, convert
from comity._write import locked, write_text
from comity.compare import LoadedStudy
from comity.config import Config, Entries, read_yaml
from comity.metrics import VALIDATION
from comity.results import (
    LoadedRun,
    PlannedRun,
    RunFolder,
    StudyFolder,
    Trial,
    Tuned,
    other_configuration,
    other_data,
    schema,
)
from comity.studies._crew import Crew, Job, Message, Process, a_round, execute, ray_address
from comity.studies._grid import TRAINING, Names, at_scale, callback_names, expand, local_of, override, section
from comity.studies._shard import part
from comity.studies._show import Show, duration
from comity.studies._tune import Group, Search, groups, spelled_out

LONG = 1000
"""Rounds of all runs together, from which on a study first tries one round of each of its cells."""
PRUNE = "comity.engine.Prune"


def study(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    scale: str | None = None,
    allow_code: bool = False,
    overwrite: bool = False,
    show: Show | None = None,
    stop: Callable[[], bool] = lambda: False,
    shard: str | None = None,
    on: str | None = None,
    **options: Any,
) -> LoadedStudy:
    """Run every cell of a grid that is not done yet, and Local for each seed and setting; then write the table.

    ``study(method=["FedRep", "APFL"], rule=["Mean", "ConFREE"], seeds=3, sweep={"partition.alpha": [0.1, 1]},
    data="digits", out="studies/x")``, or ``study("study.yaml")`` with options over it; dotted options as
    ``**{"rule.c": 0.4}``. ``callbacks`` are dotted names of ``comity.engine.Callback`` classes, made once for each run
    in the process that does it. ``allow_code``: the file may name classes that do not come with comity, whose code is
    then run. ``overwrite`` replaces runs of another configuration that are in the way; ``stop``
    is asked after every round. ``shard="3/16"`` does the third of 16 parts; ``on="ray"`` does the runs on a Ray cluster
    (``on="ray:ADDRESS"`` on the one there).
    """
    entries = _entries(config, scale, allow_code, options)
    return _Study(entries, overwrite, show or Show(), stop, shard, on).run()


def dry_run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    scale: str | None = None,
    allow_code: bool = False,
    overwrite: bool = False,
    show: Show | None = None,
    **options: Any,
) -> float:
    """About how many seconds ``study`` would take with the same arguments. Nothing is written."""
    entries = _entries(config, scale, allow_code, options)
    return _Study(entries, overwrite, show or Show(), lambda: False).estimate()


def _entries(
    config: str | Path | Mapping[str, Any] | None, scale: str | None, allow_code: bool, options: Mapping[str, Any]
) -> Entries:
    entries = read_yaml(Path(config), allow_code=allow_code) if isinstance(config, (str, Path)) else dict(config or {})
    entries = override(at_scale(entries, scale), options)
    if entries.get("out") is None:
        raise ComityError("a study needs out, the folder that its runs go into")
    return spelled_out(entries)


def _settled(cells: Sequence[Config]) -> list[Config]:
    """The cells with the device, clients and model that they get where none is named; data are read once."""
    for data, folder in {(cell.data.name, cell.data_dir) for cell in cells}:
        whereabouts(data, folder)  # before torch is imported

    from comity.engine import RunPlan

    known: dict[str, Config] = {}
    result = []
    for cell in cells:
        about = repr((cell.data, cell.data_dir, cell.partition, cell.clients, cell.model, cell.device))
        if about not in known:
            known[about] = RunPlan(cell).config
        like = known[about]
        result.append(cell.with_(clients=like.clients, model=like.model, device=like.device))
    return result


class _Study:
    def __init__(
        self,
        entries: Entries,
        overwrite: bool,
        show: Show,
        stop: Callable[[], bool],
        shard: str | None = None,
        on: str | None = None,
    ) -> None:
        self.entries, self.overwrite, self.show, self.stop, self.shard = entries, overwrite, show, stop, shard
        self.on_ray, self.address = ray_address(on)
        self.out = Path(entries["out"])
        self.folder = StudyFolder(self.out)
        if self.out.is_file() or (self.out.is_dir() and not (self.folder / schema.STUDY).exists() and _shown(self.out)):
            raise ComityError(f"out {self.out} is not empty and holds no study; give another --out")
        tune = section(entries, "tune")
        training = any(key in TRAINING for key in tune)
        if training:  # Local is tuned too, for which it needs validation samples
            entries = {"local_on": "train"} | dict(entries)
        self.cells = _settled(expand(entries | {"out": None}))
        if training:  # all are compared with the best Local
            every = [*_locals(self.cells), *self.cells]
            self.cells = list({cell.key: cell.with_(reference="none") for cell in every}.values())
        if any(cell.reference not in ("auto", "none") for cell in self.cells):
            raise ComityError("reference must be auto or none in a study: each seed has a Local of its own")
        keep = convert(entries.get("keep_checkpoints", False), bool, "keep_checkpoints")
        self.callbacks = (*callback_names(entries), *([] if keep else [PRUNE]))
        self.asked = self.cells if shard is None else part(self.cells, shard)
        if shard is not None and tune:
            raise ComityError("a shard cannot tune: what is tried next depends on all that was tried; use --on ray")
        limits = (convert(entries.get(name), Count | None, name) for name in ("budget", "tune_seeds"))
        self.groups = groups(self.cells, tune, *limits)
        self.names = Names([*_locals(self.cells), *self.cells], tune)
        self.folders = _folders(self.out)
        """Where each run is, or will be, by key."""
        self.ours: set[str] = set()
        """Those that belong to this study as it is now."""
        self.fingerprints: dict[str, str | None] = {}
        """Of the data that are there now, by their configuration."""
        self.most, self.workers = self.split()
        self.ends: dict[str, Message] = {}
        """How each run of this session ended, by key."""

    def split(self) -> tuple[int, int]:
        """Runs side by side, one a core, and the workers of each, as many as fit.

        The same for all runs of the study, so that their seconds can be compared.
        """
        first, most = self.cells[0], convert(self.entries.get("jobs"), Count | None, "jobs")
        if self.on_ray:  # which has them wait until there is room
            return most or sys.maxsize, max(1, first.workers)
        # What this process may use: Slurm gives an array's tasks some of a node's cores.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        usual = cores // max(1, first.workers) if first.device == "cpu" else 1  # a GPU is for one run at a time
        crew = most or max(1, min(usual, len(self.asked)))
        return crew, first.workers or max(1, cores // crew)

    def run(self) -> LoadedStudy:
        known = [cell for group in self.groups if not group.searches for cell in group.cells]
        known = [*_locals(self.asked), *(self.asked if self.shard else known)]
        to_do = {config.key: config for config in (*known, *self.asked) if not self.finished(config)}.values()
        if sum(config.last_round for config in to_do) >= LONG:
            self.estimate()  # what fails in its first round must not fail in the last hour
        else:
            self.check(list(to_do))
        with self.held(), self.hired() as self.crew:
            self.ours = {config.key for config in known}
            for config in known:
                self.place(config)  # refuses what is in the way
            self.show.say(
                f"{f'Shard {self.shard}: ' if self.shard else ''}{len(self.asked)} cells and "
                f"{len(_locals(self.asked))} times Local, "
                + ("on Ray, " if self.on_ray else f"{self.most} runs side by side, ")
                + f"workers in each: {self.workers}."
            )
            self.note()
            self.search()
            if not self.stop():
                final = [cell for group in self.groups if not group.failed for cell in group.settled()]
                final = self.asked if self.shard else final
                for config in final:
                    self.move_in(config)
                self.perform([*_locals(final), *final])
            self.note()
        return LoadedStudy(self.out)

    def held(self) -> AbstractContextManager[bool]:
        """Two studies in one folder would write over each other; two shards do not, but for what is the study's."""
        if self.shard is None:
            return locked(self.folder / schema.LOCK, f"another study is running in {self.out}")
        name = f"{schema.LOCK}-{self.shard.replace('/', '-of-')}"
        return locked(self.folder / name, f"shard {self.shard} of this study is running in {self.out} already")

    @contextmanager
    def hired(self) -> Iterator[Crew]:
        """Who does the runs: processes of this machine, or of a Ray cluster."""
        if self.on_ray:
            from comity.studies._ray import Cluster

            cluster = Cluster(self.address, self.out, self.workers, self.cells[0].device != "cpu")
            with closing(cluster), closing(Crew(cluster.hire)) as crew:
                yield crew
            return
        log = self.folder / schema.LOG
        try:
            with closing(Crew(partial(Process, log=log))) as crew:
                yield crew
        finally:
            if log.exists() and not log.stat().st_size and self.shard is None:  # another shard may have it open
                log.unlink()

    def estimate(self) -> float:
        """Try one round of each cell, and say how many runs there are to do and about how many seconds they take."""
        runs = Counter({config.key: 1 for config in (*_locals(self.asked), *self.asked) if not self.finished(config)})
        for group in self.groups:
            runs.update({cell.key: sum(search.most for search in group.searches) for cell in group.tried})
        configs = {config.key: config for config in (*_locals(self.asked), *self.asked) if runs[config.key]}
        self.check(list(configs.values()))
        self.show.say(
            f"{sum(runs.values())} runs to do{', at most' * any(group.searches for group in self.groups)}; "
            f"{self.most} side by side, workers in each: {self.workers}."
        )
        measured: dict[str, tuple[float, float, float]] = {}
        total = 0.0
        for key, config in configs.items():
            alike = config.with_(seed=0).key
            if alike not in measured:
                title = self.names.title(config).rpartition(", seed")[0]
                try:
                    measured[alike] = a_round(config.with_(workers=self.workers))
                except Exception as error:
                    reason = str(error) if isinstance(error, ComityError) else f"{type(error).__name__}: {error}"
                    raise ComityError(f"{title} fails in its first round: {reason}") from error
                self.show.say(f"  a round of {title}: {sum(measured[alike][:2]):.2f} s, {config.last_round} rounds")
            training, evaluating, general = measured[alike]
            last = config.last_round
            evaluated = [round for round in range(1, last + 1) if config.evaluates_in(round)]
            generals = sum(map(config.general_in, evaluated))
            seconds = training * last + evaluating * (len(evaluated) - generals) + general * generals
            total += runs[key] * seconds
        self.show.say(f"About {duration(total / self.most)} in all.")
        return total / self.most

    def check(self, cells: Sequence[Config]) -> None:
        """Refuse what cannot run, before anything is written: data, partition, method and rule of each cell."""
        from comity.engine import RunPlan

        settings: dict[str, dict[str, Config]] = {}
        for cell in cells:  # other seeds would tell the same
            about = repr((cell.data, cell.partition, cell.clients, cell.test_share, cell.val_share))
            settings.setdefault(about, {}).setdefault(cell.with_(seed=0).key, cell)
        for same in settings.values():
            federation = RunPlan(next(iter(same.values()))).everyone
            for cell in same.values():
                RunPlan(cell, federation).site  # noqa: B018

    # Where runs are.

    def place(self, config: Config, tried: str = "") -> Path:
        """The folder that holds this run already, or the one it will have: in ``.tuning`` while a value is tried."""
        if self.outdated(config):
            shutil.rmtree(self.folders.pop(config.key))
        if config.key not in self.folders:
            folder = self.home(config, tried)
            there = next((key for key, other in self.folders.items() if other == folder), None)
            if there in self.ours:  # names that differ by their case alone
                folder = folder.with_name(f"{folder.name}-{config.key[:6]}")
            elif there is not None:
                self.replace(folder, config)
                del self.folders[there]
            self.folders[config.key] = folder
        self.ours.add(config.key)
        return self.folders[config.key]

    def home(self, config: Config, tried: str = "") -> Path:
        return self.out / (schema.TRIALS if tried else schema.RUNS) / self.names.slug(config, tried)

    def replace(self, folder: Path, config: Config) -> None:
        """What an earlier study left under this name makes room, if the user says so."""
        if not self.overwrite:
            old, new = RunFolder(folder).options(), config.plain()
            differ = [key for key in new if new[key] != old.get(key) and key not in ("out", "workers", "reference")]
            raise other_configuration(folder, differ)
        shutil.rmtree(folder)

    def finished(self, config: Config) -> bool:
        folder = self.folders.get(config.key)
        return folder is not None and RunFolder(folder).finished and not self.outdated(config)

    def outdated(self, config: Config) -> bool:
        """Whether a run is there, but of other data than there are now, and makes room, if the user says so."""
        folder = self.folders.get(config.key)
        data = RunFolder(folder).info().data if folder is not None and RunFolder(folder).started else ""
        if folder is None or not data or self.fingerprint(config) in (None, data):
            return False
        if not self.overwrite:
            raise other_data(folder, config.data)
        return True

    def fingerprint(self, config: Config) -> str | None:
        from comity.engine import fingerprint_of

        about = repr((config.data, config.data_dir))
        if about not in self.fingerprints:
            self.fingerprints[about] = fingerprint_of(config)
        return self.fingerprints[about]

    def move_in(self, config: Config) -> None:
        """A run that a search has done already moves in among the others."""
        tried = self.folders.get(config.key)
        if tried is not None and tried.parent.name == schema.TRIALS:
            del self.folders[config.key]
            RunFolder(tried).move(self.place(config))

    # What is done.

    def perform(self, runs: Iterable[Config]) -> None:
        """Have these runs done, if they are not yet, Local before those that are measured against it."""
        wanted = {config.key: config for config in runs}
        jobs: dict[str, Job] = {}
        for key, config in wanted.items():
            if self.finished(config):
                continue
            folder, local = self.place(config), local_of(config)
            ready = config.with_(out=folder, workers=self.workers)
            measured = config.reference == "auto" and local.key != key
            if measured:
                ready = ready.with_(reference=str(self.place(local)))
            title = f"trying {folder.name}" if folder.parent.name == schema.TRIALS else self.names.title(config)
            jobs[key] = Job(ready, title, jobs.get(local.key) if measured else None, self.callbacks)
        self.show.begin(list(jobs.values()), len(wanted) - len(jobs))
        try:
            most = min(self.most, len(jobs))
            crew = self.crew if most > 1 or self.on_ray else None
            ends = execute(list(jobs.values()), most, self.show.hear, self.stop, crew)
        finally:
            self.show.end()
        self.ends |= {job.config.key: end for job, end in ends.items()}

    def search(self) -> None:
        """Try values until every search is over; how they did is written down."""
        searches = [(group, search) for group in self.groups for search in group.searches]
        if not searches:
            return
        runs = sum(search.most * len(group.tried) for group, search in searches)
        self.show.say(f"Tuning by validation: {len(searches)} searches, at most {runs} runs (--budget for fewer).")
        while not self.stop():
            under_way = [(group, search) for group in self.groups if (search := group.current)]
            batch = [(s, value, group.trials(s, value)) for group, s in under_way for value in s.wanted()]
            if not batch:
                for tuned in (self.tuned(*pair) for pair in searches):
                    best = max((trial.validation or 0 for trial in tuned.tried), default=0)
                    how = f"{100 * best:.2f} % on validation samples, of {len(tuned.tried)} values"
                    self.show.say(f"  {tuned.option} for {tuned.cell}: {tuned.chosen} ({how})")
                return
            for search, value, cells in batch:
                for config in cells:
                    self.place(config, f"{search.key.rpartition('.')[2]}{value}")
            every = [config for _, _, cells in batch for config in cells]
            self.perform([*_locals(every), *every])
            if self.stop():
                return
            for search, value, cells in batch:
                search.tried[value] = fmean(self.validation(config) for config in cells)
            self.folder.write_tuning([self.tuned(*pair) for pair in searches])

    def validation(self, config: Config) -> float:
        """NaN for a run that failed."""
        return LoadedRun(self.place(config)).metric(VALIDATION.key) if self.finished(config) else math.nan

    # What is left behind.

    def tuned(self, group: Group, search: Search) -> Tuned:
        return Tuned(
            cell=self.names.title(group.cells[0]).rpartition(",")[0],
            option=search.key,
            chosen=search.chosen,
            chosen_by="validation accuracy in the last round, mean over clients and seeds",
            seeds=[cell.seed for cell in group.tried],
            tried=[Trial(value=v, validation=None if math.isnan(s) else s) for v, s in search.tried.items()],
        )

    def note(self) -> None:
        """Write down the study, its plan and, as soon as a run is done, the table; shards do so one after another."""
        with locked(self.folder / schema.LOCK, "", lambda: False) if self.shard else nullcontext():
            self._note()

    def _note(self) -> None:
        self.folder.write_entries(_plain(self.entries))
        before = {run.folder: run for run in self.folder.planned()} if self.shard else {}
        planned: dict[tuple[str, str], PlannedRun] = {}
        for group in [Group(_locals(self.cells), []), *self.groups]:
            settled = not (group.current or group.failed)
            for config in group.settled() if settled else group.cells:
                folder = self.folders.get(config.key, self.home(config)) if settled else self.home(config)
                end = self.ends.get(config.key, {})
                other = before.get(str(folder.relative_to(self.out)))
                if other and config.key not in self.ours and not RunFolder(folder).finished:  # another shard's
                    end = {"error": other.error, "traceback": other.traceback}
                if group.failed:
                    end = {"error": f"every value that was tried for {group.failed.key} failed"}
                run = PlannedRun(
                    folder=str(folder.relative_to(self.out)),
                    title=self.names.title(config),
                    error=end.get("error", ""),
                    traceback=end.get("traceback", ""),
                )
                planned.setdefault((run.folder, run.title), run)
        self.folder.write_planned(list(planned.values()))
        table = LoadedStudy(self.out).table()
        if table.blocks:
            for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
                write_text(self.folder / f"{schema.TABLE}.{ending}", text)


def _locals(cells: Iterable[Config]) -> list[Config]:
    """The Local that each of these is measured against, every one once."""
    return list({(local := local_of(cell)).key: local for cell in cells if cell.reference == "auto"}.values())


def _shown(folder: Path) -> bool:
    return any(not path.name.startswith(".") for path in folder.iterdir())


def _folders(out: Path) -> dict[str, Path]:
    """The runs that a study holds, by key."""
    folders = sorted(folder for room in (schema.RUNS, schema.TRIALS) for folder in (out / room).glob("*"))
    return {RunFolder(folder).info().key: folder for folder in folders if RunFolder(folder).started}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else plain(value)
