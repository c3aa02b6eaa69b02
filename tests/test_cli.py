"""The command line as a person meets it."""

import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import comity as package
from comity import ComityError
from comity.__main__ import main
from comity._catalogue import described
from comity.commands import command, find
from comity.config import Config, over
from comity.results import RunFolder, schema
from comity.studies._grid import at_scale, expand
from helpers import TINY

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


def test_an_installation_is_light_and_has_one_version() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    names = {re.split(r"[<>=]", dependency)[0] for dependency in project["project"]["dependencies"]}
    known = {"torch", "numpy", "scipy", "safetensors", "msgspec", "rich", "PyYAML", "Jinja2", "filelock"}
    assert names == known | {"typing_extensions"}
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/comity/__init__.py"
    files = [root / "pyproject.toml", root / "CITATION.cff", root / "README.md", *root.glob("src/comity/**/*.py")]
    assert [file for file in files if package.__version__ in file.read_text()] == [root / "src/comity/__init__.py"]


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert comity(capsys, "run", *SMALL, "--quiet") == (0, "", "")
    assert Path("runs/fedavg-mean-synthetic-s0/result.json").exists()


@pytest.mark.parametrize("kind", ["method", "rule", "model", "data", "partition"])
def test_lists_have_a_line_for_each(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    code, out, _ = comity(capsys, "list", kind if kind == "data" else f"{kind}s")
    assert code == 0
    *lines, empty, note = out.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(described(kind))
    assert (empty, note.startswith(f"comity run --{kind} NAME --help")) == ("", True)


def test_help_teaches_the_options_of_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = comity(capsys, "run", "--method", "FedProx", "--partition", "pathological", "--help")
    assert code == 0
    assert "--method.mu" in out
    assert "--partition.num_classes_per_partition" in out
    assert "--participation" in out


def test_data_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = comity(capsys, "data", "--partition.alpha", "0.3", "--clients", "6")
    assert code == 0
    assert "digits · Dirichlet(alpha=0.3, min_partition_size=10) · seed 0" in out
    assert "1,797 samples" in out


BAD: list[tuple[list[str], str]] = [
    (["--method", "Dito"], "unknown method 'Dito'; did you mean Ditto?"),
    (["--method", "nowhere.Mine"], "method 'nowhere.Mine' could not be imported: No module named 'nowhere'"),
    (["--method.lamda", "1", "--method", "Ditto"], "unknown option of method Ditto 'lamda'; did you mean lam?"),
    (["--method", "Ditto", "--method.lam", "much"], "method.lam must be a number, got 'much'"),
    (["--method", "Ditto", "--method.lam", "-1"], "method.lam must be at least 0, got -1.0"),
    (["--rule", "Median"], "unknown rule 'Median'"),
    (["--model", "resnet"], "unknown model 'resnet'; did you mean"),
    (["--partition", "dirichlet", "--partition.alpha", "0"], "partition.alpha must be above 0, got 0.0"),
    (["--clients", "2000", "--data", "digits"], "clients must be at most 898, got 2000: digits has 1797 samples"),
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
    (["--resume", "--out", "nowhere"], "--resume: nowhere holds no run to go on with"),
    (["--resume"], "--resume: runs/fedavg-mean-synthetic-s0 holds no run to go on with"),
    (["--lr", "-1e-3"], "lr must be above 0, got -0.001"),
    (["--lr", "nan"], "lr must be a finite number, got nan"),
    (["--lr=inf"], "lr must be a finite number, got inf"),
    (["--rounds.fast", "1"], "--rounds has no options of its own, got --rounds.fast"),
    (["--data.samples", "none"], "data.samples must be a whole number, got 'none'"),
    (["--quiet=yes"], "--quiet takes no value, got 'yes'"),
    (["--rule.c", "0.3"], "unknown option of rule Mean 'c'; known: "),
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
    common = [] if {"digits", "nothing", "torn", "--partition"} & set(arguments) else SMALL
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
    assert {p: p.stat().st_mtime_ns for p in Path("x").rglob("*")} == before
    Path("y").mkdir()
    Path("y/thesis.tex").write_text("precious")
    code, _, err = comity(capsys, "run", *SMALL, "--out", "y", "--overwrite")
    assert (code, "is not empty and holds no run" in err) == (2, True)


def test_options_beside_a_file_win_and_another_name_drops_its_options() -> None:
    file = {"method": {"name": "Ditto", "lam": 2.0}, "lr": 0.3, "rounds": 7}
    config = Config.of(over(file, {"lr": "0.1"}))
    assert (config.lr, config.rounds, config.method.options["lam"]) == (0.1, 7, 2.0)
    config = Config.of(over(file, {"lr": "0.1", "method": "FedProx"}))
    assert (config.lr, config.method.name, config.method.options["mu"]) == (0.1, "FedProx", 0.01)
    # the same name in another spelling keeps them, beside those that are given
    config = Config.of(over(file, {"method": "ditto", "method.personal_epochs": "3"}))
    assert config.method.options == {"lam": 2.0, "personal_epochs": 3}
    assert Config.of(over(file, {"method.personal_epochs": 3})) == config


def test_over_keeps_entries_of_a_study_that_are_no_options_of_a_run() -> None:
    assert over({"sweep": {"lr": [1]}, "method": ["Ditto"]}, {"method": "FedRep"}) == {
        "sweep": {"lr": [1]},
        "method": "FedRep",
    }


def test_a_method_of_a_study_may_name_its_rules_wherever_it_stands() -> None:
    method = {"name": "FedAvg", "rule": ["Mean", "ConFREE"]}
    for entries in ({"method": method}, {"grid": [{"method": method}]}, at_scale({"desk": {"method": method}}, "desk")):
        assert [str(cell.rule) for cell in expand(entries)] == ["Mean", "ConFREE"]


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


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[list[str]]], Config | str]:
    """The configuration that ``comity run`` makes of its arguments, or its error; nothing is trained."""
    Path("c.yaml").write_text(FILE)
    received: list[Config] = []

    def stop(config: Config) -> None:
        received.append(config)
        raise ComityError("that is all")

    def configure(options: list[list[str]]) -> Config | str:
        received.clear()
        with pytest.raises(ComityError) as error:
            command("run", [argument for option in options for argument in option])
        return received[0] if received else str(error.value)

    monkeypatch.setattr("comity.commands.run._with_folder", stop)
    return configure


