"""What hangs on to a run: in which order it is called, and that it can be named as well as given."""

from pathlib import Path

import pytest

from comity import ComityError
from comity.engine import Callback, Run, run
from comity.results import Columns, RoundRecord, RunFolder
from comity.studies import study
from comity.studies._grid import callback_names
from helpers import Options, interrupted


class Watch(Callback):
    """Remembers every call; those of Local with an L before them."""

    seen: list[str] = []  # noqa: RUF012 - shared on purpose: an instance that was made by name is nowhere to be had

    def note(self, run: Run, what: str) -> None:
        self.seen.append(("L:" if run.config.is_local else "") + what)

    def on_start(self, run: Run) -> None:
        self.note(run, "start")

    def on_evaluate(self, run: Run, columns: Columns) -> None:
        assert columns is run.columns
        self.note(run, f"evaluate {run.server.round}")

    def on_round(self, run: Run, record: RoundRecord) -> None:
        assert record is run.records[-1]
        self.note(run, f"round {record.round}{' evaluated' if record.metrics else ''}")

    def on_end(self, run: Run) -> None:
        self.note(run, f"end {run.result.last.round}" if run.done else "stopped")


@pytest.fixture
def seen() -> list[str]:
    Watch.seen.clear()
    return Watch.seen


@pytest.mark.parametrize("callback", [Watch(), f"{__name__}.Watch"], ids=["object", "name"])
def test_hooks_are_called_in_order_for_local_and_for_the_run(
    tiny: Options, seen: list[str], callback: Callback | str
) -> None:
    run(**(tiny | {"rounds": 3, "eval_every": 2, "reference": "auto"}), callbacks=[callback])
    once = ["start", "round 1", "evaluate 2", "round 2 evaluated", "evaluate 3", "round 3 evaluated", "end 3"]
    assert seen == 2 * [f"L:{each}" for each in once] + once  # local training, that repeated, and the run


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere.Mine", "callback 'nowhere.Mine' could not be imported: No module named 'nowhere'"),
        ("comity.engine.Nobody", "callback 'comity.engine.Nobody' could not be imported"),
        ("Watch", "callback 'Watch' could not be imported"),
        ("pathlib.Path", "callback 'pathlib.Path' is not a subclass of comity.engine.Callback"),
    ],
)
def test_a_name_that_is_no_callback_is_refused(tiny: Options, tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ComityError, match=why):
        run(**tiny, out=tmp_path / "x", callbacks=[name])
    assert not (tmp_path / "x").exists()


def test_one_that_is_stopped_has_no_result(tiny: Options, seen: list[str], tmp_path: Path) -> None:
    done = interrupted(tmp_path / "x", **tiny, callbacks=[Watch()])
    assert seen == ["start", "evaluate 1", "round 1 evaluated", "stopped"]
    assert done.stopping
    with pytest.raises(ComityError, match="this run has no result: it ended after round 1"):
        _ = done.result
    assert not RunFolder(tmp_path / "x").finished


class Mark(Callback):
    """Leaves a file beside the run folder, from whichever process."""

    def on_end(self, run: Run) -> None:
        assert run.folder is not None
        (run.folder.path.parent / f"{run.folder.path.name}-{run.config.seed}.mark").write_text(run.title)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_studys_runs_make_their_callbacks_where_they_are_done(tiny: Options, tmp_path: Path, jobs: int) -> None:
    study(**tiny, method=["FedAvg"], seeds=2, jobs=jobs, out=str(tmp_path / "s"), callbacks=[f"{__name__}.Mark"])
    marks = {path.name: path.read_text() for path in tmp_path.rglob("*.mark")}
    assert marks == {f"fedavg-mean-s{seed}-{seed}.mark": "FedAvg + Mean" for seed in range(2)}


def test_a_study_names_its_callbacks_and_refuses_what_is_none() -> None:
    name = f"{__name__}.Mark"
    assert callback_names({}) == ()
    assert callback_names({"callbacks": [name]}) == callback_names({"callbacks": name}) == (name,)
    with pytest.raises(ComityError, match=r"callback 'nowhere\.Mine' could not be imported"):
        callback_names({"callbacks": ["nowhere.Mine"]})
    with pytest.raises(ComityError, match="callbacks must be dotted names of classes, got"):
        callback_names({"callbacks": [Mark()]})
