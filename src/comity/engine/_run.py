"""A run, from a configuration to its result."""

import html
import inspect
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from comity import __version__
from comity._components import Component
from comity._errors import ComityError
from comity._memory import within_memory
from comity._options import options as declared
from comity.compare import ClientTable
from comity.config import Config, unknown_option
from comity.data import GIVEN, Federation, dataset_of, schema_text
from comity.engine import _checkpoint
from comity.engine._baseline import Baseline, read_baseline, train_baseline
from comity.engine._callbacks import Callback, Checkpoint, Evaluate, WriteFolder, make_callbacks, tracker
from comity.engine._evaluation import by_client
from comity.engine._plan import Links, RunPlan, threads
from comity.engine._result import accuracy_drops, result_of
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._tests import general_error
from comity.metrics import ALL
from comity.results import (
    ANEW,
    CHECKPOINT,
    ROUNDS,
    SCHEMA,
    Columns,
    Cosines,
    MetricInfo,
    PartitionTable,
    Result,
    RoundRecord,
    RunFolder,
    RunInfo,
    Weights,
)

MOST_KEPT = 1_000
"""Maximum number of clients whose coefficients are kept for all rounds: with more, memory would grow per round."""


@dataclass(kw_only=True, repr=False)
class Run:
    """A run and, when it is done, its result. Passed to callbacks."""

    plan: RunPlan
    site: Site
    server: Server
    folder: RunFolder | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Unique id of the run, shared with its local baseline."""
    callbacks: list[Callback] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)
    """One record per round, as in ``rounds.jsonl``."""
    weights: list[Weights] = field(default_factory=list)
    """The rule's coefficients per round, as in ``weights.jsonl``; with many clients, of the newest round only."""
    cosines: list[Cosines] = field(default_factory=list)
    """Cosines between updates in some rounds of this process, as in ``cosines.jsonl``."""
    columns: Columns = field(default_factory=dict)
    """The newest evaluation: one list over clients per metric, as in ``clients.csv``."""
    accuracy: dict[int, float] = field(default_factory=dict)
    """Each client's accuracy in the newest evaluation, also if that was before a resume."""
    local: Columns | None = None
    """Evaluation of the local baseline."""
    control: Columns = field(default_factory=dict)
    """Evaluation of the repeated local baseline (another training seed)."""
    stopping: bool = False
    """Whether the run stops early after this round."""
    resumed_from: Path | None = None
    """The checkpoint that the run was resumed from."""
    _result: Result | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        clients, rounds = len(self.federation), f"round {self.server.round} of {self.config.last_round}"
        return f"Run({self.title}, {self.federation.name}, {clients} clients, {rounds})"

    def _repr_html_(self) -> str:
        if (table := self.clients) is None:
            return html.escape(repr(self))
        return table._repr_html_()

    @property
    def clients(self) -> ClientTable | None:
        """One row per client, with its gain over local training; ``None`` if there is nothing to compare yet."""
        names = self.federation.client_names
        return None if self._result is None else ClientTable.of_result(self.title, self._result, names)

    @property
    def result(self) -> Result:
        """The result of the finished run."""
        if self._result is None:
            raise ComityError(f"this run has no result: it ended after round {self.server.round}")
        return self._result

    @property
    def config(self) -> Config:
        return self.plan.config

    @property
    def federation(self) -> Federation:
        return self.site.federation

    @property
    def key(self) -> str:
        """Hash of configuration, data and trainer; runs with the same key are bit-identical."""
        return f"{self.config.key}-{self.federation.fingerprint}-{self.plan.trainer}"

    @property
    def excluded(self) -> list[int]:
        """Clients left out of the reported scores, such as malicious ones."""
        return sorted(self.server.excluded)

    @property
    def own_rule(self) -> bool:
        """Whether the option ``rule`` has no effect: Local has no rule, and some methods bring their own."""
        return self.config.is_local or self.site.method.brings_rule

    @property
    def title(self) -> str:
        return self.config.title(self.own_rule)

    @property
    def done(self) -> bool:
        return self.server.round >= self.config.last_round

    def compare_with(self, baseline: Baseline) -> None:
        """Compare each client's model with the same client's model in a local baseline."""
        self.local = baseline.columns
        if baseline.models is not None:
            self.site.add_baseline(self.site.reference, baseline.models)

    def save(self) -> None:
        """Write a checkpoint, if there is a run folder."""
        if self.folder is not None:
            marks = self.folder.secure()  # before the checkpoint, which relies on these lines
            _checkpoint.save(self.folder / CHECKPOINT, self.server, self.key, marks)

    def finish(self, result: Result) -> None:
        """Set the result, after extensions have added their fields."""
        for extension in self.site.extensions:
            result = extension.after_training(self, result)
        self._result = result

    def evaluate(self, general: bool) -> None:
        """Evaluate every client's model now; ``general`` also measures S-acc and G-acc (other clients' tests)."""
        with _checkpoint.resumed(self.resumed_from):
            self.columns = self.server.evaluate(general, general or self.done)
        self.server.record.fell = accuracy_drops(self.accuracy, self.columns)
        self.accuracy = by_client(self.columns)
        if ALL.key in self.columns:
            self.server.record.general_error = general_error(self.site.tests.sample)
        for callback in self.callbacks:
            callback.on_evaluate(self, self.columns)


