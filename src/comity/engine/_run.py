"""A run, from a configuration to its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from comity import __version__
from comity._errors import ComityError
from comity.config import Config
from comity.data import Federation
from comity.engine import _checkpoint
from comity.engine._assemble import Links, build, for_federation, threads
from comity.engine._callbacks import (
    Callback,
    Checkpoint,
    Evaluate,
    SaveModels,
    TensorBoard,
    WriteFolder,
    make_callbacks,
)
from comity.engine._result import by_client, result_of
from comity.engine._server import Server
from comity.engine._site import Site
from comity.engine._trainer import TrainerName
from comity.results import schema
from comity.results.folder import RunFolder
from comity.results.schema import Columns, Cosines, PartitionTable, Result, RoundRecord, RunInfo, Weights


@dataclass(kw_only=True)
class Run:
    """A run on its way, and its result when it is done. Callbacks are handed this."""

    config: Config
    site: Site
    server: Server
    folder: RunFolder | None = None
    callbacks: list[Callback] = field(default_factory=list)
    records: list[RoundRecord] = field(default_factory=list)
    """One a round, as in ``rounds.jsonl``."""
    weights: list[Weights] = field(default_factory=list)
    """The rule's coefficients in each round of this process, as in ``weights.jsonl``."""
    cosines: list[Cosines] = field(default_factory=list)
    """The cosines between updates in some rounds of this process, as in ``cosines.jsonl``."""
    columns: Columns = field(default_factory=dict)
    """The newest evaluation, a list over clients for each metric, as in ``clients.csv``."""
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
    def own_rule(self) -> bool:
        """Whether no rule could be chosen: Local has none, some methods bring their own."""
        return self.config.is_local or self.site.method.own_rule() is not None

    @property
    def title(self) -> str:
        return str(self.config.method) if self.own_rule else f"{self.config.method} + {self.config.rule}"

    @property
    def done(self) -> bool:
        return self.server.round >= self.config.rounds

    def evaluate(self, general: bool) -> None:
        """Measure every client's model now; ``general`` asks for S-acc and G-acc too."""
        self.columns = self.server.evaluate(general)
        for callback in self.callbacks:
            callback.on_evaluate(self, self.columns)


def run(
    config: Config | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[Callback | str] = (),
    stop: Callable[[], bool] = lambda: False,
    federation: Federation | None = None,
    link: Links = threads,
    trainer: TrainerName | None = None,
    **options: Any,
) -> Run:
    """Train. ``run(method="FedRep", rule={"name": "ConFREE", "c": 0.4}, clients=20)`` or ``run(Config(...))``.

    Without ``out`` nothing is written. ``callbacks`` are objects, or dotted names of ``Callback`` classes. ``stop`` is
    asked after every round. A ``federation`` of your own stands in for the configuration's, and another ``link`` for
    the threads of this machine. ``trainer`` names the way to train where the fastest possible one is not wanted.
    """
    config = config.with_(**options) if config is not None else Config.of(options)
    before = torch.get_num_threads()
    # One thread for each worker, and always one for the server: the bits of a product depend on how it is cut up.
    torch.set_num_threads(1)
    try:
        return _Runner(federation, link, trainer, make_callbacks(callbacks), stop).run(config, resume, overwrite)
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class _Runner:
    """What a run and the Local that it is compared with have in common."""

    federation: Federation | None
    link: Links
    trainer: TrainerName | None
    callbacks: list[Callback]
    stop: Callable[[], bool]

    def run(self, config: Config, resume: bool, overwrite: bool) -> Run:
        # 1. Both sides of the run. What cannot run is refused here, before anything is written.
        config = for_federation(config, self.federation)
        site, server = build(config, self.federation, self.link, self.trainer)
        run = Run(config=config, site=site, server=server)
        if config.reference not in ("auto", "none"):
            run.local = read_local(RunFolder(Path(config.reference)), len(run.federation))

        # 2. Its folder, and the checkpoint to go on from.
        run.folder = None if config.out is None else RunFolder(config.out)
        run.callbacks = [*_own_callbacks(run), *self.callbacks]
        if run.folder is not None:
            run.records = open_folder(run, run.folder, resume, overwrite)

        # 3. Local, to compare with.
        if config.reference == "auto" and not config.is_local:
            run.local = self.train_local(config)
            if run.local is None:  # stopped on the way
                return run

        # 4. The rounds.
        for callback in run.callbacks:
            callback.on_start(run)
        if server.round == 0:
            server.method.begin(server)
        run.stopping = self.stop()
        while not run.done and not run.stopping:
            record = server.step()
            run.stopping = self.stop()
            run.records.append(record)
            run.weights += server.weights
            if run.done or server.round % max(1, config.rounds // 10) == 0:
                run.cosines += server.cosines  # N×N numbers: ten times a run are enough to draw
            for callback in run.callbacks:
                callback.on_round(run, record)

        # 5. The result.
        if run.done:
            run.columns = run.columns or server.evaluate(True)  # nothing was left to train after a resume
            run._result = result_of(run)
        for callback in run.callbacks:
            callback.on_end(run)
        return run

    def train_local(self, config: Config) -> dict[int, float] | None:
        """Each client's accuracy alone, trained under the same conditions; ``None`` if that was stopped on the way.

        It is cached beside the run folder. A federation, link or trainer that was given leaves no trace in the
        configuration, so that the cache could not tell whether it holds the right Local: then it is trained each time.
        """
        alone, as_configured = config.alone(), self.federation is None and self.link is threads and not self.trainer
        if config.out is None or not as_configured:
            done = self.run(alone, False, False)
            return by_client(done.columns) if done.done else None
        folder = RunFolder(config.out.parent / schema.LOCAL_CACHE / alone.key)
        if not folder.finished and not self.run(alone.with_(out=folder.path), True, False).done:
            return None
        return read_local(folder, config.clients)


def read_local(folder: RunFolder, clients: int) -> dict[int, float]:
    """Each client's accuracy alone, from the folder of a finished run with as many clients."""
    result = folder.result()
    count = len(result.clients["client"]) + len(result.malicious)
    if count != clients:
        raise ComityError(f"reference {folder.path} has {count} clients, this run {clients}")
    return by_client(result.clients)


def open_folder(run: Run, folder: RunFolder, resume: bool, overwrite: bool) -> list[RoundRecord]:
    """Make the folder ready; the records of the rounds that are done already."""
    info = RunInfo(
        schema=schema.SCHEMA,
        comity=__version__,
        title=run.title,
        key=run.config.key,
        own_rule=run.own_rule,
        moment=run.site.moment,
    )
    folder.open(info, run.config.plain(), resume=resume, overwrite=overwrite)
    federation = run.federation
    folder.add_partition(
        PartitionTable(
            name=federation.name,
            partition=federation.partition,
            classes=federation.classes,
            counts=federation.counts.tolist(),
        )
    )
    resumed = resume and _checkpoint.restore(folder / schema.CHECKPOINT, run.server, run.config.key)
    return folder.rewind(run.server.round if resumed else 0)


def _own_callbacks(run: Run) -> list[Callback]:
    """In this order: lines are written before the checkpoint that follows them, models before the result."""
    config, folder = run.config, run.folder
    callbacks: list[Callback] = [Evaluate()]
    if folder is not None:
        callbacks += [SaveModels(folder)] if config.save_models else []
        callbacks += [WriteFolder(folder), Checkpoint(folder)]
    return [*callbacks, TensorBoard(folder)] if config.tensorboard else callbacks
