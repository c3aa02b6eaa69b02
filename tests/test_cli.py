"""The command line as a person meets it."""

import json
import re
import signal
import subprocess
import sys
import tomllib
import webbrowser
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import comity as package
from comity import ComityError
from comity.__main__ import main
from comity._catalogue import KINDS, described
from comity._errors import install
from comity.commands import command, find
from comity.config import Config
from comity.engine import RunPlan
from comity.results import RunFolder, schema
from helpers import ARGUMENTS, Capture, Patch, rejected, wait_for

pytestmark = pytest.mark.usefixtures("elsewhere")

ROOT = Path(__file__).parents[1]
SMALL = [*ARGUMENTS, "--rounds", "3", "--workers", "1", "--reference", "none"]
STUDY = [*ARGUMENTS, "--rounds", "3", "--jobs", "1"]


def comity(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_a_run_from_the_command_line(capsys: Capture, tmp_path: Path) -> None:
    code, out, err = comity(
        capsys, "run", *SMALL, "--method", "ditto", "--method.lam", "0.5", "--reference=auto", "--out", "runs/x"
    )
    assert (code, err) == (0, "")
    assert "Ditto + Mean" in out
    assert "local training in accuracy (95 % CI of the gain" in " ".join(out.split())
    assert "local → joined" in out
    assert "Run folder: runs/x" in out
    config = Config.of(RunFolder(tmp_path / "runs" / "x").options())
    assert config.method.options == {"lam": 0.5, "personal_epochs": None}
    # the written configuration is complete, and reads back as itself
    written = yaml.safe_load((tmp_path / "runs" / "x" / "config.yaml").read_text())
    assert Config.of(written) == config
    assert written["method"] == {"name": "Ditto", "lam": 0.5, "personal_epochs": None}


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/comity/__init__.py"
    files = [ROOT / "pyproject.toml", ROOT / "README.md", *ROOT.glob("src/comity/**/*.py")]
    assert [file for file in files if package.__version__ in file.read_text()] == [ROOT / "src/comity/__init__.py"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "extension"])
def test_lists_have_a_line_for_each(capsys: Capture, kind: str) -> None:
    code, out, _ = comity(capsys, "list", kind if kind == "data" else f"{kind}s")
    assert code == 0
    *lines, empty, note = out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(described(kind))
    assert (empty, note.startswith(f"comity run --{kind} NAME --help")) == ("", True)


def test_data_prints_a_table(capsys: Capture) -> None:
    code, out, _ = comity(capsys, "data", "--partition.alpha", "0.3", "--clients", "6")
    assert code == 0
    assert "digits · Dirichlet(alpha=0.3, min_partition_size=10) · seed 0" in out
    assert "1,797 samples" in out


@pytest.mark.parametrize("command", ["data", "run"])
def test_warnings_before_a_run(command: str, tmp_path: Path, capsys: Capture) -> None:
    rows = "".join(f"{row % 7},{row % 12},Bern\n" for row in range(120))
    (tmp_path / "mine.csv").write_text("a,label,site\n" + rows)
    options = ["--rounds", "1", "--out", str(tmp_path / "run")] if command == "run" else []
    code, out, err = comity(capsys, command, "--data", str(tmp_path / "mine.csv"), *options)
    assert code == 0
    said = " ".join((out + err).split())
    assert said.count("The target label holds 12 different numbers, 0 to 11: are they classes?") == 1
    assert said.count("There is only one client (Bern), so there is no federation to join.") == 1


