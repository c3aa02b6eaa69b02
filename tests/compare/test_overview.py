"""``comity list runs``: state, progress and verdict of what is below a folder."""

from pathlib import Path

import pytest

from comity._errors import ComityError
from comity._write import locked
from comity.commands import command
from comity.compare import LoadedStudy, overview
from comity.results import PlannedRun, RunFolder, StudyFolder, schema
from helpers import Capture, Patch
from run_folders import make

EVIL = "e\x1b[31mvil[red]"


def test_every_state(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.5] * 3, alone=[0.6] * 3)
    make(tmp_path / "b", [0.5] * 3, rounds=5, done=2, seed=1)
    make(tmp_path / "c", [0.5] * 3, rounds=5, done=3, seed=2)
    make(tmp_path / "d", [0.5] * 3, method="Local")
    make(tmp_path / "e", [0.5] * 3)
    (tmp_path / "e" / "result.json").write_text("{")
    (tmp_path / "empty").mkdir()
    verdict = LoadedStudy(tmp_path / "a").verdict.title
    with locked(tmp_path / "b" / schema.LOCK, "taken"):
        rows = {row.folder: row[1:] for row in overview(tmp_path)}
    transfer = RunFolder(tmp_path / "a").result().transfer
    assert transfer is not None
    assert rows.pop("e")[:2] == ("damaged", "")
    assert rows == {
        "a": ("finished", "5/5", f"{verdict}; {len(transfer.worse)} of 3 clients worse"),
        "b": ("running", "2/5", ""),
        "c": ("stopped", "3/5", ""),
        "d": ("finished", "5/5", "local training"),
    }
    assert not (tmp_path / "c" / schema.LOCK).exists()  # looking leaves nothing behind


def test_a_killed_run_is_stopped_although_its_lock_file_is_there(tmp_path: Path) -> None:
    make(tmp_path / "b", [0.5] * 3, rounds=5, done=2)
    (tmp_path / "b" / schema.LOCK).touch()
    assert [row.state for row in overview(tmp_path)] == ["stopped"]


def study_in(path: Path) -> None:
    make(path / "runs/a", [0.5] * 3, alone=[0.6] * 3)
    planned = [PlannedRun(folder=f"runs/{name}", title=name) for name in ("a", "b")]
    StudyFolder(path).write_planned([*planned, PlannedRun(folder="runs/c", title="c", error="it broke")])


def test_a_study_is_one_row_and_its_own_folder_has_one_per_run(tmp_path: Path) -> None:
    study_in(tmp_path / "x" / "study")
    make(tmp_path / "y", [0.5] * 3)
    verdict = LoadedStudy(tmp_path / "x" / "study").verdict.title
    rows = [tuple(row) for row in overview(tmp_path)]
    assert rows[0] == (str(Path("x/study")), "stopped", "1/3 runs", verdict)
    assert [row[0] for row in rows] == [str(Path("x/study")), "y"]
    assert [(row.folder, row.state, row.progress) for row in overview(tmp_path / "x" / "study")] == [
        ("runs/a", "finished", "5/5"),
        ("runs/b", "waiting", ""),
        ("runs/c", "failed", ""),
    ]
    assert list(overview(tmp_path / "x" / "study"))[2].verdict == "it broke"


@pytest.mark.parametrize("lock", [schema.LOCK, f"{schema.LOCK}-1-of-4"])
def test_a_study_or_shard_between_two_runs_is_running(tmp_path: Path, lock: str) -> None:
    study_in(tmp_path / "study")
    with locked(tmp_path / "study" / lock, "taken"):
        assert [row.state for row in overview(tmp_path)] == ["running"]


def test_the_command_fits_80_columns_and_untrusted_names_are_printable(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("TERM", "dumb")
    make(tmp_path / EVIL, [0.5] * 3, alone=[0.6] * 3)
    make(tmp_path / ("long" * 30), [0.5] * 3, seed=1)
    assert command("list", ["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "e?[31mvil[red]" in out
    assert "\x1b[31m" not in out
    assert max(map(len, out.splitlines())) <= 80
    study_in(tmp_path / "study")
    assert command("list", ["runs", str(tmp_path / "study")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert said.endswith(" ".join(str(LoadedStudy(tmp_path / "study").verdict).split()))


def test_there_must_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder, sentence in (
        (tmp_path, f"{tmp_path} holds no run"),
        (tmp_path / "file", f"{tmp_path / 'file'} is a file; give a folder with runs or studies"),
        (tmp_path / "gone", f"{tmp_path / 'gone'} is missing; give a folder with runs or studies"),
    ):
        with pytest.raises(ComityError) as error:
            command("list", ["runs", str(folder)])
        assert str(error.value) == sentence
