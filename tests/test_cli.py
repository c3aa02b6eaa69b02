"""The command line as a person meets it."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from comity.__main__ import main
from comity.cli import RUN_FLAGS, parse
from comity.config import Config
from comity.results import schema
from comity.results.folder import RunFolder

SMALL = [
    *("--data", "synthetic", "--data.samples", "24", "--data.classes", "4", "--model", "mlp", "--model.widths", "16"),
    *("--clients", "4", "--rounds", "3", "--batch-size", "8", "--workers", "1", "--reference", "none"),
]


def comity(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_overview_needs_no_torch() -> None:
    code = "import sys; from comity.__main__ import main; main(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "comity run" in done.stdout


def test_a_run_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = comity(
        capsys, "run", *SMALL, "--method", "ditto", "--method.lam", "0.5", "--reference=auto", "--out", "runs/x"
    )
    assert (code, err) == (0, "")
    assert "Ditto + Mean" in out
    assert "gain over training alone" in out
    assert "Run folder: runs/x" in out
    config = Config.of(RunFolder(tmp_path / "runs" / "x").options())
    assert config.method.options == {"lam": 0.5, "personal_epochs": None}
    # the written configuration is complete, and reads back as itself
    written = yaml.safe_load((tmp_path / "runs" / "x" / "config.yaml").read_text())
    assert Config.of(written) == config
    assert written["method"] == {"name": "Ditto", "lam": 0.5, "personal_epochs": None}


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert comity(capsys, "run", *SMALL, "--quiet") == (0, "", "")
    assert Path("runs/fedavg-mean-synthetic-s0/result.json").exists()


@pytest.mark.parametrize("kind", ["methods", "rules", "models", "data", "partitions"])
def test_lists_have_a_line_for_each(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    code, out, _ = comity(capsys, "list", kind)
    assert code == 0
    assert len(out.splitlines()) > (5 if kind != "rules" else 1)


def test_help_teaches_the_options_of_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = comity(capsys, "run", "--method", "FedProx", "--partition", "pathological", "--help")
    assert code == 0
    assert "--method.mu" in out
    assert "--partition.num_classes_per_partition" in out
    assert "--participation" in out


def test_data_prints_a_table_and_draws_a_picture(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = comity(capsys, "data", "--partition.alpha", "0.3", "--clients", "6")
    assert code == 0
    assert Path("partition-digits.svg").read_text().startswith(("<svg", "<?xml"))
    assert "partition-digits.svg" in out


BAD: list[tuple[list[str], str]] = [
    (["--method", "Dito"], "unknown method 'Dito'; did you mean Ditto?"),
    (["--method", "nowhere.Mine"], "method 'nowhere.Mine' could not be imported: No module named 'nowhere'"),
    (["--method.lamda", "1", "--method", "Ditto"], "unknown option of method Ditto 'lamda'; did you mean lam?"),
    (["--method", "Ditto", "--method.lam", "much"], "method.lam must be a number, got 'much'"),
    (["--method", "Ditto", "--method.lam", "-1"], "method.lam must be at least 0, got -1.0"),
    (["--rule", "Median"], "unknown rule 'Median'"),
    (["--model", "resnet"], "unknown model 'resnet'; did you mean"),
    (["--partition", "dirichlet", "--partition.alpha", "0"], "alpha"),
    (["--clients", "2000", "--data", "digits"], "clients: got 2000; digits has 1797 samples"),
    (["--clients", "0"], "clients must be at least 1, got 0"),
    (["--participation", "0.01"], "participation 0.01 of 4 clients selects nobody; take at least 0.125"),
    (["--participation", "1.5"], "participation must be above 0 and at most 1, got 1.5"),
    (["--rounds", "2.5"], "rounds must be a whole number, got '2.5'"),
    (["--lr", "0"], "lr must be above 0, got 0.0"),
    (["--buffers", "first"], "buffers must be average | local, got 'first'"),
    (["--data", "nothing"], "nothing"),
    (["--rouns", "3"], "unknown option '--rouns'; did you mean --rounds"),
    (["--rounds"], "--rounds needs a value"),
    (["rounds", "3"], "unexpected argument 'rounds'; options start with --"),
    (["--config", "missing.yaml"], "config missing.yaml could not be read: No such file or directory"),
    (["--config", "broken.yaml"], "config broken.yaml is not YAML"),
    (["--data", "torn"], "torn.npz"),
    (["--resume", "--overwrite"], "--resume and --overwrite exclude each other"),
    (["--optimizer", "SDG"], "unknown optimizer 'SDG'"),
    (["--device", "cuba"], "device 'cuba' cannot be used here"),
]


@pytest.mark.parametrize(("arguments", "told"), BAD, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_bad_input_is_one_clear_line_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], told: str
) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    np.savez(tmp_path / "whole.npz", x_train=np.zeros(9))
    (tmp_path / "torn.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:90])
    before = sorted(tmp_path.rglob("*"))
    common = [] if "digits" in arguments or "--partition" in arguments else SMALL
    if arguments[:2] == ["--partition", "dirichlet"]:
        common = ["--data", "digits"]
    code, out, err = comity(capsys, "run", "--data-dir", str(tmp_path), *common, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("comity: ")
    assert told in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_holds_a_run_is_not_touched(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["run", *SMALL, "--out", "x", "--quiet"]
    assert main(arguments) == 0
    before = {p: p.stat().st_mtime_ns for p in Path("x").rglob("*")}
    code, _, err = comity(capsys, *arguments)
    assert (code, "holds a run already" in err) == (2, True)
    code, _, err = comity(capsys, *arguments, "--lr", "0.3", "--resume")
    assert (code, "another configuration (lr differ)" in err) == (2, True)
    assert {p: p.stat().st_mtime_ns for p in Path("x").rglob("*")} == before
    Path("y").mkdir()
    Path("y/thesis.tex").write_text("precious")
    code, _, err = comity(capsys, "run", *SMALL, "--out", "y", "--overwrite")
    assert (code, "is not empty and holds no run" in err) == (2, True)


def test_options_beside_a_file_win_and_another_name_drops_its_options(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("method: {name: Ditto, lam: 2.0}\nlr: 0.3\nrounds: 7\n")
    entries, _ = parse(["--config", str(file), "--lr", "0.1"], RUN_FLAGS)
    config = Config.of(entries)
    assert (config.lr, config.rounds, config.method.options["lam"]) == (0.1, 7, 2.0)
    entries, _ = parse(["--lr", "0.1", "--config", str(file), "--method", "FedProx"], RUN_FLAGS)
    config = Config.of(entries)
    assert (config.lr, config.method.name, config.method.options["mu"]) == (0.1, "FedProx", 0.01)


MINE = '''
from comity.methods import Method

class Mine(Method):
    """Share the head of a house."""

    strength: float = 0.5
    shared = ("head",)
'''


def test_a_method_of_ones_own_is_named_and_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mymod.py").write_text(MINE)
    code, out, err = comity(capsys, "run", *SMALL, "--method", "mymod.Mine", "--method.strength", "0.25")
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
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and len(RunFolder(tmp_path / "x").rounds()) < 3:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    folder = RunFolder(tmp_path / "x")
    stopped = len(folder.rounds())
    assert f"Stopped after round {stopped} of 100000" in out
    assert "comity run --config x/config.yaml --resume" in out
    assert (folder / schema.CHECKPOINT).exists()
    assert not folder.finished


def test_tensorboard_events_are_written() -> None:
    pytest.importorskip("tensorboard")
    assert main(["run", *SMALL, "--out", "x", "--quiet", "--tensorboard"]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator("x/tensorboard")
    events.Reload()
    assert {"train/loss", "eval/L-acc/mean", "eval/L-acc/client_03", "conflict/rate"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("eval/L-acc/mean")] == [1, 2, 3]
