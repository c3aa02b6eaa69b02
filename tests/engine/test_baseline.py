"""The local baseline that a run is compared with, and what is read for both."""

import io
from pathlib import Path
from typing import Any

import pytest

import comity
from comity import ComityError, Config
from comity.__main__ import main
from comity.engine import run
from comity.results import LoadedRun, RunFolder
from helpers import Options


@pytest.fixture
def options(tiny: Options) -> Options:
    return tiny | {"reference": "auto"}


def test_harm_is_measured_against_local(options: Options) -> None:
    options |= {"rounds": 2}
    joined, alone = run(**options), run(**(options | {"reference": "none"}), method="Local")
    gains = [a - b for a, b in zip(joined.columns["L-acc"], alone.columns["L-acc"], strict=True)]
    transfer = joined.result.transfer
    assert transfer is not None
    assert transfer.gain == pytest.approx(dict(enumerate(gains)))
    assert transfer.mean.gain == pytest.approx(sum(gains) / len(gains))
    assert transfer.positive_transfer == sum(gain > 0 for gain in gains) / len(gains)
    assert transfer.local == pytest.approx(sum(alone.columns["L-acc"]) / len(gains))


def test_one_definition_of_local(tiny: Options, tmp_path: Path) -> None:
    config = Config(**tiny, method="FEDORA", eval_point="fitted", save_models=True, out=tmp_path / "x")
    alone = config.local_baseline()
    assert alone.is_local
    assert not config.is_local
    assert (alone.out, alone.save_models, alone.reference) == (None, False, "none")
    assert (alone.val_share, config.val_share) == (0, 0.2)  # alone, nobody needs to hold samples out
    assert config.local_baseline(on="train").val_share == 0.2
    assert alone.local_baseline().key == alone.key
    for other in ({"method": "FedAvg", "rule": "CALM", "eval_point": None}, {"server_lr": 0.5, "server_momentum": 0.9}):
        assert config.with_(**other).local_baseline().key == alone.key


def test_local_and_its_repetition_are_trained_once_and_then_taken_from_the_cache(
    options: Options, tmp_path: Path
) -> None:
    first = run(**options, out=tmp_path / "a")
    cached, again = sorted((tmp_path / ".local").iterdir(), key=lambda path: LoadedRun(path).repeats_local)
    assert [LoadedRun(path).repeats_local for path in (cached, again)] == [False, True]
    written = {path: (path / "result.json").stat().st_mtime_ns for path in (cached, again)}
    second = run(**options, out=tmp_path / "b", method="FedRep")
    assert {path: (path / "result.json").stat().st_mtime_ns for path in (cached, again)} == written
    by_path = run(**(options | {"reference": str(cached), "control": str(again)}), out=tmp_path / "c")
    assert first.local == second.local == by_path.local
    assert first.control == second.control == by_path.control
    assert first.result.transfer == by_path.result.transfer
    assert first.control["L-acc"] != first.local["L-acc"]
    for more, words in (
        ({"reference": str(tmp_path / "nowhere")}, "nowhere holds no finished run"),
        ({"reference": str(cached), "clients": 4}, r"has 5 clients, this run 4"),
    ):
        with pytest.raises(ComityError, match=words):
            run(**(options | more), out=tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_each_trainer_has_a_baseline_of_its_own(options: Options, tmp_path: Path) -> None:
    trainers = ("compiled", "autograd", "autograd")
    options |= {"control": "none"}
    runs = [run(**options, out=tmp_path / f"{place}", trainer=name) for place, name in enumerate(trainers)]
    cached = list((tmp_path / ".local").iterdir())
    assert sorted(RunFolder(path).info().trainer.split()[0] for path in cached) == ["autograd", "compiled"]
    assert [RunFolder(tmp_path / f"{place}").info().trainer for place in range(3)] == [
        each.plan.trainer for each in runs
    ]


@pytest.mark.parametrize("damage", ["result", "information", "checkpoint", "configuration"])
def test_a_damaged_cached_local_is_trained_again(options: Options, tmp_path: Path, damage: str) -> None:
    options |= {"control": "none"}
    first = run(**options, out=tmp_path / "a")
    (cached,) = (tmp_path / ".local").iterdir()
    if damage == "information":
        (cached / "run.json").write_text("{}")
    elif damage == "result":
        (cached / "result.json").write_text('{"clients"')
    else:
        (cached / "result.json").unlink()
        (cached / "checkpoint" / "state.safetensors").write_bytes(b"nothing")
        if damage == "configuration":
            (cached / "config.yaml").unlink()
    with pytest.warns(UserWarning, match=r"\.local.* \(this Local is trained again\)$"):
        second = run(**options, out=tmp_path / "b")
    assert first.local == second.local
    assert RunFolder(cached).finished


def test_a_local_whose_rounds_fail_is_not_begun_again(
    options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ComityError("nobody can be evaluated")

    monkeypatch.setattr("comity.engine._server.Server.evaluate", fail)
    with pytest.raises(ComityError, match="nobody can be evaluated"):  # and no warning, which would be an error here
        run(**options, out=tmp_path / "a")


# What is read.


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of data files, one each time that comity opens one."""
    noted: list[str] = []
    opened = io.open

    def noting(file: Any, *args: Any, **options: Any) -> Any:
        if isinstance(file, Path) and "sources" in file.parts and file.suffix != ".py":
            noted.append(file.name)
        return opened(file, *args, **options)

    monkeypatch.setattr(io, "open", noting)
    return noted


@pytest.mark.parametrize("guard", [None, "mixture", "certified"])
@pytest.mark.parametrize("out", [False, True])
def test_a_run_reads_its_data_once(reads: list[str], tmp_path: Path, guard: str | None, out: bool) -> None:
    """Also where a guard needs a second local baseline, whose clients hold other samples out."""
    done = comity.run(data="heart", rounds=2, workers=1, guard=guard, out=tmp_path / "run" if out else None)
    assert reads == ["heart.csv"]
    assert len(done.site.baselines) == (1 if guard is None else 2)


def test_a_command_reads_the_data_once(reads: list[str], tmp_path: Path) -> None:
    words = ["run", "--data", "heart", "--rounds", "2", "--guard", "mixture", "--quiet", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    assert reads == ["heart.csv"]
    assert main([*words, "--resume"]) == 0
    assert reads == ["heart.csv"] * 2