BAD: list[tuple[list[str], str]] = [
    (["--method", "nowhere.Mine"], "method 'nowhere.Mine' could not be imported: No module named 'nowhere'"),
    (["--method", "Ditto", "--method.lam", "much"], "method.lam must be a number, got 'much'"),
    (["--model", "resnet"], "unknown model 'resnet'; did you mean"),
    (["--clients", "2000", "--data", "digits"], "clients must be at most 898, got 2000: digits has 1797 samples"),
    (["--participation", "0.01"], "participation 0.01 of 4 clients selects no client; take at least 0.125"),
    (["--buffers", "first"], "buffers must be average | local, got 'first'"),
    (["--data", "nothing"], "nothing"),
    (["--rounds"], "--rounds needs a value"),
    (["rounds", "3"], "unexpected argument 'rounds'; options start with --"),
    (["--config", "missing.yaml"], "config missing.yaml could not be read: No such file or directory"),
    (["--data", "torn"], "torn.npz"),
    (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
    (["--resume"], "--resume: runs/fedavg-mean-synthetic-s0 holds no run to resume"),
    (["--lr", "-1e-3"], "lr must be above 0, got -0.001"),
    (["--rounds.fast", "1"], "--rounds has no options of its own, got --rounds.fast"),
    (["--quiet=yes"], "--quiet takes no value, got 'yes'"),
    (["--rule.c", "0.3"], "unknown option 'c' of rule Mean; known: "),
    (["--optimizer", "SDG"], "unknown optimizer 'SDG'"),
    (["--device", "cuba"], "device 'cuba' cannot be used here"),
    (["--device", "gpu"], "unknown device 'gpu'; did you mean cuda?"),
    (["--device", "0"], "unknown device '0'; did you mean cuda:0?"),
    (["--wandb"], "wandb is a value of track; give --track wandb"),
    (["--track", "wandb,excel"], "track must be wandb | mlflow | tensorboard, got 'excel'"),
    (["--trainer", "fast"], "trainer must be auto | autograd | bfloat16 | chain | compiled, got 'fast'"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    capsys: Capture, tmp_path: Path, arguments: list[str], told: str
) -> None:
    np.savez(tmp_path / "whole.npz", x_train=np.zeros(9))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:90])
    before = sorted(tmp_path.rglob("*"))
    common = [] if {"digits", "nothing", "torn"} & set(arguments) else SMALL
    assert told in rejected(capsys, "run", "--data-dir", str(tmp_path), *common, *arguments)
    assert sorted(tmp_path.rglob("*")) == before


FILE = """\
method: {name: Ditto, lam: 2.0}
rule: {name: ConFREE, c: 0.1, scope: layer}
partition.alpha: 3
rounds: 7
lr: 0.3
"""
GIVEN = [
    ["--config", "c.yaml"],
    ["--rule.c", "0.3"],
    ["--rule=confree"],
    ["--method", "FedProx"],
    ["--method.mu", "0.5"],
    ["--partition.self-balancing", "true"],
    ["--batch_size", "4"],
    ["--lr=1e-3"],
    ["--save-models"],
    ["--quiet"],
]


def test_the_order_of_arguments_does_not_matter(monkeypatch: Patch) -> None:
    received: list[Config] = []

    def stop(config: Config) -> None:
        received.append(config)
        raise ComityError("that is all")

    monkeypatch.setattr("comity.commands.run._with_folder", stop)  # nothing is trained
    Path("c.yaml").write_text(FILE)
    orders = [GIVEN[first:] + GIVEN[:first] for first in range(len(GIVEN))]
    for order in (*orders, *(order[::-1] for order in orders)):
        with pytest.raises(ComityError, match="that is all"):
            command("run", [argument for option in order for argument in option])
    config = received[0]
    assert all(each == config for each in received)
    assert (config.method.name, config.method.options["mu"]) == ("FedProx", 0.5)
    assert (config.rule.name, config.rule.options["c"], config.rule.options["scope"]) == ("ConFREE", 0.3, "layer")
    assert config.partition.options == {"alpha": 3.0, "min_partition_size": 10, "self_balancing": True}
    assert (config.rounds, config.lr, config.batch_size, config.save_models) == (7, 1e-3, 4, True)


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [("table", "--format", "md"), ("report", "--output", "x"), ("inspect", "--memory", "-1e-3")],
)
def test_options_may_stand_anywhere_among_arguments(name: str, flag: str, value: str) -> None:
    parsed = find(name).parse(["a", "b", "c", flag, value])
    assert parsed[flag[2:]] == value
    for order in ([flag, value, "a", "b", "c"], ["a", flag, value, "b", "c"], ["a", f"{flag}={value}", "b", "c"]):
        assert find(name).parse(order) == parsed


