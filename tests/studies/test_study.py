"""Studies: each cell is run once, whatever happens on the way, and the command line says what is done."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from rich.console import Console
from study_parts import BROKEN, OTHER, SMALL, numbers, record_begun

import comity
from comity import ComityError, Config
from comity.__main__ import main
from comity.compare import LoadedStudy
from comity.engine import _plan
from comity.metrics import EVIDENCE, OWN
from comity.results import CHECKPOINT, RunFolder
from comity.studies import Show, _study, study
from comity.studies._crew import Job
from helpers import ARGUMENTS, Capture, Options, Patch, rejected, wait_for


def written(out: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in out.glob("runs/*/*") if path.is_file()}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Options, Path]:
    """A study of two methods, two rules and two seeds."""
    out = tmp_path_factory.mktemp("study") / "x"
    options = SMALL | {"method": "FedAvg,FedRep", "rule": ["Mean", OTHER], "seeds": 2, "out": out}
    assert study(**options).failed == {}
    return options, out


def test_a_study_leaves_ordinary_runs_with_local_once_a_seed(done: tuple[Options, Path]) -> None:
    _, out = done
    other = OTHER.lower().replace("_", "-")
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(
        f"{name}-s{seed}"
        for seed in (0, 1)
        for name in ("local", "local-repeated", "fedavg-mean", "fedrep-mean", f"fedavg-{other}", f"fedrep-{other}")
    )
    files = {"study.yaml", "cells.json", "runs", "table.md", "table.tex", "table.csv"}
    assert {path.name for path in out.iterdir()} == files
    for seed in (0, 1):
        local = RunFolder(out / "runs" / f"local-s{seed}").result()
        joined = RunFolder(out / "runs" / f"fedrep-mean-s{seed}").result()
        assert joined.transfer.local == pytest.approx(local.last.metrics[OWN.key].mean)
    folder = out / "runs" / "fedrep-mean-s1"
    alone = comity.run(Config.load(folder / "config.yaml").with_(out=None, reference="none"))
    kept = RunFolder(folder).result().clients
    assert alone.columns == {name: kept[name] for name in alone.columns}
    assert kept.keys() - alone.columns.keys() == {each.key for each in EVIDENCE}  # which need a Local to compare with


def test_local_training_is_repeated_once_a_seed_and_compared_with_local_training(
    done: tuple[Options, Path],
) -> None:
    _, out = done
    (setting,) = LoadedStudy(out).settings
    local = setting.local
    assert {seed: run.path.name for seed, run in setting.repeated.items()} == {
        seed: f"local-repeated-s{seed}" for seed in (0, 1)
    }
    for seed, repeated in setting.repeated.items():
        mine, first = repeated.samples, local.runs[seed].samples
        assert all(np.array_equal(mine[client].id, first[client].id) for client in first)  # the same tests
        assert any(not np.array_equal(mine[client].score, first[client].score) for client in first)
        assert repeated.metric("mixed") == pytest.approx(fmean(repeated.by_client("mixed").values()))
    names = [line.name for line in LoadedStudy(out).table().rows]
    assert names[:3] == ["Local", "majority class", "Local, repeated"]
    assert "two local models mixed" not in names  # which stands beside a guard


def test_what_is_done_is_not_done_again_and_a_study_may_grow(done: tuple[Options, Path], monkeypatch: Patch) -> None:
    options, out = done
    began = record_begun(monkeypatch)
    before, table = written(out), (out / "table.csv").read_text()
    study(**options)
    assert (began, written(out), (out / "table.csv").read_text()) == ([], before, table)

    grown = {"method": "FedAvg,FedRep,FedPer", "rule": "Mean", "sweep": {"participation": [1.0, 0.6]}, "seeds": 1}
    study(**options | grown)
    # cells that had another name before are known by their configuration
    new = ["fedavg-mean", "fedper-mean", "fedrep-mean", "local", "local-repeated"]
    assert sorted(began) == sorted(
        ["fedper-mean-participation1.0-s0", *(f"{name}-participation0.6-s0" for name in new)]
    )
    assert before.items() <= written(out).items()

    with pytest.raises(ComityError, match=r"local-s0 holds a run of another configuration \(lr differ\)"):
        study(**options | {"lr": 0.2})
    study(**options | {"lr": 0.2, "method": "FedAvg", "rule": "Mean", "seeds": 1}, overwrite=True)
    assert RunFolder(out / "runs" / "fedavg-mean-s0").options()["lr"] == 0.2


DYING = """
import os, signal
from comity.methods import Method

