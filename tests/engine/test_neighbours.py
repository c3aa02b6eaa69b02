"""Runs side by side, in one folder or with one Local, and what is left of those that were killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from comity import ComityError, Config
from comity._write import locked
from comity.engine import run
from comity.results import RunFolder
from helpers import Options, contents

# Each run waits until all of them are ready, so that they begin at the same time.
DRIVER = """
import sys, time
from pathlib import Path
from comity import Config
from comity._errors import ComityError
from comity.engine import run
gate, name, config = Path(sys.argv[1]), sys.argv[2], Config.load(Path(sys.argv[3]))
(gate / name).touch()
while not (gate / "go").exists():
    time.sleep(0.005)
try:
    run(config)
except ComityError as error:
    print(error)
    sys.exit(2)
"""


def side_by_side(tmp_path: Path, configs: list[Config]) -> list[tuple[int, str]]:
    """Exit code and output of each, all begun at once."""
    gate = tmp_path / "gate"
    gate.mkdir()
    started = []
    for i, config in enumerate(configs):
        file = gate / f"{i}.yaml"
        file.write_text(yaml.safe_dump(config.plain()))
        words = [sys.executable, "-c", DRIVER, str(gate), str(i), str(file)]
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    while not all((gate / str(i)).exists() for i in range(len(configs))):
        assert all(process.poll() is None for process in started)
        time.sleep(0.02)
    (gate / "go").touch()
    outputs = [process.communicate(timeout=240)[0] for process in started]
    return [(process.returncode, output) for process, output in zip(started, outputs, strict=True)]


@pytest.mark.parametrize("count", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_runs_side_by_side_share_one_local(tiny: Options, tmp_path: Path, count: int) -> None:
    options = tiny | {"reference": "auto", "rounds": 6}
    methods = ("FedAvg", "FedRep", "Ditto", "APFL", "FedPer", "LG-FedAvg")[:count]
    configs = [Config(**options, method=name, out=tmp_path / "runs" / name, checkpoint_every=1) for name in methods]
    assert side_by_side(tmp_path, configs) == [(0, "")] * count
    locals_there = list((tmp_path / "runs" / ".local").iterdir())
    assert len(locals_there) == 2  # and its repetition
    for local in locals_there:
        assert [record.round for record in RunFolder(local).rounds()] == [1, 2, 3, 4, 5, 6]  # by one of them alone
    for config in configs:
        assert config.out is not None
        alone = run(config.with_(out=tmp_path / "alone" / config.out.name)).result
        beside = RunFolder(config.out).result()
        assert (beside.last, beside.clients, beside.transfer) == (alone.last, alone.clients, alone.transfer)
    assert not [path for path in tmp_path.rglob(".*") if path.name == ".lock" or path.suffix == ".part"]


@pytest.mark.slow
def test_of_three_runs_in_one_folder_one_is_done_and_the_others_are_rejected(tiny: Options, tmp_path: Path) -> None:
    config = Config(**(tiny | {"rounds": 30}), out=tmp_path / "x")
    ends = sorted(side_by_side(tmp_path, [config] * 3))
    assert [code for code, _ in ends] == [0, 2, 2]
    for _, output in ends[1:]:
        assert output.count("\n") == 1
        assert "another run is at work in" in output or "holds a run already" in output
    alone = run(config.with_(out=None))
    assert RunFolder(tmp_path / "x").result().clients == alone.columns
    assert [record.round for record in RunFolder(tmp_path / "x").rounds()] == list(range(1, 31))


def test_a_folder_that_another_run_writes_to_is_rejected_and_left_alone(tiny: Options, tmp_path: Path) -> None:
    run(**tiny, out=tmp_path / "x")
    before = contents(tmp_path / "x")
    with RunFolder(tmp_path / "x").locked():
        for how in ({"resume": True}, {"overwrite": True}, {}):
            with pytest.raises(ComityError, match="another run is at work in"):
                run(**tiny, out=tmp_path / "x", **how)
    assert contents(tmp_path / "x") == before


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    words = "import sys, time; from pathlib import Path; from comity._write import locked\n"
    words += "with locked(Path(sys.argv[1]), 'taken'): print('held', flush=True); time.sleep(60)"
    file = tmp_path / "folder" / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", words, str(file)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ComityError, match="taken"), locked(file, "taken"):
        pass
    with locked(file, "taken", stop=lambda: True) as held:
        assert not held
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert file.exists()
    with locked(file, "taken") as held:
        assert held
    assert not file.exists()


def test_a_run_that_waits_for_a_neighbours_local_can_be_stopped(tiny: Options, tmp_path: Path) -> None:
    config = Config(**(tiny | {"reference": "auto", "control": "none"}), out=tmp_path / "x")
    first = run(config)
    (cached,) = (tmp_path / ".local").iterdir()
    with RunFolder(cached).locked():
        stopped = run(config, overwrite=True, stop=lambda: True)
    assert not stopped.done
    assert run(config, resume=True).columns == first.columns


def test_part_files_go_when_their_process_is_gone(tiny: Options, tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run(**tiny, out=tmp_path / "x")
    left = [tmp_path / "x" / f".run.json.{gone.pid}.part", tmp_path / "x/checkpoint" / f".state.{gone.pid}.part"]
    for path in left:
        path.touch()
    run(**tiny, out=tmp_path / "x", resume=True)
    assert not any(path.exists() for path in left)
