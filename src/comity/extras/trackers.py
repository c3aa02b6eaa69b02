"""Trackers: log the scalars of every round to TensorBoard, Weights & Biases or MLflow."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import asdict

from comity._errors import ComityError
from comity.config import Overlay
from comity.engine import Callback
from comity.metrics import OWN
from comity.results import RoundRecord, RunFolder

if TYPE_CHECKING:
    from comity.engine import Run


class Tracker(Callback):
    """Log the scalars of every round under the usual keys (``train/loss``, ``eval/L-acc/mean``)."""

    module: ClassVar[str]

    def __init__(self, folder: RunFolder | None) -> None:
        self.library: Any = import_module(self.module)

    def on_start(self, run: "Run") -> None:
        try:
            self.start(run)
        except Exception as error:  # not logged in, or the server is unreachable
            raise ComityError(f"{self.module} does not start: {type(error).__name__}: {error}") from error

    def on_round(self, run: "Run", record: RoundRecord) -> None:
        scalars = {"train/loss": record.train_loss}
        scalars |= {f"eval/{name}/{how}": v for name, s in record.metrics.items() for how, v in asdict(s).items()}
        scalars |= {f"seconds/{part}": value for part, value in asdict(record.seconds).items()}
        scalars |= {f"bytes/{way}": value for way, value in asdict(record.bytes).items()}
        if record.conflict is not None:
            scalars["conflict/rate"] = record.conflict.rate
        for cid, accuracy in zip(run.columns.get("client", ()), run.columns.get(OWN.key, ()), strict=True):
            scalars[f"eval/{OWN.key}/client_{cid:02d}"] = accuracy
        self.log(scalars, record.round)

    def start(self, run: "Run") -> None:
        raise NotImplementedError

    def log(self, scalars: dict[str, float], round: int) -> None:
        raise NotImplementedError


class TensorBoard(Tracker):
    """Log into the run folder."""

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
    """Log to Weights & Biases, configured by its variables, such as WANDB_PROJECT and WANDB_MODE."""

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
    """Log to MLflow, configured by its variables, such as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""

    module = "mlflow"

    def start(self, run: "Run") -> None:
        self.library.start_run(run_name=run.title, tags={"comity.key": run.key}, nested=True)
        self.library.log_params(Overlay(run.config.plain()))

    def log(self, scalars: dict[str, float], round: int) -> None:
        self.library.log_metrics(scalars, step=round)

    def on_end(self, run: "Run") -> None:
        self.library.end_run("FINISHED" if run.done else "KILLED")
