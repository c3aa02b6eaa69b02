"""What hangs on to a run: in which order it is called, and that it can be named as well as given."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from comity import ComityError, Config
from comity.engine import Callback, Run, run
from comity.results import Columns, RoundRecord, RunFolder
from comity.studies._crew import Crew, Job, Message, Process, execute
from comity.studies._grid import callback_names


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


def test_hooks_are_called_in_order_for_local_and_for_the_run(tiny: dict[str, Any], seen: list[str]) -> None:
    run(**(tiny | {"rounds": 3, "eval_every": 2, "reference": "auto"}), callbacks=[Watch()])
    once = ["start", "round 1", "evaluate 2", "round 2 evaluated", "evaluate 3", "round 3 evaluated", "end 3"]
    assert seen == [f"L:{each}" for each in once] + once


def test_a_callback_may_be_named(tiny: dict[str, Any], seen: list[str]) -> None:
    run(**(tiny | {"rounds": 1}), callbacks=[f"{__name__}.Watch"])
    assert seen == ["start", "evaluate 1", "round 1 evaluated", "end 1"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nowhere.Mine", "callback 'nowhere.Mine' could not be imported: No module named 'nowhere'"),
        ("comity.engine.Nobody", "callback 'comity.engine.Nobody' could not be imported"),
        ("Watch", "callback 'Watch' could not be imported"),
        ("pathlib.Path", "callback 'pathlib.Path' is not a subclass of comity.engine.Callback"),
    ],
)
def test_a_name_that_is_no_callback_is_refused(tiny: dict[str, Any], tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(ComityError, match=why):
        run(**tiny, out=tmp_path / "x", callbacks=[name])
    assert not (tmp_path / "x").exists()


def test_one_that_is_stopped_has_no_result(tiny: dict[str, Any], seen: list[str], tmp_path: Path) -> None:
    answers = iter([False, True])
    done = run(**tiny, out=tmp_path / "x", callbacks=[Watch()], stop=lambda: next(answers))
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


@pytest.mark.parametrize("crew", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_studys_runs_make_their_callbacks_where_they_are_done(
    tiny: dict[str, Any], tmp_path: Path, crew: int
) -> None:
    names = (f"{__name__}.Mark",)
    jobs = [
        Job(Config(**tiny, seed=seed, out=tmp_path / f"run{seed}"), str(seed), callbacks=names) for seed in range(2)
    ]
    heard: list[Message] = []
    with closing(Crew(partial(Process, log=tmp_path / "log.txt"))) as workers:
        those = workers if crew > 1 else None
        ends = execute(jobs, crew, lambda _, message: heard.append(message), lambda: False, those)
    assert [ends[job] for job in jobs] == [{"end": "done"}] * 2, (tmp_path / "log.txt").read_text()
    assert [(tmp_path / f"run{seed}-{seed}.mark").read_text() for seed in range(2)] == ["FedAvg + Mean"] * 2
    rounds = [message for message in heard if "round" in message]
    assert len(rounds) == 2 * tiny["rounds"]
    assert all(0 <= message["accuracy"] <= 1 for message in rounds)


def test_a_study_names_its_callbacks_and_refuses_what_is_none() -> None:
    name = f"{__name__}.Mark"
    assert callback_names({}) == ()
    assert callback_names({"callbacks": [name]}) == callback_names({"callbacks": name}) == (name,)
    with pytest.raises(ComityError, match=r"callback 'nowhere\.Mine' could not be imported"):
        callback_names({"callbacks": ["nowhere.Mine"]})
    with pytest.raises(ComityError, match="callbacks must be dotted names of classes, got"):
        callback_names({"callbacks": [Mark()]})


def test_tensorboard_needs_a_folder_and_says_so_before_anything_is_trained(
    tiny: dict[str, Any], seen: list[str]
) -> None:
    with pytest.raises(ComityError, match="tensorboard needs a run folder; give --out"):
        run(**(tiny | {"reference": "auto"}), track="tensorboard", callbacks=[Watch()])
    assert seen == []