@settings(
    derandomize=True, deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(order=st.permutations(GIVEN), count=st.integers(2, len(GIVEN)))
def test_the_order_of_arguments_does_not_matter(
    configured: Callable[[list[list[str]]], Config | str], order: list[list[str]], count: int
) -> None:
    """Any number of these options, in any order, are what they are in the order above: a configuration or an error."""
    chosen = order[:count]
    assert configured(chosen) == configured([option for option in GIVEN if option in chosen])


def test_what_all_of_them_together_mean(configured: Callable[[list[list[str]]], Config | str]) -> None:
    config = configured(GIVEN[::-1])
    assert isinstance(config, Config), config
    assert (config.method.name, config.method.options["mu"]) == ("FedProx", 0.5)
    assert (config.rule.name, config.rule.options["c"], config.rule.options["scope"]) == ("ConFREE", 0.3, "layer")
    assert config.partition.options == {"alpha": 3.0, "min_partition_size": 10, "self_balancing": True}
    assert (config.rounds, config.lr, config.batch_size, config.save_models) == (7, 1e-3, 4, True)


@pytest.mark.parametrize("name", ["table", "report", "aggregate", "inspect"])
def test_options_may_stand_anywhere_among_arguments(name: str) -> None:
    flag, value = {"table": ("--format", "md"), "inspect": ("--lr", "-1e-3")}.get(name, ("--output", "x.html"))
    parsed = find(name).parse(["a", "b", "c", flag, value])
    assert parsed[flag[2:]] == value
    for order in (
        [flag, value, "a", "b", "c"],
        ["a", flag, value, "b", "c"],
        ["a", f"{flag}={value}", "b", "c"],
        ["a", "b", f"{flag}={value}", "c"],
    ):
        assert find(name).parse(order) == parsed


def test_resume_needs_nothing_but_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
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
        code, out, err = comity(capsys, "run", "--resume", "--out", "x", *differing)
        assert (code, out) == (2, "")
        assert f"x holds a run of another configuration ({names} differ); give the same options" in err
    assert {path: path.stat().st_mtime_ns for path in Path("x").rglob("*")} == before


@pytest.mark.parametrize(
    "call",
    [
        lambda: package.run(metod="FedRep"),
        lambda: package.run(Config(), metod="FedRep"),
        lambda: package.study(metod="FedRep", out="x"),
        lambda: Config.of({"metod": "FedRep"}),
        lambda: Config().with_(metod="FedRep"),
    ],
)
def test_a_misspelt_option_in_python_is_told_the_nearest(call: Callable[[], object]) -> None:
    with pytest.raises(ComityError, match=r"^unknown option 'metod'; did you mean method"):
        call()


def test_dotted_options_in_python() -> None:
    options: dict[str, Any] = TINY | {"method": "Ditto", "method.lam": 0.5}
    assert package.run(**options).config.method.options["lam"] == 0.5
    changed = Config(rule="ConFREE").with_(**{"rule.c": 0.25, "lr": 0.1})
    assert (changed.rule.name, changed.rule.options["c"], changed.lr) == ("ConFREE", 0.25, 0.1)


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
    assert "comity run --resume --out x" in out
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
