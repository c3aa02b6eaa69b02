"""A run, from a configuration to its result."""

import inspect
import secrets
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from comity import __version__
from comity._components import Component
from comity._errors import ComityError
from comity._options import options as declared
from comity.config import Config, unknown_option
from comity.data import GIVEN, Federation, dataset_of
from comity.engine import _checkpoint
from comity.engine._alone import Alone
from comity.engine._assemble import Links, build, federation_of, settled, site_of, threads
from comity.engine._callbacks import (
    Callback,
    Checkpoint,
    Evaluate,
    SaveModels,
    WriteFolder,
    make_callbacks,
    tracker,
)
from comity.engine._evaluation import by_client, general_error
from comity.engine._result import falls, result_of
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._trainer import TrainerName
from comity.results import (
    ANEW,
    Columns,
    Cosines,
    PartitionTable,
    Result,
    RoundRecord,
    RunFolder,
    RunInfo,
    Weights,
    schema,
)


@dataclass(kw_only=True)
class Run:
    """A run on its way, and its result when it is done. Callbacks are handed this."""

    config: Config
    site: Site
    server: Server
    folder: RunFolder | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    """No other run has it; the Local that a run is compared with is part of that run."""
    callbacks: list[Callback] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)
    """One a round, as in ``rounds.jsonl``."""
    weights: list[Weights] = field(default_factory=list)
    """The rule's coefficients in each round of this process, as in ``weights.jsonl``."""
    cosines: list[Cosines] = field(default_factory=list)
    """The cosines between updates in some rounds of this process, as in ``cosines.jsonl``."""
    columns: Columns = field(default_factory=dict)
    """The newest evaluation, a list over clients for each metric, as in ``clients.csv``."""
    accuracy: dict[int, float] = field(default_factory=dict)
    """Each client's accuracy in the newest evaluation, also where that was before a resume."""
    local: dict[int, float] | None = None
    """Each client's accuracy when it trains alone."""
    stopping: bool = False
    """Whether the run ends with this round although it is not done."""
    _result: Result | None = field(default=None, init=False, repr=False)

    @property
    def result(self) -> Result:
        """What the run came to."""
        if self._result is None:
            raise ComityError(f"this run has no result: it ended after round {self.server.round}")
        return self._result

    @property
    def federation(self) -> Federation:
        return self.site.federation

    @property
    def key(self) -> str:
        """The same for two runs that give the same numbers: the configuration's, and that of the data."""
        return f"{self.config.key}-{self.federation.fingerprint}"

    @property
    def own_rule(self) -> bool:
        """Whether no rule could be chosen: Local has none, some methods bring their own."""
        return self.config.is_local or self.site.method.brings_rule

    @property
    def title(self) -> str:
        return self.config.title(self.own_rule)

    @property
    def done(self) -> bool:
        return self.server.round >= self.config.last_round

    def evaluate(self, general: bool) -> None:
        """Measure every client's model now; ``general`` asks for S-acc and G-acc too."""
        self.columns = self.server.evaluate(general, general or self.done)
        self.server.record.fell = falls(self.accuracy, self.columns)
        self.accuracy = by_client(self.columns)
        if schema.ALL in self.columns:
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
    trainer: TrainerName | None = None,
    **options: Any,
) -> Run:
    """Train. ``run(method="FedRep", rule={"name": "ConFREE", "c": 0.4}, clients=20)`` or ``run(Config(...))``.

    In Python ``method``, ``rule``, ``model`` and ``partition`` may also be classes or objects, and ``data`` may be
    ``(x, y, client)``, a data frame (with ``data.target`` and ``data.client``), a ``Dataset`` or a ``Federation``.

    Without ``out`` nothing is written. With ``wait`` a run that another process has at work there is waited for first.
    ``callbacks`` are objects, or dotted names of ``Callback`` classes. ``stop`` is asked after
    every round. A ``federation`` of your own stands in for the configuration's, and another ``link`` for
    the threads of this machine. ``trainer`` names the way to train where the fastest possible one is not wanted.
    """
    for name in options:
        if name.partition(".")[0] not in declared(Config):
            raise unknown_option(name, inspect.signature(run).parameters)
    data = options.get("data")
    given = data is not None and not _is_named(data)
    options |= {"data": GIVEN} if given else {}
    config = config.with_(**options) if config is not None else Config.of(options)
    if given and federation is None:
        found = dataset_of(data, config.data.options)
        federation = found if isinstance(found, Federation) else federation_of(config, found)
    config = settled(config, federation)
    before = torch.get_num_threads()
    # One thread for each worker, and always one for the server: the bits of a product depend on how it is cut up.
    torch.set_num_threads(1)
    try:
        runner = _Runner(federation, link, trainer, make_callbacks(callbacks), stop)
        return runner.run(config, resume, overwrite, wait)
    finally:
        torch.set_num_threads(before)