def run(
    config: Config | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    wait: bool = False,
    callbacks: Sequence[Callback | str] = (),
    stop: Callable[[], bool] = lambda: False,
    federation: Federation | None = None,
    link: Links = threads,
    plan: RunPlan | None = None,
    **options: Any,
) -> Run:
    """Train a model: ``run(method="FedRep", rule={"name": "ConFREE", "c": 0.4}, clients=20)`` or ``run(Config(...))``.

    In Python ``method``, ``rule``, ``model``, ``partition`` and ``extension`` may also be classes or objects, and
    ``data`` may be ``(x, y, client)``, a data frame (with ``data.target`` and ``data.client``), a ``Dataset`` or a
    ``Federation``.

    Without ``out`` nothing is written. ``wait``: if another process already runs in ``out``, wait for it. ``callbacks``
    are objects, or dotted names of ``Callback`` classes. ``stop`` is called after every round; the run stops when it
    returns true. ``federation`` is used instead of the configured data. ``link`` is the connection to the clients; by
    default they are threads of this process. A ``plan`` replaces the configuration, ``federation`` and ``link``.
    """
    for name in options:
        if name.partition(".")[0] not in declared(Config):
            raise unknown_option(name, inspect.signature(run).parameters)
    data = options.get("data")
    given = data is not None and not _is_named(data)
    options |= {"data": GIVEN} if given else {}
    config = config.with_(**options) if config is not None else Config.of(options)
    before = torch.get_num_threads()
    # one thread per worker, and always one for the server: the bits of a product depend on how it is split
    torch.set_num_threads(1)
    try:
        runner = Runner(make_callbacks(callbacks), stop)
        if plan is None and given and federation is None:
            plan = _plan_of_given(config, data, link)
        plan = plan or RunPlan(config, federation, link)
        with within_memory("the run"):
            return runner.run(plan, resume, overwrite, wait)
    finally:
        torch.set_num_threads(before)


def _plan_of_given(config: Config, data: Any, link: Links) -> RunPlan:
    """A plan for data given in Python."""
    found = dataset_of(data, config.data.options)
    if not isinstance(found, Federation):
        found = RunPlan(config, dataset=found).everyone
    return RunPlan(config, found, link)


def _is_named(data: Any) -> bool:
    """Whether this is the name of a data set, with or without options, instead of the data."""
    return isinstance(data, (str, Component)) or (isinstance(data, Mapping) and isinstance(data.get("name"), str))