class Dying(Method):
    def fit(self, client, received):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_side_by_side_gives_the_same_numbers_and_a_failing_cell_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(str(tmp_path))
    one = study(**SMALL, method=["FedAvg", BROKEN, "FedRep"], seeds=2, out=tmp_path / "one")
    mistakes = {f"{BROKEN} + Mean, seed {seed}": "ZeroDivisionError: my [own] mistake" for seed in (0, 1)}
    assert one.failed == mistakes
    assert "2 of 10 runs are not finished" in one.table().markdown()
    assert any("in fit" in run.traceback for run in one.planned.values())

    methods = ["FedAvg", BROKEN, "dying.Dying", "FedRep"]
    two = study(**SMALL | {"jobs": 2}, method=methods, seeds=2, out=tmp_path / "two")
    killed = "the process ended with code -9 (killed; out of memory?)"
    assert two.failed == mistakes | {f"dying.Dying + Mean, seed {seed}": killed for seed in (0, 1)}
    for folder in (*tmp_path.glob("*/runs/*broken*"), *tmp_path.glob("*/runs/*dying*")):
        shutil.rmtree(folder)
    assert len(list((tmp_path / "two" / "runs").iterdir())) == 8
    assert numbers(tmp_path / "one") == numbers(tmp_path / "two")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_studys_process_reads_each_data_set_once(tmp_path: Path, monkeypatch: Patch, jobs: int) -> None:
    """Planning, checking, trying a round, the runs of this process, and the fingerprint when the study is resumed."""
    read: list[str] = []
    load = _plan.load

    def counted(name: str, *rest: Any, **options: Any) -> Any:
        read.append(name)
        return load(name, *rest, **options)

    monkeypatch.setattr(_plan, "load", counted)
    monkeypatch.setattr(_study, "LONG", 1)
    if jobs > 1:
        monkeypatch.setattr(_study, "execute", lambda *_: {})
    options = SMALL | {"data": "heart", "model": None, "clients": None, "partition": None, "jobs": jobs}
    options |= {"sweep": {"data": ["heart", "digits"]}, "method": "FedAvg,Ditto", "seeds": 2, "out": tmp_path / "x"}
    for _ in range(2):
        study(**options)
        assert sorted(read) == ["digits", "heart"]
        read.clear()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    for out in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(ComityError, match="is not empty and holds no study"):
            study(**SMALL, out=out)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ComityError, match="needs out"):
        study(**SMALL)


def test_without_its_local_a_run_is_not_begun(tmp_path: Path, monkeypatch: Patch) -> None:
    from comity.methods import Local

    def fail(*_: Any) -> None:
        raise MemoryError("too large")

    monkeypatch.setattr(Local, "fit", fail, raising=False)
    result = study(**SMALL, out=tmp_path / "x")
    assert result.failed["FedAvg + Mean, seed 0"] == (
        "its local baseline failed: the run needs more memory than there is: too large"
    )
    monkeypatch.undo()
    assert study(**SMALL, out=tmp_path / "x").failed == {}


