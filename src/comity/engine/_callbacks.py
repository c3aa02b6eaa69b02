"""Callbacks of a run: evaluation, files, checkpoints, and users' own."""

from collections.abc import Iterable
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from comity._catalogue import imported
from comity._errors import ComityError, install
from comity._extensions import TRACKERS
from comity.results import Columns, RoundRecord, RunFolder, schema

if TYPE_CHECKING:
    from comity.engine._run import Run


class Callback:
    """Hooks around a run; override the ones you need: ``comity.run(callbacks=[MyCallback()])``.

    Callbacks also get the run of the local baseline; ``run.config.is_local`` is true there.
    """

    def on_start(self, run: "Run") -> None:
        """Called before the first round, also after a resume."""

    def on_evaluate(self, run: "Run", columns: Columns) -> None:
        """Called after an evaluation of all clients, with one list over clients per metric."""

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        """Called after each round, and after its evaluation if there was one."""

    def on_end(self, run: "Run") -> None:
        """Called after the last round, with ``run.result``, or after the round in which the run was stopped."""


class Evaluate(Callback):
    """Evaluate all clients as often as the configuration says, and in the last round."""

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        if run.config.evaluates_in(record.round):
            run.evaluate(general=run.config.general_in(record.round))


class WriteFolder(Callback):
    """Write everything except tensors: logs of the rounds and the result."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_evaluate(self, run: "Run", columns: Columns) -> None:
        self.folder.add_clients(run.server.round, columns, run.federation.client_names)

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        weights = [entry for entry in run.weights if entry.round == record.round]
        cosines = [entry for entry in run.cosines if entry.round == record.round]
        self.folder.add_round(record, weights, cosines)

    def on_end(self, run: "Run") -> None:
        if run.done:
            if run.site.test_scores:
                self.folder.add_samples(run.site.test_scores)
            self.folder.add_result(run.result)


class Checkpoint(Callback):
    """Save the state for the next round: every few rounds, in the last round, and when the run is stopped."""

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        if run.done or run.stopping or record.round % run.config.checkpoint_every == 0:
            run.save()


class Prune(Callback):
    """Remove the checkpoint of a finished run, keeping result, records and models. Local's stays, for reuse."""

    def on_end(self, run: "Run") -> None:
        used = run.config.is_local and not run.config.repeats_local
        if run.done and run.folder is not None and not used:
            (run.folder / schema.CHECKPOINT).unlink(missing_ok=True)


def tracker(name: str, folder: RunFolder | None) -> Callback:
    """The tracker with this ``--track`` name."""
    try:
        made: Callback = resolve_name(TRACKERS[name])(folder)
    except ImportError as error:
        raise ComityError(f"{name} is not installed: {install(name)}") from error
    return made


def make_callbacks(callbacks: Iterable[Callback | str]) -> list[Callback]:
    """Callbacks as given; a dotted name becomes an instance of that class, created without arguments."""
    return [callback_class(each)() if isinstance(each, str) else each for each in callbacks]


def callback_class(name: str) -> type[Callback]:
    """The class with this dotted name."""
    return imported("callback", name, "comity.engine.Callback")