def _is_named(data: Any) -> bool:
    """Whether this is the name of a data set, with or without options, and not the data."""
    return isinstance(data, (str, Component)) or (isinstance(data, Mapping) and isinstance(data.get("name"), str))


@dataclass(frozen=True)
class _Runner:
    """What a run and the Local that it is compared with have in common."""

    federation: Federation | None
    link: Links
    trainer: TrainerName | None
    callbacks: list[Callback]
    stop: Callable[[], bool]

    def run(self, config: Config, resume: bool = False, overwrite: bool = False, wait: bool = False) -> Run:
        run = self.assemble(config)
        with nullcontext(True) if run.folder is None else run.folder.locked(self.stop if wait else None) as held:
            return self.perform(run, resume, overwrite) if held else run

    def assemble(self, config: Config, part_of: Run | None = None) -> Run:
        # 1. Both sides of the run. What cannot run is refused here, before anything is written.
        site, server = build(config, self.federation, self.link, self.trainer)
        run = Run(config=config, site=site, server=server)
        run.id = run.id if part_of is None else part_of.id
        run.folder = None if config.out is None else RunFolder(config.out)
        run.callbacks = [*_own_callbacks(run), *self.callbacks]
        if config.reference not in ("auto", "none"):
            run.local, site.reference = read_local(RunFolder(Path(config.reference)), config.alone(), run.federation)
        return run

    def perform(self, run: Run, resume: bool, overwrite: bool) -> Run:
        config, server = run.config, run.server

        # 2. Its folder, and the checkpoint to go on from.
        if run.folder is not None:
            run.records = open_folder(run, run.folder, resume, overwrite)
        server.link.run_id = run.id

        # 3. Local, to compare with.
        if not config.is_local and not self.train_local(run, resume):  # stopped on the way
            return run

        # 4. The rounds.
        for callback in run.callbacks:
            callback.on_start(run)
        if server.round == 0:
            server.method.begin(server)
        run.stopping = self.stop()
        while not run.done and not run.stopping:
            record = server.step()
            if config.guard is not None and server.round == config.rounds:
                server.weigh()
            run.stopping = self.stop()
            run.records.append(record)
            run.weights += server.weights
            if run.done or server.round % max(1, config.last_round // 10) == 0:
                run.cosines += server.cosines  # N×N numbers: ten times a run are enough to draw
            for callback in run.callbacks:
                callback.on_round(run, record)

        # 5. The result.
        if run.done:
            # nothing was left to train after a resume
            run.columns = run.columns or server.evaluate(config.general_in(server.round))
            run._result = result_of(run)
        for callback in run.callbacks:
            callback.on_end(run)
        return run

    def train_local(self, run: Run, resume: bool) -> bool:
        """What each client has alone, for comparison and for the guard; false if that was stopped on the way."""
        config, site = run.config, run.site
        if config.reference == "auto":
            if (found := self.local(run, config.alone(), resume)) is None:
                return False
            run.local, site.reference = found
        if config.guard is not None:
            if (found := self.local(run, config.alone(on="train"), resume)) is None:
                return False
            site.held_out = found[1]
        return True

    def local(self, run: Run, alone: Config, resume: bool) -> "Local | None":
        """A run of Local under the same conditions; ``None`` if it was stopped on the way.

        It is cached beside the run folder, for the same data only. When a neighbour is training it, its end is waited
        for. A federation, link, trainer or class that was given leaves no trace in the configuration, so the cache
        could not tell whether it holds the right Local: then it is the run's alone, in its own folder.
        """
        out = run.config.out
        by_hand = any(each is not None and each.given is not None for each in (alone.model, alone.partition))
        if out is None:
            done = self.perform(self.assemble(alone, run), False, False)
            models = Alone(done.site, done.server.link.states())
            return (by_client(done.columns), models) if done.done else None
        own = self.federation is not None or self.link is not threads or self.trainer or by_hand
        name = f"{alone.key}-{run.federation.fingerprint}"
        folder = RunFolder((out if own else out.parent) / schema.LOCAL_CACHE / name)
        with folder.locked(self.stop) as held:
            if not held:
                return None
            if own and not resume:
                folder.clear()
            return self.local_in(folder, alone, run)

    def local_in(self, folder: RunFolder, alone: Config, run: Run, again: bool = False) -> "Local | None":
        """The Local that a folder holds, trained to its end; from the beginning where its files are damaged."""
        trained = None if folder.finished else self.assemble(alone.with_(out=folder.path), run)
        try:
            if trained is not None and not self.perform(trained, True, False).done:
                return None
            return read_local(folder, alone, run.federation)
        except ComityError as error:
            if again or (trained is not None and trained.server.round):  # its rounds failed, not its files
                raise
            warnings.warn_explicit(f"{error} (this Local is trained again)", UserWarning, "comity", 1)
            folder.clear()  # it is only a cache
            return self.local_in(folder, alone, run, again=True)


Local = tuple[dict[int, float], Alone | None]
"""Each client's accuracy alone, and its model where that was kept."""


def read_local(folder: RunFolder, alone: Config, federation: Federation) -> Local:
    """From the folder of a finished run with as many clients and the same data."""
    result, data = folder.result(), folder.info().data
    if not 0 < len(result.clients.get("client", ())) == len(result.clients.get(schema.OWN, ())):
        raise ComityError(f"reference {folder.path} holds no accuracy of each client; run it again")
    count = len(result.clients["client"]) + len(result.malicious)
    if count != len(federation):
        raise ComityError(f"reference {folder.path} has {count} clients, this run {len(federation)}")
    if data and data != federation.fingerprint:
        raise ComityError(f"reference {folder.path} was trained on other data than this run's {federation.name}")
    if not (checkpoint := folder / schema.CHECKPOINT).exists():
        return by_client(result.clients), None
    states = _checkpoint.SavedStates(checkpoint)
    site = site_of(alone.with_(clients=len(federation), newcomers=0), federation)
    return by_client(result.clients), Alone(site, states)


def open_folder(run: Run, folder: RunFolder, resume: bool, overwrite: bool) -> list[RoundRecord]:
    """Make the folder ready; the records of the rounds that are done already."""
    if resume and folder.started:
        run.id = folder.info().id or run.id
    info = RunInfo(
        schema=schema.SCHEMA,
        comity=__version__,
        title=run.title,
        key=run.config.key,
        own_rule=run.own_rule,
        moment=run.site.moment,
        data=run.federation.fingerprint,
        id=run.id,
    )
    folder.open(info, run.config.plain(), resume=resume, overwrite=overwrite)
    federation = run.federation
    folder.add_partition(
        PartitionTable(
            name=federation.name,
            partition=federation.partition,
            classes=federation.classes,
            counts=federation.counts.tolist(),
            client_names=list(federation.client_names),
            class_names=list(federation.class_names),
            tests_drawn=federation.tests_drawn,
        )
    )
    saved = _checkpoint.read(folder / schema.CHECKPOINT, run.server, run.key) if resume else None
    if saved is None:
        return folder.rewind({})
    records = folder.rewind(saved.marks)
    if [record.round for record in records] != list(range(1, saved.round + 1)):
        raise ComityError(f"{folder / schema.ROUNDS} does not hold the rounds up to the checkpoint's; {ANEW}")
    _checkpoint.restore(saved, run.server)
    if evaluation := folder.newest_evaluation():
        run.accuracy = by_client(evaluation)
    return records


def _own_callbacks(run: Run) -> list[Callback]:
    """In this order: lines are written before the checkpoint that follows them, models before the result."""
    config, folder = run.config, run.folder
    callbacks: list[Callback] = [Evaluate()]
    if folder is not None:
        callbacks += [SaveModels(folder)] if config.save_models else []
        callbacks += [WriteFolder(folder), Checkpoint(folder)]
    return [*callbacks, *(tracker(name, folder) for name in config.track)]