@pytest.mark.slow
def test_a_killed_study_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    options = SMALL | {"rounds": 400, "checkpoint_every": 7, "eval_every": 100, "method": "FedAvg,FedRep"}
    options["model"] = {"name": "mlp", "widths": [16]}
    out = tmp_path / "killed"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(options | {"out": str(out), "jobs": 2}))
    command = [sys.executable, "-m", "comity", "study", "--config", str(tmp_path / "study.yaml"), "--quiet"]
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: len(RunFolder(out / "runs" / "fedavg-mean-s0").rounds()) > 9)
        with pytest.raises(ComityError, match="another study is running"):
            study(**options, out=out)
    finally:
        process.kill()
        process.wait()
    assert not RunFolder(out / "runs" / "fedavg-mean-s0").finished
    local = (out / "runs" / "local-s0" / "result.json").stat().st_mtime_ns
    wait_for(lambda: not in_use(out))  # the workers end by themselves
    assert main(["study", "--config", str(out / "study.yaml"), "--jobs", "1", "--quiet"]) == 0
    assert (out / "runs" / "local-s0" / "result.json").stat().st_mtime_ns == local
    study(**options, out=tmp_path / "unbroken")
    assert numbers(out) == numbers(tmp_path / "unbroken")


def in_use(out: Path) -> bool:
    """Whether a process has a file of the study open: each worker has its log."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if any(os.readlink(link).startswith(str(out)) for link in (process / "fd").iterdir()):
                return True
    return False


# The command line.

STUDY = [*ARGUMENTS, "--rounds", "2", "--jobs", "1"]


@pytest.mark.usefixtures("elsewhere")
def test_a_study_from_the_command_line(capsys: Capture) -> None:
    arguments = [*STUDY, "--method", "FedAvg,Ditto", "--method.lam", "0.5", "--rule", f"Mean,{OTHER}", "--seeds", "0,3"]
    assert main(["study", *arguments, "--sweep", "data.classes=3,4", "--out", "x"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "24/24" in out
    assert out.count(f"+ {OTHER}") >= 4
    assert "x, with table.md" in out
    assert len(list(Path("x/runs").iterdir())) == 24
    assert main(["table", "x", "--format", "csv"]) == 0
    assert capsys.readouterr().out == Path("x/table.csv").read_text()
    assert main(["table", "x/runs/local-classes3-s0", "x/runs/fedavg-mean-classes3-s0"]) == 0
    assert "One seed (0)" in capsys.readouterr().out


@pytest.mark.usefixtures("elsewhere")
def test_a_failing_cell_is_told_at_the_end(capsys: Capture) -> None:
    arguments = f"--method {BROKEN},FedAvg --reference none --quiet --out x --callbacks study_parts.Title"
    assert main(["study", *STUDY, *arguments.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "my [own] mistake" in err
    assert "1 runs failed; x/cells.json has the tracebacks" in err
    assert RunFolder(Path("x/runs/fedavg-mean-s0")).finished
    assert Path("x/runs/fedavg-mean-s0/title.txt").read_text() == "FedAvg + Mean"


BAD: list[tuple[list[str], str]] = [
    (["--method", "FedAvg,FedRap"], "unknown method 'FedRap'; did you mean FedRep"),
    (["--method", "FedAvg,"], "method must name at least one"),
    (["--seeds", "x"], "seeds must be a number of seeds (3) or different seeds (0,4,7), got 'x'"),
    (["--seeds", "1,1"], "seeds must be"),
    (["--seed", "x"], "seed must be a whole number, got 'x'"),
    (["--sweep", "rule.c"], "--sweep takes key=values"),
    (["--sweep", "rule.nothing=1,2"], "unknown option 'nothing' of a rule"),
    (["--sweep", "seed=1,2"], "sweep seed: cannot be swept; use seeds"),
    (["--sweep", "workers=1,2"], "sweep workers: cannot be swept"),
    (["--sweep", "rounds=1,two"], "rounds must be a whole number, got 'two'"),
    (
        ["--sweep", "clients=4,90000", "--data", "digits"],
        "clients must be at most 898, got 90000: digits has 1797 samples",
    ),
    (["--sweep", "data=synthetic,nothing"], "unknown data set 'nothing'"),
    (
        ["--tune", "clients=10,20"],
        "tune clients: only options of a method or rule, such as rule.c, or of local training",
    ),
    (["--tune", "rule.c=0.9:0.1"], "tune rule.c must be low:high"),
    (["--tune", "rule.c=a:b"], "tune rule.c must be low:high"),
    (["--tune", "rule.nothing=1,2"], "tune rule.nothing: no method or rule of this study has this option"),
    (["--budget", "none at all"], "budget must be"),
    (["--jobs", "0"], "jobs must be at least 1, got 0"),
    (["--reference", "runs/x"], "reference must be auto or none in a study"),
    (["--scale", "paper"], "scale paper: this study has no scales"),
    (["--config", "missing.yaml"], "config missing.yaml could not be read"),
    (["--sweeps", "lr=1"], "unknown option '--sweeps'; did you mean --sweep"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    capsys: Capture, elsewhere: Path, arguments: list[str], told: str
) -> None:
    assert told in rejected(capsys, "study", *([] if "digits" in arguments else STUDY), *arguments)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_rounds_and_says_how_to_go_on(elsewhere: Path) -> None:
    arguments = [*ARGUMENTS, "--jobs", "2", "--rounds", "100000", "--eval-every", "1000", "--checkpoint-every", "1"]
    arguments += ["--reference", "none"]
    command = [sys.executable, "-m", "comity", "study", *arguments, "--method", "FedAvg,FedRep", "--out", "x"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    folders = [RunFolder(elsewhere / "x" / "runs" / f"{name}-mean-s0") for name in ("fedavg", "fedrep")]
    try:
        wait_for(lambda: all(len(folder.rounds()) > 1 for folder in folders))
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "comity study --config x/study.yaml" in out
    assert all((folder / CHECKPOINT).exists() and not folder.finished for folder in folders)


@pytest.mark.usefixtures("elsewhere")
def test_examples_are_found_by_name(capsys: Capture) -> None:
    assert main(["list", "examples"]) == 0
    assert {"demo", "confree-table1"} <= set(capsys.readouterr().out.split())
    assert main(["reproduce", "dmeo"]) == 2
    assert "did you mean demo" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert (
        "takes the name of an example: confree-decisive, confree-figure2, confree-table1, " in capsys.readouterr().err
    )


def test_the_demo_at_a_smaller_scale(capsys: Capture, elsewhere: Path) -> None:
    assert main(["reproduce", "demo", "--rounds", "1", "--seeds", "1", "--jobs", "1"]) == 0
    assert {path.name for path in (elsewhere / "studies" / "demo-desk" / "runs").iterdir() if path.name[0] != "."} == {
        *("local-s0", "local-repeated-s0", "fedavg-mean-s0", "fedavg-confree-s0", "fedcalm-s0", "fedora-s0"),
        *("fedpg-s0", "fedavg-mean-mixture-s0", "fedrep-mean-mixture-s0"),
    }
    assert "FedAvg, guarded" in capsys.readouterr().out


def test_help_teaches_the_options_of_all_that_were_chosen(capsys: Capture) -> None:
    assert main(["study", "--method", "Ditto,FedProx", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("--method.lam", "--method.mu", "comity study --help shows all other options"))
    assert main(["study", "--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ("--sweep", "--tune", "--seeds", "--participation"))


def test_progress_on_a_terminal() -> None:
    file = StringIO()
    show = Show(Console(file=file, force_terminal=True, width=100))
    jobs = [Job(Config(rounds=4, method=name), f"{name}, seed 0") for name in ("FedAvg", "FedRep", "Ditto")]
    show.begin(jobs, 2)
    for round in (1, 2, 3, 4):
        show.hear(jobs[0], {"round": round, "accuracy": 0.5 if round > 1 else None})
    show.hear(jobs[1], {"round": 3, "accuracy": None})  # goes on where it was
    show.hear(jobs[0], {"end": "done"})
    show.hear(jobs[2], {"end": "failed", "error": "no [memory]"})
    assert (show.done, show.total, show.rounds, sum(show.left.values())) == (3, 5, 5, 1)
    show.end()
    assert "Ditto, seed 0: failed: no [memory]" in file.getvalue().replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert "3/5 runs" in file.getvalue()
