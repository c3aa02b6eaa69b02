"""What comes from outside: files that name code, YAML that is a bomb, disks that are full, pipes that close."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import comity
from comity import ComityError, Config
from comity.__main__ import main
from comity._components import Component
from comity._yaml import MOST_YAML
from comity.config import read_yaml
from comity.studies._grid import MOST_CELLS, callback_names, expand
from comity.studies._tune import candidates
from helpers import TINY, Capture, Options, Patch, rejected
from run_folders import make

MINE = '''
from pathlib import Path
from comity.methods import Method

Path("ran").touch()

class Mine(Method):
    """Share the head of a house."""

    shared = ("head",)
'''


pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def child(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


# Files that run code.


@pytest.mark.parametrize("kind", ["rule", "method", "model", "partition"])
@pytest.mark.parametrize("name", ["os.system", "pathlib.Path", "subprocess.Popen"])
def test_a_component_is_a_class_of_its_kind_before_it_is_called(kind: str, name: str) -> None:
    with pytest.raises(ComityError, match=f"^{kind} '{name}' is not a subclass of "):
        Component.parse(kind, name)


@pytest.mark.parametrize("name", ["os..system", ".os.system", "os.", ".", "os.sys tem", "os/system.x", "a.b-c"])
def test_what_is_no_dotted_path_is_not_imported(name: str) -> None:
    with pytest.raises(ComityError, match="this is not the dotted path of a class"):
        Component.parse("rule", name)


STUDIES: list[dict[str, Any]] = [
    {"rule": {"name": "os.system", "command": "touch ran"}},
    {"rule": "mymod.Mine"},
    {"rule.name": "mymod.Mine"},
    {"method": {"name": "mymod.Mine"}},
    {"model": "mymod.Mine"},
    {"partition": {"name": "mymod.Mine"}},
    {"extension": "mymod.Mine"},
    {"method": "FedAvg,mymod.Mine"},
    {"method": ["FedAvg", {"name": "mymod.Mine"}]},
    {"method": [{"name": "FedAvg", "rule": ["Mean", "mymod.Mine"]}]},
    {"sweep": {"model": ["cnn", "mymod.Mine"]}},
    {"sweep": {"rule": [{"name": "mymod.Mine"}]}},
    {"grid": [{"method": "mymod.Mine"}]},
    {"grid": [{"sweep": {"partition": ["mymod.Mine"]}}]},
    {"desk": {"method": "mymod.Mine"}},
    {"paper": {"grid": [{"rule": "mymod.Mine"}]}},
    {"callbacks": ["mymod.Mine"]},
    {"callbacks": "mymod.Mine"},
]


@pytest.mark.parametrize("command", ["run", "data", "study", "flower new app", "run --help"])
@pytest.mark.parametrize("entries", STUDIES, ids=str)
def test_a_file_cannot_name_code(capsys: Capture, command: str, entries: Options) -> None:
    Path("mymod.py").write_text(MINE)
    Path("c.yaml").write_text(yaml.safe_dump(entries))
    before = sorted(Path.cwd().iterdir())
    said = rejected(capsys, *command.split(), "--config", "c.yaml")
    assert "which is code that does not come with comity" in said
    assert "give --allow-code" in said
    assert sorted(Path.cwd().iterdir()) == before
    with pytest.raises(ComityError, match="allow_code=True"):
        comity.study("c.yaml", out="x")
    with pytest.raises(ComityError, match="allow_code=True"):
        Config.load(Path("c.yaml"))


def test_code_that_is_allowed_runs_and_resumes_only_if_it_is_allowed_again(capsys: Capture) -> None:
    Path("allowed.py").write_text(MINE)
    Path("c.yaml").write_text(yaml.safe_dump(TINY | {"method": "allowed.Mine", "model": "mlp", "out": "x"}))
    assert main(["run", "--config", "c.yaml", "--allow-code", "--quiet"]) == 0
    assert Path("ran").exists()
    assert Config.load(Path("c.yaml"), allow_code=True).method.name == "allowed.Mine"
    Path("x/result.json").unlink()
    capsys.readouterr()
    said = rejected(capsys, "run", "--resume", "--out", "x")
    assert "x names the method 'allowed.Mine'" in said
    assert "--allow-code" in said
    loaded = comity.load("x")
    with pytest.raises(ComityError, match="allow_code"):
        _ = loaded.config
    assert main(["run", "--resume", "--out", "x", "--quiet", "--allow-code"]) == 0
    # a table and a page build nothing, so they need no such permission
    assert main(["table", "x"]) == 0
    assert main(["report", "x", "--quiet"]) == 0


@pytest.mark.slow
def test_a_study_side_by_side_finds_the_users_own_class(capfd: Capture) -> None:
    Path("beside.py").write_text(MINE)
    Path("c.yaml").write_text(yaml.safe_dump(TINY | {"method": "beside.Mine", "jobs": 2, "seeds": 2, "rounds": 1}))
    assert main(["study", "--config", "c.yaml", "--allow-code", "--out", "s", "--quiet"]) == 0
    assert len(list(Path("s/runs").glob("*/result.json"))) == 2
    assert "--allow-code" in rejected(capfd, "study", "--config", "s/study.yaml")  # type: ignore[arg-type]


def test_callbacks_are_classes_of_their_kind() -> None:
    with pytest.raises(ComityError, match=r"callback 'os\.system' is not a subclass of comity\.engine\.Callback"):
        callback_names({"callbacks": ["os.system"]})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries
def test_a_flower_apps_configuration_cannot_name_code() -> None:
    settings = pytest.importorskip("comity.flower._app")
    for entries in ({"rule.name": "os.system"}, {"method.name": "nowhere.Mine"}):
        with pytest.raises(ComityError, match=r"the app's configuration names the .* allow_code=True"):
            settings.config_of(entries)
    with pytest.raises(ComityError, match="is not a subclass of"):
        settings.config_of({"rule.name": "os.system"}, allow_code=True)


SHADOWS = ("torch", "yaml", "numpy", "rich", "safetensors")


@pytest.mark.parametrize(
    "way", [("-m", "comity"), ("-c", "import sys; sys.path[0:1] = []; from comity.__main__ import main; main()")]
)
def test_a_module_among_downloads_is_not_imported(way: tuple[str, ...]) -> None:
    for name in SHADOWS:
        Path(f"{name}.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    Path("base.safetensors").write_bytes(b"")
    done = child(*way, "inspect", "--base", "base.safetensors", "base.safetensors")
    assert "Traceback" not in done.stderr
    assert not Path("ran").exists()


@pytest.mark.slow
def test_neither_is_one_in_a_studys_processes() -> None:
    Path("torch.py").write_text("from pathlib import Path\nPath('ran').touch()\nraise SystemExit\n")
    Path("c.yaml").write_text(yaml.safe_dump(TINY | {"jobs": 2, "seeds": 2, "rounds": 1}))
    done = child("-m", "comity", "study", "--config", "c.yaml", "--out", "s", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert not Path("ran").exists()


# Disks and pipes.


def test_a_pipe_that_closes_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)  # as `head` does when it has had enough
    command = [sys.executable, "-m", "comity", "list", "methods"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_one_line(capsys: Capture, monkeypatch: Patch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "x/rounds.jsonl")

    monkeypatch.setattr("comity.engine.run", full)
    said = rejected(capsys, "run", "--out", "x", "--quiet", code=1)
    assert said == "comity: x/rounds.jsonl: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_on_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "comity", "list", "methods"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "comity: No space left on device\n"


LONG = "x" * 300


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--out", LONG],
        ["run", "--out", "file/x"],
        ["run", "--out", "/proc/x/y"],
        ["study", "--out", LONG],
        ["study", "--out", "/proc/x/y"],
        ["table", LONG],
        ["table", "file"],
        ["report", LONG],
        ["report", "file/x"],
        ["inspect", "--base", LONG, LONG],
        ["aggregate", "--base", LONG, LONG, "-o", "x"],
        ["run", "--config", LONG],
        ["run", "--config", "."],
        ["run", "--data", LONG, "--data-dir", LONG],
        ["run", "--reference", LONG],
        ["flower", "new", LONG],
        ["flower", "new", "/proc/x/y"],
    ],
    ids=lambda each: " ".join(each)[:40],
)
def test_a_bad_path_is_one_line_and_nothing_is_written(capsys: Capture, arguments: list[str]) -> None:
    Path("file").write_text("precious")
    takes_data = arguments[0] in ("run", "study", "flower") and "--data" not in arguments
    small = ["--data", "synthetic", "--data.samples", "24", "--clients", "4"] if takes_data else []
    assert main([*arguments, *small]) in (1, 2)
    _, err = capsys.readouterr()
    assert err.startswith("comity: ")
    assert (err.count("\n"), len(err) < 520) == (1, True)
    assert [path.name for path in Path.cwd().iterdir()] == ["file"]


SIZES: list[dict[str, Any]] = [
    {"data": {"name": "synthetic", "samples": 10**15}},
    {"data": {"name": "synthetic", "size": 10**9}},
    {"data": {"name": "synthetic", "channels": 10**15}},
    {"clients": 10**15},
    {"model": {"name": "mlp", "widths": [10**15]}},
    {"model": {"name": "mlp", "widths": [2**62]}},
    {"method": {"name": "IFCA", "clusters": 10**15}},
    {"out": "a\0b"},
]


@pytest.mark.parametrize("entries", SIZES, ids=str)
def test_a_size_that_no_machine_has_is_one_line(capsys: pytest.CaptureFixture[str], entries: dict[str, Any]) -> None:
    Path("c.yaml").write_text(yaml.safe_dump(TINY | {"out": "x", "reference": "none"} | entries))
    assert "memory than there is" in (said := rejected(capsys, "run", "--config", "c.yaml", "--quiet")) or "NUL" in said
    assert [path.name for path in Path.cwd().rglob("*") if path.is_file()] == ["c.yaml"]


def test_a_page_on_a_full_disk_is_not_the_users_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", ".r.html.1.part")

    make(Path("run"), [0.6, 0.4])
    monkeypatch.setattr("comity.report._writer.write_text", full)
    said = rejected(capsys, "report", "run", "-o", "r.html", "--quiet", code=1)
    assert said == "comity: r.html: could not be written: No space left on device\n"


def test_a_figure_is_whole_or_not_there() -> None:
    figures = pytest.importorskip("comity.report._figures")

    class Half:
        def savefig(self, file: Path, **_: Any) -> None:
            Path(file).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        figures._save(Half(), Path("figure.pdf"))
    assert not list(Path.cwd().iterdir())


# YAML.

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(f'*{old}' for _ in range(9))}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
ODD = {
    LAUGHS: "its aliases stand for more than 100000 values",
    "a: &a [*a]": "its aliases stand for more than 100000 values",
    "a: " + "[" * 100_000: "it has more than 20 levels",
    "a: " + "{b: " * 1000 + "1" + "}" * 1000: "it has more than 20 levels",
    "about: " + "x" * 30_000: "it has a value of more than 20000 characters",
    "lr: 0.1\nlr: 0.2": "lr is there twice",
    "method: {name: Ditto, lam: 1, lam: 2}": "lam is there twice",
    "1: 2": "the name of an option must be text, got 1",
    "yes: 2": "the name of an option must be text, got yes",
    "[1, 2]: 2": "the name of an option must be text",
    "out: 2024-01-01": "2024-01-01 is timestamp; put it in quotes",
    "out: 2024-99-01": "2024-99-01 is timestamp; put it in quotes",
    "a: !!binary aGVsbG8=": "it has the tag tag:yaml.org,2002:binary",
    "a: !!python/object/apply:os.system [touch ran]": "it has the tag tag:yaml.org,2002:python/object/apply:os.system",
    "a: !mine x": "it has the tag !mine",
    "rounds: " + "9" * 5000: "is not YAML: Exceeds the limit",
    "rounds: 0x" + "F" * 9000: "rounds must be a whole number of at most 63 bits, got one of 36000",
    "clients: 99999999999999999999": "clients must be a whole number of at most 63 bits",
    "lr: 1e999": "lr must be a finite number, got 1e999",
    "lr: .inf": "lr must be a finite number, got inf",
    "": "it is empty",
    "- 1": "must hold `option: value` lines",
    "a: 1\n---\nb: 2": "is not YAML",
    "\x00": "is not YAML",
    "#" + "x" * MOST_YAML: "is larger than 1 MB",
    "method: {name: [1]}": "method must be a name or a mapping with `name`",
    "method: " + "y" * 19_000: "unknown method 'yyy",
}


@pytest.mark.parametrize(("text", "said"), ODD.items(), ids=[text[:30].encode().hex() for text in ODD])
def test_an_odd_file_is_one_clear_line(capsys: Capture, text: str, said: str) -> None:
    Path("c.yaml").write_text(text)
    assert said in rejected(capsys, "run", "--config", "c.yaml")
    assert [path.name for path in Path.cwd().iterdir()] == ["c.yaml"]


def test_aliases_that_do_no_harm_are_taken() -> None:
    Path("c.yaml").write_text("desk: &small {lr: 0.1, rounds: 3}\npaper: {<<: *small, rounds: 9}\n")
    assert read_yaml(Path("c.yaml"))["paper"] == {"lr": 0.1, "rounds": 9}


MANY: list[dict[str, Any]] = [
    {"seeds": 10**9},
    {"seeds": "1000000000000"},
    {"sweep": {key: list(range(1, 1001)) for key in ("lr", "batch_size", "rounds")}},
    {"seeds": 200, "method": ["FedAvg", "FedRep"], "rule": ["Mean", "ConFREE"], "sweep": {"lr": [0.1] * 20}},
    {"seeds": 3, "grid": [{"sweep": {"lr": [0.1] * 10_000}}]},
]


@pytest.mark.parametrize("entries", MANY, ids=lambda entries: str(entries)[:30])
def test_too_many_cells_are_refused_before_they_are_made(entries: Options) -> None:
    with pytest.raises(ComityError, match=rf"the study would have \d+ runs; at most {MOST_CELLS}, unless most_cells"):
        expand(entries)


def test_the_limit_of_cells_can_be_raised_and_lowered(capsys: Capture) -> None:
    assert len(expand({"seeds": 3, "most_cells": 3})) == 3
    said = rejected(capsys, "study", "--seeds", "3", "--most-cells", "2", "--out", "x")
    assert "the study would have 3 runs; at most 2" in said


@pytest.mark.parametrize(
    "given", ["nan:1", "0:inf", "0:1:nan", "0:1e9:1e-9", "1:0", "0:1:0", "0:1:-1", ":", "a:b", "0:1:1:1"]
)
def test_a_walk_has_an_end(given: str) -> None:
    with pytest.raises(ComityError, match=r"tune rule\.c must be low:high"):
        candidates("rule.c", given)
