"""Resuming: to the same bits, or a line that says why not."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from comity import ComityError, Config
from comity.commands import command
from comity.engine import RunPlan, run
from comity.results import RunFolder
from helpers import Options, assert_same, contents, interrupted

LOGS = ("rounds.jsonl", "weights.jsonl", "cosines.jsonl", "clients.csv")
STATE = "checkpoint/state.safetensors"


@pytest.fixture
def cut(tiny: Options, tmp_path: Path) -> Path:
    """The folder of a run that was stopped after two of three rounds."""
    interrupted(tmp_path / "x", 2, **tiny)
    return tmp_path / "x"


def test_a_folder_that_holds_another_run_is_rejected(tiny: Options, tmp_path: Path) -> None:
    run(**tiny, out=tmp_path / "x")
    before, other = contents(tmp_path / "x"), tiny | {"lr": 0.2}
    with pytest.raises(ComityError, match=r"another configuration \(lr differ\)"):
        run(**other, out=tmp_path / "x", resume=True)
    with pytest.raises(ComityError, match="holds a run already; give --resume"):
        run(**tiny, out=tmp_path / "x")
    assert contents(tmp_path / "x") == before
    assert_same(run(**other, out=tmp_path / "x", overwrite=True), run(**other))


def test_a_finished_run_resumed_changes_nothing(tiny: Options, tmp_path: Path) -> None:
    first, second = run(**tiny, out=tmp_path / "x"), run(**tiny, out=tmp_path / "x", resume=True)
    assert_same(first, second)
    assert first.result.last == second.result.last


@pytest.mark.parametrize("name", LOGS)
def test_lines_that_are_missing_or_changed_are_reported_and_later_ones_are_cut(
    tiny: Options, tmp_path: Path, cut: Path, name: str
) -> None:
    whole = (cut / name).read_bytes()
    os.truncate(cut / name, len(whole) - 1)
    with pytest.raises(ComityError, match=rf"{name} lost lines: .* --overwrite, or remove the folder, to start anew"):
        run(**tiny, out=cut, resume=True)
    (cut / name).write_bytes(whole[:30] + b"7" + whole[31:])
    with pytest.raises(ComityError, match=f"{name} was changed after it was written"):
        run(**tiny, out=cut, resume=True)
    (cut / name).write_bytes(whole + b'{"round": 3, "half a li')
    assert_same(run(**tiny, out=cut, resume=True), run(**tiny, out=tmp_path / "y"))
    if name != "rounds.jsonl":  # which has seconds in it
        assert (cut / name).read_bytes() == (tmp_path / "y" / name).read_bytes()
    assert [record.round for record in RunFolder(cut).rounds()] == [1, 2, 3]


def test_logs_are_on_disk_before_the_checkpoint_that_counts_on_them(
    tiny: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    run(**(tiny | {"rounds": 1}), out=tmp_path / "x")
    checkpoint = next(i for i, name in enumerate(synced) if name.startswith(".state.safetensors"))
    assert set(LOGS) <= set(synced[:checkpoint])


def edit(file: Path, how: str) -> None:
    """Have another program write the checkpoint anew: a valid safetensors file, but not the one that was."""
    with safe_open(file, framework="pt") as opened:
        about, tensors = opened.metadata(), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    theta = tensors["server/theta"]
    if how == "missing":
        del tensors["server/theta"]
    elif how == "round":
        about["round"] = "nan"
    else:
        tensors["server/theta"] = {"shape": theta[:-1].clone(), "dtype": theta.double(), "number": theta + 1}[how]
    save_file(tensors, file, about)


@pytest.mark.parametrize(
    "how", ["missing", "shape", "dtype", "round", "number", "cut", "flipped", "empty", "garbage", "no tensors"]
)
def test_a_checkpoint_that_is_not_the_one_that_was_written_is_rejected(tiny: Options, cut: Path, how: str) -> None:
    content = (cut / STATE).read_bytes()
    spoilt = {
        "cut": content[:-1],
        "flipped": content[:-3] + bytes([content[-3] ^ 1]) + content[-2:],
        "empty": b"",
        "garbage": os.urandom(500),
        "no tensors": b"\x08\0\0\0\0\0\0\0{}",
    }
    if how in spoilt:
        (cut / STATE).write_bytes(spoilt[how])
    else:
        edit(cut / STATE, how)
    with pytest.raises(ComityError, match=r"^checkpoint .* cannot be read: it was changed .* to start anew$"):
        run(**tiny, out=cut, resume=True)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("run.json", "", "is not JSON"),
        ("run.json", "[" * 100_000, "Expected `object`, got `array`"),
        ("run.json", "{}", "another version of comity"),
        ("config.yaml", "\0\1", "is not YAML"),
        ("config.yaml", "[" * 100_000, "is not YAML"),
        ("config.yaml", "lr: 1\n" + "#" * 10**6, "is larger than 1 MB"),
        ("config.yaml", "lr: 1", "is not the configuration of a run"),
    ],
)
def test_a_damaged_description_is_reported(cut: Path, name: str, content: str, words: str) -> None:
    (cut / name).write_text(content)
    with pytest.raises(ComityError, match=words):
        command("run", ["--resume", "--out", str(cut)])


def test_a_configuration_that_was_edited_is_not_taken_for_the_runs_own(cut: Path) -> None:
    file = cut / "config.yaml"
    file.write_text(file.read_text().replace("lr: 0.1\n", "lr: 0.3\n"))
    with pytest.raises(ComityError, match=r"config.yaml is not the configuration that the run began with"):
        command("run", ["--resume", "--out", str(cut)])


def test_another_version_resumes_with_a_line_of_warning(tiny: Options, cut: Path) -> None:
    info = json.loads((cut / "run.json").read_text())
    (cut / "run.json").write_text(json.dumps(info | {"comity": "0.0.1"}))
    with pytest.warns(UserWarning, match=r"was begun by comity 0.0.1 and is resumed with"):
        resumed = run(**tiny, out=cut, resume=True)
    assert_same(resumed, run(**tiny))


def test_a_folder_that_was_moved_is_resumed_where_it_is(tiny: Options, tmp_path: Path, cut: Path) -> None:
    shutil.move(cut, tmp_path / "else" / "where")
    assert command("run", ["--resume", "--quiet", "--out", str(tmp_path / "else" / "where")]) == 0
    assert not cut.exists()
    assert RunFolder(tmp_path / "else" / "where").result().clients == run(**tiny).columns


def test_a_run_is_not_resumed_with_another_trainer(tiny: Options, cut: Path) -> None:
    """Trainers agree to float rounding, not to the bit."""
    trainer = RunFolder(cut).info().trainer
    assert trainer.startswith("compiled ")
    before = contents(cut)
    with pytest.raises(ComityError, match=rf"^the run in .*x used the trainer {trainer}, .*autograd .*to start anew$"):
        run(**tiny, out=cut, resume=True, trainer="autograd")
    assert contents(cut) == before
    assert_same(run(**tiny, out=cut, resume=True), run(**tiny))


@pytest.mark.parametrize(("method", "name"), [("FedRep", "compiled"), ("APFL", "compiled+gradients")])
def test_the_trainer_says_where_a_methods_own_steps_are_compiled(tiny: Options, method: str, name: str) -> None:
    """Their gradients were torch's before: other last digits."""
    assert RunPlan(Config(**tiny, method=method)).trainer.split()[0] == name