def test_resume_needs_nothing_but_the_folder(capsys: Capture) -> None:
    arguments = ["run", *SMALL, "--method", "Ditto", "--method.lam", "0.5", "--checkpoint-every", "2"]
    for out in ("whole", "x"):
        assert main([*arguments, "--out", out, "--quiet"]) == 0
    Path("x/result.json").unlink()  # as if it had been killed at the very end
    assert main(["run", "--resume", "--out", "x", "--quiet"]) == 0
    assert Path("x/result.json").exists()
    assert Path("x/clients.csv").read_text() == Path("whole/clients.csv").read_text()
    Path("same.yaml").write_text("out: x\nmethod: {name: ditto, lam: 0.5}\n")
    agreeing = ["--config", "same.yaml", "--rounds", "3", "--workers", "2"]  # another number of workers decides nothing
    assert main(["run", "--resume", "--quiet", *agreeing]) == 0
    before = {path: path.stat().st_mtime_ns for path in Path("x").rglob("*")}
    for differing, names in (
        (["--lr", "0.3"], "lr"),
        (["--method.lam", "1", "--seed", "4"], "method.lam, seed"),
        (["--method", "FedProx"], "method"),
        (["--partition", "iid"], "partition"),
    ):
        said = rejected(capsys, "run", "--resume", "--out", "x", *differing)
        assert f"x holds a run of another configuration ({names} differ); give the same options" in said
    assert {path: path.stat().st_mtime_ns for path in Path("x").rglob("*")} == before


def test_tab_shows_what_there_is() -> None:
    shown = dir(package)
    assert {"run", "study", "load", "Config", "ComityError", "rules", "methods", "data"} <= set(shown)
    assert all(getattr(package, name) is not None for name in shown)


MINE = '''
from comity.methods import Method

class Mine(Method):
    """Share the head of a house."""

    strength: float = 0.5
    shared = ("head",)
'''


