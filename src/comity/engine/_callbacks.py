"""What may hang on to a run without the run knowing."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from comity.engine._run import Run


class Callback:
    """Override what you need."""

    def on_start(self, run: "Run") -> None: ...

    def on_round(self, run: "Run", record: dict[str, Any]) -> None: ...

    def on_end(self, run: "Run") -> None: ...


class TensorBoard(Callback):
    """Scalars of every round under FIELD's usual keys (``train/loss``, ``eval/L-acc/mean``); needs the extra."""

    def on_start(self, run: "Run") -> None:
        from comity._errors import ComityError

        if run.folder is None:
            raise ComityError("tensorboard needs a run folder; give --out")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ComityError("tensorboard is not installed: pip install 'comity[tensorboard]'") from error
        self.writer = SummaryWriter(str(run.folder.path / "tensorboard"))

    def on_round(self, run: "Run", record: dict[str, Any]) -> None:
        scalars = {key: value for key, value in record.items() if isinstance(value, float)}
        scalars |= {f"seconds/{part}": value for part, value in record["seconds"].items()}
        scalars |= {f"bytes/{way}": value for way, value in record["bytes"].items()}
        if "conflict" in record:
            scalars["conflict/rate"] = record["conflict"]["rate"]
        for cid, accuracy in zip(run.columns.get("client", ()), run.columns.get("L-acc", ()), strict=True):
            scalars[f"eval/L-acc/client_{cid:02d}"] = accuracy
        for key, value in scalars.items():
            self.writer.add_scalar(key, value, record["round"])

    def on_end(self, run: "Run") -> None:
        self.writer.close()
