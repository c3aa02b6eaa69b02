"""What a newcomer meets first: hints that fit the installation, a plan before a long study, completion, the pages."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import webbrowser
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from comity import Config
from comity.__main__ import main
from comity._errors import install
from comity.engine import settled
from comity.results import CHECKPOINT, RUNS

ROOT = Path(__file__).parents[1]
SMALL = [
    *("--data", "synthetic", "--data.samples", "24", "--data.classes", "4", "--model", "mlp", "--model.widths", "16"),
    *("--clients", "4", "--rounds", "3", "--batch-size", "8", "--jobs", "1"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'comity[hub]'"),
        ({"url": "file:///HERE", "dir_info": {"editable": True}}, "pip install -e '.[hub]'"),
        ({"url": "file:///srv/comity", "dir_info": {"editable": True}}, "pip install -e '/srv/comity[hub]'"),
        ({"url": "file:///srv/c.whl", "archive_info": {}}, "pip install 'comity[hub] @ file:///srv/c.whl'"),
        ({"url": "https://x/c", "vcs_info": {"vcs": "git"}}, "pip install 'comity[hub] @ git+https://x/c'"),
    ],
)
def test_a_hint_knows_how_this_copy_was_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, origin: dict[str, object] | None, command: str
) -> None:
    text = None if origin is None else json.dumps(origin).replace("/HERE", str(tmp_path))
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    assert install("hub") == f".venv/bin/{command}"


def test_the_badges_lead_to_this_repository() -> None:
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    address = source.replace("https://github.com", "https://colab.research.google.com/github")
    for page in ("README.md", "examples/comity.ipynb"):
        assert f"({address}/blob/main/examples/comity.ipynb)" in (ROOT / page).read_text()
    assert f"git+{source}" in (ROOT / "examples/comity.ipynb").read_text()


def test_no_hint_is_written_out_by_hand() -> None:
    files = [file for file in (ROOT / "src").rglob("*.py") if file.name != "_errors.py"]
    assert [file for file in files if "pip install" in file.read_text()] == []


def test_a_dry_run_counts_and_measures_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.studies._study.a_round", lambda _: (2.0, 1.0, 1.5))
    study = ["study", *SMALL, "--method", "FedAvg,FedRep", "--rule", "Mean,MGDA", "--seeds", "2", "--out", "x"]
    assert main([*study, "--eval-every", "2", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("10 runs to do; 1 side by side")
    assert "a round of FedRep + MGDA: 3.00 s, 3 rounds" in out
    assert out.endswith("About 85 s in all.\n")  # 10 runs, 3 rounds of 2 s, evaluations of 1 s and 1.5 s
    assert list(tmp_path.iterdir()) == []
    assert main([*study, "--tune", "rule.scale=0.5,1", "--val-share", "0.2", "--dry-run"]) == 2


def test_a_dry_run_really_tries_a_round_and_does_not_count_what_is_done(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    study = ["study", *SMALL, "--method", "FedAvg", "--guard", "mixture", "--out", "x"]
    assert main([*study, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 runs to do")
    assert list(tmp_path.iterdir()) == []
    assert main([*study, "--quiet"]) == 0
    assert main([*study, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("0 runs to do")


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_the_shell_completes_commands_options_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _comity; echo "${COMPREPLY[@]}"'

    def complete(*words: str) -> list[str]:
        done = subprocess.run(["bash", "-c", script + ask, "bash", "comity", *words], capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout.split()

    assert complete("re") == ["report", "reproduce"]
    assert complete("run", "--method", "FedRep", "--rule", "Con") == ["ConFREE", "ConFREE-released"]
    assert complete("run", "--rule.al") == ["--rule.alpha"]
    assert complete("study", "--dry") == ["--dry-run"]
    assert complete("table", "x", "--format", "") == ["terminal", "md", "tex", "csv"]
    assert complete("list", "ru") == ["rules"]
    assert complete("inspect", "some-file") == []  # then the shell looks for files
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.endswith(script)


def test_the_report_ends_with_a_link_and_opens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    small = [each for each in SMALL if each not in ("--jobs",)][:-1]
    assert main(["run", *small, "--reference", "none", "--quiet", "--out", "run"]) == 0
    assert main(["report", "run", "-o", "page.html"]) == 0
    link = (tmp_path / "page.html").as_uri()
    assert capsys.readouterr().out.endswith(f"\n{link}\n")
    assert opened == []
    assert main(["report", "run", "-o", "page.html", "--open", "--quiet"]) == 0
    assert opened == [link]
    assert capsys.readouterr().out == ""


def test_a_long_study_tries_a_round_of_each_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(config: Config) -> tuple[float, float, float]:
        if config.method.name == "FedRep":
            raise ZeroDivisionError("mine")
        return 1.0, 0.0, 0.0

    monkeypatch.setattr("comity.studies._study.a_round", fails)
    study = ["study", *SMALL, "--method", "FedAvg,FedRep", "--rounds", "400", "--out", "x"]
    assert main(study) == 2
    out, err = capsys.readouterr()
    assert "a round of FedAvg + Mean: 1.00 s, 400 rounds" in out
    assert err == "comity: FedRep + Mean fails in its first round: ZeroDivisionError: mine\n"
    assert list(tmp_path.iterdir()) == []


def test_finished_runs_of_a_study_leave_no_checkpoint_unless_asked_to(tmp_path: Path) -> None:
    study = ["study", *SMALL, "--method", "FedAvg", "--quiet"]
    for out, kept in (("x", ["local"]), ("y", ["fedavg", "local"])):
        assert main([*study, "--out", out, *(["--keep-checkpoints"] if "fedavg" in kept else [])]) == 0
        checkpoints = (tmp_path / out / RUNS).glob(f"*/{CHECKPOINT}")
        assert sorted(file.parents[1].name.partition("-")[0] for file in checkpoints) == kept
    assert main([*study, "--out", "x", "--guard", "none,mixture"]) == 0  # which needs the models of Local


def test_tuning_says_what_it_chose(capsys: pytest.CaptureFixture[str]) -> None:
    study = ["study", *SMALL, "--method", "FedAvg", "--rule", "MGDA", "--tune", "rule.cap=0.5,1", "--out", "x"]
    assert main(study) == 0
    assert re.search(
        r"  rule\.cap for FedAvg \+ MGDA: [\d.]+ \(\d+\.\d\d % on validation samples, of 2 values\)",
        capsys.readouterr().out,
    )


def test_the_device_is_the_one_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settled(Config()).device == ("cuda" if torch.cuda.is_available() else "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert settled(Config()).device == "cuda"
    assert settled(Config(device="cpu")).device == "cpu"