def test_a_method_of_ones_own_that_is_typed_is_trusted(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mymod.py").write_text(MINE)
    Path("c.yaml").write_text("lr: 0.1")
    mine = ["--config", "c.yaml", "--method", "mymod.Mine", "--method.strength", "0.25"]
    code, out, err = comity(capsys, "run", *SMALL, *mine)
    assert (code, err) == (0, "")
    assert "mymod.Mine + Mean" in out
    (written,) = Path("runs").glob("*/config.yaml")
    assert RunFolder(written.parent).options()["method"]["strength"] == 0.25


def test_ctrl_c_ends_the_round_and_says_how_to_go_on(tmp_path: Path) -> None:
    arguments = [*SMALL, "--rounds", "100000", "--out", "x"]
    process = subprocess.Popen(
        [sys.executable, "-m", "comity", "run", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_for(lambda: len(RunFolder(tmp_path / "x").rounds()) > 2)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    folder = RunFolder(tmp_path / "x")
    stopped = len(folder.rounds())
    assert f"Stopped after round {stopped} of 100000" in out
    assert "comity run --resume --out x" in out
    assert (folder / schema.CHECKPOINT).exists()
    assert not folder.finished


def test_tensorboard_events_are_written() -> None:
    pytest.importorskip("tensorboard")
    assert main(["run", *SMALL, "--out", "x", "--quiet", "--track", "tensorboard"]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator("x/tensorboard")
    events.Reload()
    assert {"train/loss", "eval/L-acc/mean", "eval/L-acc/client_03", "conflict/rate"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("eval/L-acc/mean")] == [1, 2, 3]


# What a newcomer meets first.


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (None, "pip install 'comity[hub]'"),
        ({"url": "file:///HERE", "dir_info": {"editable": True}}, "pip install -e '.[hub]'"),
        ({"url": "file:///srv/comity", "dir_info": {"editable": True}}, "pip install -e '/srv/comity[hub]'"),
        ({"url": "file:///srv/c.whl", "archive_info": {}}, "pip install 'comity[hub] @ file:///srv/c.whl'"),
        ({"url": "https://x/c", "vcs_info": {"vcs": "git"}}, "pip install 'comity[hub] @ git+https://x/c'"),
    ],
)
def test_a_hint_knows_how_this_copy_was_installed(
    monkeypatch: Patch, tmp_path: Path, origin: dict[str, object] | None, told: str
) -> None:
    text = None if origin is None else json.dumps(origin).replace("/HERE", str(tmp_path))
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert install("hub") == f".venv/bin/{told}"


def test_a_dry_run_counts_and_measures_and_writes_nothing(capsys: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("comity.studies._runs.Runs.time_one_round", lambda *_: (2.0, 1.0, 1.5))
    monkeypatch.setattr("comity.studies._runs.seconds", lambda *_: 7.5)  # 3 rounds of 2 s, evaluations of 1 s and 1.5 s
    study = ["study", *STUDY, "--method", "FedAvg,FedRep", "--rule", "Mean,MGDA", "--seeds", "2", "--out", "x"]
    assert main([*study, "--eval-every", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("12 runs to do; 1 in parallel")
    assert "First estimate, from stored costs: 90 s" in out.replace("2 min", "90 s")
    # not every round is evaluated: (3 · 2 s + 1 s + 1.5 s) / 3
    assert "a round of the cheapest run, Local, 2.83 s of CPU time, 3 rounds" in out
    assert out.endswith("Estimate for this machine: 2 min.\n")
    assert list(tmp_path.iterdir()) == []
    assert main([*study, "--tune", "rule.scale=0.5,1", "--val-share", "0.2", "--dry-run"]) == 2


def test_a_dry_run_really_tries_a_round_and_does_not_count_what_is_done(capsys: Capture, tmp_path: Path) -> None:
    study = ["study", *STUDY, "--method", "FedAvg", "--guard", "mixture", "--out", "x"]
    assert main([*study, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3 runs to do")
    assert list(tmp_path.iterdir()) == []
    assert main([*study, "--quiet"]) == 0
    assert main([*study, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("0 runs to do")


def test_the_report_ends_with_a_link_and_opens(capsys: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["run", *SMALL, "--quiet", "--out", "run"]) == 0
    assert main(["report", "run", "-o", "page.html"]) == 0
    link = (tmp_path / "page.html").as_uri()
    assert capsys.readouterr().out.endswith(f"\n{link}\n")
    assert opened == []
    assert main(["report", "run", "-o", "page.html", "--open", "--quiet"]) == 0
    assert opened == [link]
    assert capsys.readouterr().out == ""


def test_a_long_study_tries_a_round_of_each_first(capsys: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    def fails(_: Any, config: Config) -> tuple[float, float, float]:
        if config.method.name == "FedRep":
            raise ZeroDivisionError("mine")
        return 1.0, 0.0, 0.0

    monkeypatch.setattr("comity.studies._runs.Runs.time_one_round", fails)
    study = ["study", *STUDY, "--method", "FedAvg,FedRep", "--rounds", "400", "--out", "x"]
    assert main(study) == 2
    out, err = capsys.readouterr()
    assert "a round of FedAvg + Mean: 1.00 s, 400 rounds" in out
    assert err == "comity: FedRep + Mean fails in its first round: ZeroDivisionError: mine\n"
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_of_a_study_leave_no_checkpoint_unless_asked_to(tmp_path: Path) -> None:
    study = ["study", *STUDY, "--method", "FedAvg", "--quiet"]
    for out, kept in (("x", ["local"]), ("y", ["fedavg", "local", "local"])):
        assert main([*study, "--out", out, *(["--keep-checkpoints"] if "fedavg" in kept else [])]) == 0
        checkpoints = (tmp_path / out / schema.RUNS).glob(f"*/{schema.CHECKPOINT}")
        assert sorted(file.parents[1].name.partition("-")[0] for file in checkpoints) == kept
    assert main([*study, "--out", "x", "--guard", "none,mixture"]) == 0  # which needs the models of Local


def test_tuning_says_what_it_chose(capsys: Capture) -> None:
    study = ["study", *STUDY, "--method", "FedAvg", "--rule", "MGDA", "--tune", "rule.cap=0.5,1", "--out", "x"]
    assert main(study) == 0
    assert re.search(
        r"  rule\.cap for FedAvg \+ MGDA: [\d.]+ \(by validation accuracy, of 2 values\)", capsys.readouterr().out
    )


def test_the_device_is_the_one_that_is_here(monkeypatch: Patch) -> None:
    assert RunPlan(Config()).config.device == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert RunPlan(Config()).config.device == "cuda"
    assert RunPlan(Config(device="cpu")).config.device == "cpu"
