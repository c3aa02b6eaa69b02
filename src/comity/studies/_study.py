"""A study, from its entries to its table."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.markup import escape

from comity._components import plain
from comity._errors import ComityError
from comity._words import counted
from comity._write import locked, write_text
from comity.compare import LoadedStudy
from comity.config import ACCURACY, Config, Entries, read_yaml
from comity.metrics import GENERAL_VALIDATED, VALIDATED, Metric
from comity.results import LoadedRun, PlannedRun, RunFolder, StudyFolder, Trial, Tuned, schema
from comity.studies._crew import Crew, Job, Message, execute
from comity.studies._grid import at_scale, local_of, locals_of, override, repeated_of
from comity.studies._places import Places
from comity.studies._plan import StudyPlan
from comity.studies._show import Show
from comity.studies._tune import Group, Search, spelled_out

LONG = 1000  # total rounds of all runs above which a study first tries one round of each cell


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
    """Run all unfinished configurations of a grid, and their local baselines; then write the table.

    ``study(method=["FedRep", "APFL"], rule=["Mean", "ConFREE"], seeds=3, sweep={"partition.alpha": [0.1, 1]},
    data="digits", out="studies/x")``, or ``study("study.yaml")`` with overriding options; dotted options as
    ``**{"rule.c": 0.4}``. ``callbacks`` are dotted names of ``comity.engine.Callback`` classes, created once per run in
    the worker process. ``allow_code``: the file may name your own classes, whose code is then executed. ``overwrite``
    replaces runs with another configuration; ``stop`` is called after every round. ``shard="3/16"`` runs the third of
    16 parts; ``on="ray"`` runs on a Ray cluster, ``on="ray:ADDRESS"`` on the cluster at ADDRESS.
    """
    show = show or Show()
    plan = StudyPlan(_entries(config, scale, allow_code, options), shard, on, show.say_first)
    return _Study(plan, overwrite, show, stop).run()


def dry_run(
    config: str | Path | Mapping[str, Any] | None = None,
    *,
    scale: str | None = None,
    allow_code: bool = False,
    overwrite: bool = False,
    show: Show | None = None,
    example: str | None = None,
    **options: Any,
) -> float:
    """Estimated seconds that ``study`` would take with the same arguments, by a cost model. Nothing is written.

    ``example``: name of the example that the entries come from; differences from its paper are reported too.
    """
    plan = StudyPlan(_entries(config, scale, allow_code, options))
    show = show or Show()
    if example is not None:
        from comity.studies._papers import report_differences

        report_differences(example, plan.entries, plan.cells, plan.names, lambda text: show.say(escape(text)))
    return _Study(plan, overwrite, show, lambda: False).estimate(quick=True)


def _entries(
    config: str | Path | Mapping[str, Any] | None, scale: str | None, allow_code: bool, options: Mapping[str, Any]
) -> Entries:
    entries = read_yaml(Path(config), allow_code=allow_code) if isinstance(config, (str, Path)) else dict(config or {})
    entries = override(at_scale(entries, scale), options)
    if entries.get("out") is None:
        raise ComityError("a study needs out, the folder that its runs go into")
    return spelled_out(entries)


class _Study:
    """Does the runs of a plan, and writes the plan, the searches and the table."""

    def __init__(self, plan: StudyPlan, overwrite: bool, show: Show, stop: Callable[[], bool]) -> None:
        self.plan, self.out, self.show, self.stop = plan, plan.out, show, stop
        self.folder = StudyFolder(plan.out)
        self.places = Places(plan.out, plan.names, plan.runs.fingerprint, overwrite)
        self.ends: dict[str, Message] = {}  # how each run of this session ended, by key
        for line in plan.skipped:
            show.say(escape(line))

    def estimate(self, *, quick: bool = False) -> float:
        from comity.studies._runs import estimate

        return estimate(self.plan, self.places.finished, self.show, quick=quick)

    def run(self) -> LoadedStudy:
        plan = self.plan
        untuned = [cell for group in plan.groups if not group.searches for cell in group.cells]
        known = [*locals_of(plan.asked), *(plan.asked if plan.shard else untuned)]
        to_do = {cell.key: cell for cell in (*known, *plan.asked) if not self.places.finished(cell)}.values()
        if sum(config.last_round for config in to_do) >= LONG:
            self.estimate()  # a failure in the first round must not appear in the last hour
        else:
            plan.runs.check(to_do)
        with self.held(), self.hired() as self.crew:
            self.places.ours = {config.key for config in known}
            for config in known:
                self.places.place(config)  # rejects conflicting runs
            self.show.say(
                f"{f'Shard {plan.shard}: ' if plan.shard else ''}{counted(len(plan.asked), 'run')} and "
                f"{counted(len(locals_of(plan.asked)), 'local baseline')}, "
                + ("on Ray, " if plan.on_ray else f"{plan.most} in parallel, ")
                + f"workers per run: {plan.workers}."
            )
            self.note()
            if plan.most > 1 or plan.on_ray:
                plan.runs.datasets.clear()  # workers read their own
            self.search()
            if not self.stop():
                final = [cell for group in plan.groups if not group.failed for cell in group.settled()]
                final = plan.asked if plan.shard else final
                for config in final:
                    self.places.move_in(config)
                self.perform(final)
            self.note()
        return LoadedStudy(self.out)

    def held(self) -> AbstractContextManager[bool]:
        """Lock the folder: two studies in it would overwrite each other; shards share only the study's own files."""
        if (shard := self.plan.shard) is None:
            return locked(self.folder / schema.LOCK, f"another study is running in {self.out}")
        name = f"{schema.LOCK}-{shard.replace('/', '-of-')}"
        return locked(self.folder / name, f"shard {shard} of this study is running in {self.out} already")

    @contextmanager
    def hired(self) -> Iterator[Crew]:
        """Workers: processes of this machine, or tasks on a Ray cluster."""
        plan, log = self.plan, self.folder / schema.LOG
        if plan.on_ray:
            from comity.studies._ray import Cluster

            cluster = Cluster(plan.address, self.out, plan.workers, plan.cells[0].device != "cpu")
            with closing(cluster), closing(Crew(cluster.hire)) as crew:
                yield crew
            return

        from comity.studies._process import Process

        try:
            with closing(Crew(partial(Process, log=log))) as crew:
                yield crew
        finally:
            if log.exists() and not log.stat().st_size and plan.shard is None:  # another shard may have it open
                log.unlink()

    def perform(self, cells: Sequence[Config]) -> None:
        """Do the unfinished ones of these runs, local baselines first."""
        plan, wanted = self.plan, {config.key: config for config in (*locals_of(cells), *cells)}
        jobs: dict[str, Job] = {}
        for key, config in wanted.items():
            if self.places.finished(config):
                continue
            folder, baselines = self.places.place(config), {"reference": local_of(config)}
            ready = config.with_(out=folder, workers=plan.workers)
            if not config.is_local and config.control == "auto":
                baselines["control"] = repeated_of(config)
            if config.reference != "auto" or local_of(config).key == key:
                baselines = {}
            ready = ready.with_(**{option: str(self.places.place(each)) for option, each in baselines.items()})
            title = f"trying {folder.name}" if folder.parent.name == schema.TRIALS else plan.names.title(config)
            needs = tuple(jobs[each.key] for each in baselines.values() if each.key in jobs)
            jobs[key] = Job(ready, title, needs, plan.callbacks)
        self.show.begin(list(jobs.values()), len(wanted) - len(jobs))
        try:
            crew = self.crew if min(plan.most, len(jobs)) > 1 or plan.on_ray else None
            ends = execute(list(jobs.values()), plan.most, self.show.hear, self.stop, crew, plan.runs.plan)
        finally:
            self.show.end()
        self.ends |= {job.config.key: end for job, end in ends.items()}

    def search(self) -> None:
        """Try values until every search is finished, and write the scores."""
        groups = self.plan.groups
        searches = [(group, search) for group in groups for search in group.searches]
        if not searches:
            return
        runs = sum(search.most * len(group.tried) for group, search in searches)
        self.show.say(f"Tuning by validation: {len(searches)} searches, at most {runs} runs (--budget for fewer).")
        while not self.stop():
            under_way = [(group, search) for group in groups if (search := group.current)]
            batch = [(s, value, group.trials(s, value)) for group, s in under_way for value in s.wanted()]
            if not batch:
                for tuned in (self.tuned(*pair) for pair in searches):
                    how = f"by {tuned.chosen_by.split(' in ')[0]}, of {len(tuned.tried)} values"
                    self.show.say(f"  {tuned.option} for {tuned.cell}: {tuned.chosen} ({how})")
                return
            for search, value, cells in batch:
                for config in cells:
                    self.places.place(config, f"{search.key.rpartition('.')[2]}{value}")
            self.perform([config for _, _, cells in batch for config in cells])
            if self.stop():
                return
            for search, value, cells in batch:
                scores = [self.validation(config) for config in cells]
                search.by = next((metric for metric, score in scores if not math.isnan(score)), search.by)
                search.tried[value] = fmean(score for _, score in scores)
            self.folder.write_tuning([self.tuned(*pair) for pair in searches])

    def validation(self, config: Config) -> tuple[Metric, float]:
        """The validation metric of a run and its value, higher is better; NaN for a failed run.

        It is ``tune_by`` if the run has it; for Local, and methods without a global model, the metric that decides.
        """
        metric = VALIDATED[config.metric or ACCURACY]
        if not self.places.finished(config):
            return metric, math.nan
        run = LoadedRun(self.places.place(config))
        if self.plan.tune_by and config.general_validation:
            if math.isnan(run.metric(GENERAL_VALIDATED["G-acc"].key)):
                raise ComityError(f"{run.path} was made without tune_by; give another --out")
            wanted = GENERAL_VALIDATED[self.plan.tune_by]
            metric = metric if math.isnan(run.metric(wanted.key)) else wanted
        return metric, metric.gain(run.metric(metric.key), 0.0)

    def tuned(self, group: Group, search: Search) -> Tuned:
        metric = search.by
        tried = {value: None if math.isnan(score) else metric.gain(score, 0.0) for value, score in search.tried.items()}
        return Tuned(
            cell=self.plan.names.title(group.cells[0]).rpartition(",")[0],
            option=search.key,
            chosen=search.chosen,
            chosen_by=f"{metric.label} in the last round, mean over clients and seeds",
            seeds=[cell.seed for cell in group.tried],
            tried=[Trial(value=value, validation=score) for value, score in tried.items()],
            unit="%" if metric.unit == "%" else "",
        )

    def note(self) -> None:
        """Write the study's entries, its plan and, as soon as a run is done, the table; one shard at a time."""
        with locked(self.folder / schema.LOCK, "", lambda: False) if self.plan.shard else nullcontext():
            self.folder.write_entries(_plain(self.plan.entries))
            self.folder.write_planned(self.planned())
            table = LoadedStudy(self.out).table()
            if table.blocks:
                for ending, text in (("md", table.markdown()), ("tex", table.latex()), ("csv", table.csv())):
                    write_text(self.folder / f"{schema.TABLE}.{ending}", text)

    def planned(self) -> list[PlannedRun]:
        """All runs in order, with the errors of failed ones, also of other shards."""
        plan, places = self.plan, self.places
        before = {run.folder: run for run in self.folder.planned()} if plan.shard else {}
        planned: dict[tuple[str, str], PlannedRun] = {}
        for group in [Group(locals_of(plan.cells), []), *plan.groups]:
            settled = not (group.current or group.failed)
            for config in group.settled() if settled else group.cells:
                folder = places.folders.get(config.key, places.home(config)) if settled else places.home(config)
                name, end = str(folder.relative_to(self.out)), self.ends.get(config.key, {})
                if name in before and config.key not in places.ours and not RunFolder(folder).finished:
                    end = {"error": before[name].error, "traceback": before[name].traceback}
                if group.failed:
                    end = {"error": f"every value that was tried for {group.failed.key} failed"}
                error, trace = (end.get(key, "") for key in ("error", "traceback"))
                run = PlannedRun(folder=name, title=plan.names.title(config), error=error, traceback=trace)
                planned.setdefault((run.folder, run.title), run)
        return list(planned.values())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else plain(value)