@dataclass(frozen=True)
class Runner:
    """Performs a run and its local baselines."""

    callbacks: list[Callback]
    stop: Callable[[], bool]

    def run(self, plan: RunPlan, resume: bool = False, overwrite: bool = False, wait: bool = False) -> Run:
        run = self.assemble(plan)
        if run.folder is None:
            return self.perform(run, resume, overwrite)
        with run.folder.locked(self.stop if wait else None) as held:
            if not held:
                return run
            with run.folder.new(lambda: run.server.round):
                return self.perform(run, resume, overwrite)

    def assemble(self, plan: RunPlan, part_of: Run | None = None) -> Run:
        # 1. Both sides of the run. Invalid runs are rejected here, before anything is written.
        site, server = plan.build()
        run = Run(plan=plan, site=site, server=server)
        run.id = run.id if part_of is None else part_of.id
        run.folder = None if plan.config.out is None else RunFolder(plan.config.out)
        run.callbacks = [*_own_callbacks(run), *self.callbacks]
        for option in ("reference", "control"):
            if (path := getattr(plan.config, option)) not in ("auto", "none"):
                found = read_baseline(RunFolder(Path(path)), plan.local_baseline(), run.federation)
                if option == "reference":
                    run.compare_with(found)
                else:
                    run.control = found.columns
        return run

    def perform(self, run: Run, resume: bool, overwrite: bool) -> Run:
        config, server = run.config, run.server

        # 2. The folder, and the checkpoint to resume from.
        if run.folder is not None:
            run.records = open_folder(run, run.folder, resume, overwrite)
        server.link.run_id = run.id

        for extension in run.site.extensions:
            extension.before_training(run)

        # 3. The local baselines to compare with.
        if not config.is_local and not self.train_baselines(run, resume):
            return run

        # 4. The rounds.
        if advice := server.advice:
            warnings.warn_explicit(advice, UserWarning, "comity", 1)
        for callback in run.callbacks:
            callback.on_start(run)
        if server.round == 0:
            server.method.begin(server)
        run.stopping = self.stop()
        while not run.done and not run.stopping:
            with _checkpoint.resumed(run.resumed_from):
                record = server.step()
            for extension in run.site.extensions:
                extension.after_round(run)
            run.stopping = self.stop()
            run.records.append(record)
            run.weights = [entry for entry in run.weights if len(entry.ids) <= MOST_KEPT] + server.weights
            if run.done or server.round % max(1, config.last_round // 10) == 0:
                run.cosines += server.cosines  # N×N numbers: ten times per run are enough for plots
            for callback in run.callbacks:
                callback.on_round(run, record)

        # 5. The result.
        if run.done:
            with _checkpoint.resumed(run.resumed_from):  # for a run without any rounds left to train
                run.columns = run.columns or server.evaluate(config.general_in(server.round))
            run.finish(result_of(run))
        for callback in run.callbacks:
            callback.on_end(run)
        return run

    def train_baselines(self, run: Run, resume: bool) -> bool:
        """Train the local baselines for comparison and for extensions; false if that was stopped."""
        config = run.config
        if config.reference == "auto":
            if (found := train_baseline(self, run, config.local_on, resume)) is None:
                return False
            run.compare_with(found)
            if config.control == "auto":
                if (again := train_baseline(self, run, config.local_on, resume, repeats=found)) is None:
                    return False
                run.control = again.columns
        for on in dict.fromkeys(on for extension in run.site.extensions for on in extension.baselines):
            if (found := train_baseline(self, run, on, resume)) is None:
                return False
            assert found.models is not None
            run.site.add_baseline(on, found.models)
        return True


def open_folder(run: Run, folder: RunFolder, resume: bool, overwrite: bool) -> list[RoundRecord]:
    """Prepare the folder; returns the records of completed rounds."""
    trainer = run.plan.trainer
    if resume and folder.started:
        before = folder.info()
        run.id = before.id or run.id
        if before.trainer and before.trainer != trainer:
            raise ComityError(
                f"the run in {folder.path} used the trainer {before.trainer}, this machine would use {trainer}: "
                f"the bits would differ; {ANEW}"
            )
    info = RunInfo(
        schema=SCHEMA,
        comity=__version__,
        title=run.title,
        key=run.config.key,
        own_rule=run.own_rule,
        eval_point=run.site.eval_point,
        data=run.federation.fingerprint,
        id=run.id,
        trainer=trainer,
        metrics=[MetricInfo.of(metric) for extension in run.site.extensions for metric in extension.metrics],
    )
    folder.open(info, run.config.plain(), resume=resume, overwrite=overwrite)
    federation = run.federation
    table = None if federation.preprocessing is None else federation.preprocessing.schema
    folder.add_partition(
        PartitionTable(
            name=federation.name,
            partition=federation.partition,
            classes=federation.classes,
            counts=federation.counts.tolist(),
            client_names=list(federation.client_names),
            class_names=list(federation.class_names),
            tests_drawn=federation.tests_drawn,
            folds=federation.folds,
            is_uneven=federation.uneven,
        ),
        schema_text(table) if table is not None else "",
    )
    saved = _checkpoint.read(folder / CHECKPOINT, run.server, run.key) if resume else None
    if saved is None:
        return folder.rewind({})
    records = folder.rewind(saved.marks)
    if [record.round for record in records] != list(range(1, saved.round + 1)):
        raise ComityError(f"{folder / ROUNDS} does not hold the rounds up to the checkpoint's; {ANEW}")
    run.server.restore(saved)
    run.resumed_from = folder / CHECKPOINT
    if evaluation := folder.newest_evaluation():
        run.accuracy = by_client(evaluation)
    return records


def _own_callbacks(run: Run) -> list[Callback]:
    """The built-in callbacks; files are written before the checkpoint that relies on them."""
    config, folder = run.config, run.folder
    callbacks: list[Callback] = [Evaluate()]
    if folder is not None:
        callbacks += [WriteFolder(folder), Checkpoint()]
    return [*callbacks, *(tracker(name, folder) for name in config.track)]
