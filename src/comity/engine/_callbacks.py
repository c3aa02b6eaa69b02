"""What hangs on to a run: evaluation, files and checkpoints, and what users add."""

import os
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import asdict
from torch import Tensor

from comity._catalogue import imported
from comity._errors import ComityError, install
from comity._write import atomically
from comity.config import LOCAL, Overlay
from comity.engine import _checkpoint
from comity.nn import Model
from comity.results import Columns, RoundRecord, RunFolder, schema

if TYPE_CHECKING:
    from comity.engine._run import Run


class Callback:
    """Override what you need: ``comity.run(callbacks=[MyCallback()])``.

    Callbacks also see the run of Local that a run is compared with; ``run.config.is_local`` tells the two apart.
    """

    def on_start(self, run: "Run") -> None:
        """Before the first round, or before the first after a resume."""

    def on_evaluate(self, run: "Run", columns: Columns) -> None:
        """After an evaluation of all clients: a list over clients for each metric."""

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        """After each round, and after its evaluation if there was one."""

    def on_end(self, run: "Run") -> None:
        """After the last round, with ``run.result``, or after the round in which the run was stopped."""


class Evaluate(Callback):
    """Evaluates all clients as often as the configuration says, and in the last round."""

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        if run.config.evaluates_in(record.round):
            run.evaluate(general=run.config.general_in(record.round))


class SaveModels(Callback):
    """Each client's model under the network's own names, when the run is done.

    Under a guard that mixes predictions there are two for each client, this one and its own, and the weights of both.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_end(self, run: "Run") -> None:
        if not run.done:
            return
        model, states, guard = run.site.model(), run.server.link.states(), run.site.guard
        own = run.site.own_model(run.server.round) if guard is not None and not guard.shares else None
        for cid, vector in run.server.export().items():
            kept = states[cid].engine if cid in states else {}
            about = {"client": str(cid), "run": run.title}
            about |= {"weights": " ".join(map(str, kept["guard"].tolist()))} if "guard" in kept else {}
            self._write(f"client_{cid:03d}", model, vector, kept.get("counters"), about)
            if own is not None:
                self._write(f"client_{cid:03d}_own", own.site.model(), own.vector(cid), None, about | {"run": LOCAL})

    def _write(self, name: str, model: Model, vector: Tensor, counters: Tensor | None, about: dict[str, str]) -> None:
        model.write(vector)
        if counters is not None:
            model.counters = counters
        with atomically(self.folder / schema.MODELS / f"{name}.safetensors") as part:
            _checkpoint.write_tensors(part, model.state_dict(), about)


class WriteFolder(Callback):
    """Everything but tensors: what grows with the rounds, and the result."""

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
            self.folder.add_result(run.result)


class Checkpoint(Callback):
    """Saves what the next round depends on, every few rounds, in the last one, and when the run is stopped."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        if run.done or run.stopping or record.round % run.config.checkpoint_every == 0:
            marks = self.folder.secure()  # before the checkpoint that counts on these lines
            _checkpoint.save(self.folder / schema.CHECKPOINT, run.server, run.key, marks)


class Prune(Callback):
    """Removes the checkpoint of a finished run: result, records and models stay. Local's stays, for others to use."""

    def on_end(self, run: "Run") -> None:
        if run.done and run.folder is not None and not run.config.is_local:
            (run.folder / schema.CHECKPOINT).unlink(missing_ok=True)


class Tracker(Callback):
    """Scalars of every round under the field's usual keys (``train/loss``, ``eval/L-acc/mean``), to a library."""

    module: ClassVar[str]

    def __init__(self, folder: RunFolder | None) -> None:
        self.library: Any = import_module(self.module)

    def on_start(self, run: "Run") -> None:
        try:
            self.start(run)
        except Exception as error:  # nobody is logged in, or the server is not there
            raise ComityError(f"{self.module} does not start: {type(error).__name__}: {error}") from error

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        scalars = {"train/loss": record.train_loss}
        scalars |= {f"eval/{name}/{how}": v for name, s in record.metrics.items() for how, v in asdict(s).items()}
        scalars |= {f"seconds/{part}": value for part, value in asdict(record.seconds).items()}
        scalars |= {f"bytes/{way}": value for way, value in asdict(record.bytes).items()}
        if record.conflict is not None:
            scalars["conflict/rate"] = record.conflict.rate
        for cid, accuracy in zip(run.columns.get("client", ()), run.columns.get(schema.OWN, ()), strict=True):
            scalars[f"eval/{schema.OWN}/client_{cid:02d}"] = accuracy
        self.log(scalars, record.round)

    def start(self, run: "Run") -> None:
        raise NotImplementedError

    def log(self, scalars: dict[str, float], round: int) -> None:
        raise NotImplementedError


class TensorBoard(Tracker):
    """Into the run folder."""

    module = "torch.utils.tensorboard"

    def __init__(self, folder: RunFolder | None) -> None:
        if folder is None:
            raise ComityError("tensorboard needs a run folder; give --out")
        super().__init__(folder)
        self.path = str(folder / "tensorboard")

    def start(self, run: "Run") -> None:
        self.writer = self.library.SummaryWriter(self.path)

    def log(self, scalars: dict[str, float], round: int) -> None:
        for key, value in scalars.items():
            self.writer.add_scalar(key, value, round)

    def on_end(self, run: "Run") -> None:
        self.writer.close()


class WandB(Tracker):
    """Weights & Biases; its own variables, as WANDB_PROJECT and WANDB_MODE, decide where to."""

    module = "wandb"

    def start(self, run: "Run") -> None:
        project = os.environ.get("WANDB_PROJECT", "comity")
        self.writer = self.library.init(
            project=project, name=run.title, group=run.key, config=Overlay(run.config.plain()), reinit="create_new"
        )

    def log(self, scalars: dict[str, float], round: int) -> None:
        self.writer.log(scalars, step=round)

    def on_end(self, run: "Run") -> None:
        self.writer.finish(exit_code=0 if run.done else 1)


class MLflow(Tracker):
    """MLflow; its own variables, as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME, decide where to."""

    module = "mlflow"

    def start(self, run: "Run") -> None:
        self.library.start_run(run_name=run.title, tags={"comity.key": run.key}, nested=True)
        self.library.log_params(Overlay(run.config.plain()))

    def log(self, scalars: dict[str, float], round: int) -> None:
        self.library.log_metrics(scalars, step=round)

    def on_end(self, run: "Run") -> None:
        self.library.end_run("FINISHED" if run.done else "KILLED")


def tracker(name: str, folder: RunFolder | None) -> Tracker:
    """By its name in ``track``, which is also that of the extra that it needs."""
    kinds: dict[str, type[Tracker]] = {"wandb": WandB, "mlflow": MLflow, "tensorboard": TensorBoard}
    try:
        return kinds[name](folder)
    except ImportError as error:
        raise ComityError(f"{name} is not installed: {install(name)}") from error


def make_callbacks(callbacks: Iterable[Callback | str]) -> list[Callback]:
    """Callbacks as they are; a dotted name stands for a class that is made without arguments."""
    return [callback_class(each)() if isinstance(each, str) else each for each in callbacks]


def callback_class(name: str) -> type[Callback]:
    """The class with this dotted name."""
    return imported("callback", name, ("comity.engine", "Callback"))
