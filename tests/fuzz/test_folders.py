"""Run folders whose files were damaged: resuming them gives the undamaged run's bits or one clear line."""

import contextlib
import io
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import strategies as st
from safetensors import safe_open

from comity import ComityError, Config
from comity.__main__ import main
from comity.commands import command
from comity.engine import Run, run, write_tensors
from comity.engine._checkpoint import CHECKSUM
from comity.results import LOGS, RunFolder, schema
from fuzz.harness import attempt, check_error, damaged, fuzz
from helpers import TINY, assert_same

FILES = [schema.INFO, schema.CONFIG, schema.PARTITION, *LOGS, schema.RESULT, schema.CHECKPOINT]
OPTIONS = TINY | {"clients": 3, "rounds": 4, "method": "Ditto", "participation": 0.7, "checkpoint_every": 2}


@cache
def folders() -> tuple[Path, Run]:
    """A finished run and one that was stopped after three of its four rounds, and what both come to."""
    room = Path(tempfile.mkdtemp())
    done = run(**OPTIONS, out=room / "finished")
    rounds = iter([False, False, False, True])
    run(**OPTIONS, out=room / "half", stop=lambda: next(rounds))
    assert not RunFolder(room / "half").finished
    return room, done


def resumed(folder: Path) -> Run:
    """As ``comity run --resume --out folder``, with the configuration that is there."""
    return run(Config.of(RunFolder(folder).options()).with_(out=folder), resume=True)


def check(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    outcome = attempt(lambda: resumed(folder))
    _, whole = folders()
    if isinstance(outcome, ComityError):
        after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        assert {path for path in before if path.name in LOGS} <= set(after), "a refused folder loses nothing"
        assert not (folder / schema.LOCK).exists()
        return
    if outcome.config.key != whole.config.key:  # another configuration, all through: that is another run
        raise AssertionError("went on with another configuration")
    assert_same(outcome, whole)
    assert outcome.result.last == whole.result.last
    assert outcome.result.best == whole.result.best
    assert outcome.result.conflict_rate == whole.result.conflict_rate
    for name in (schema.CLIENTS, schema.WEIGHTS, schema.COSINES):
        assert (folder / name).read_bytes() == (folders()[0] / "finished" / name).read_bytes()


def of(which: str) -> Path:
    """A fresh copy."""
    room, _ = folders()
    copy = room / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(room / which, copy)
    return copy


@st.composite
def damages(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """Which folder, which of its files, and what stands there instead."""
    which = draw(st.sampled_from(["finished", "half"]))
    name = draw(st.sampled_from([name for name in FILES if (folders()[0] / which / name).is_file()]))
    content = (folders()[0] / which / name).read_bytes()
    return which, name, draw(st.one_of(damaged(content), damaged(content), st.binary(max_size=200)))


@fuzz("run folders", damages())
def test_a_damaged_file(damage: tuple[str, str, bytes]) -> None:
    which, name, content = damage
    folder = of(which)
    (folder / name).write_bytes(content)
    check(folder)


@fuzz("run folders", st.sampled_from(["finished", "half"]), st.lists(st.sampled_from(FILES), min_size=1, max_size=3))
def test_missing_files(which: str, names: list[str]) -> None:
    folder = of(which)
    for name in names:
        (folder / name).unlink(missing_ok=True)
    check(folder)


@fuzz("run folders", st.sampled_from(["finished", "half"]), st.sampled_from(FILES), st.sampled_from(FILES))
def test_files_that_were_exchanged(which: str, one: str, other: str) -> None:
    """Between the two folders where it is the same file, within one where they are two."""
    folder = of(which)
    room, _ = folders()
    source = room / ("half" if which == "finished" else "finished") if one == other else room / which
    for to, of_ in ((one, other), (other, one)):
        if (source / of_).is_file():
            (folder / to).write_bytes((source / of_).read_bytes())
    check(folder)


@fuzz("run folders", damages())
def test_on_the_command_line(damage: tuple[str, str, bytes]) -> None:
    which, name, content = damage
    folder = of(which)
    (folder / name).write_bytes(content)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = attempt(lambda: command("run", ["--resume", "--quiet", "--out", str(folder)]))
    assert isinstance(code, ComityError) or code == 0


# Links, pipes and folders where files should be.

PLACES = [*FILES, schema.SAMPLES, schema.LOCK, schema.MODELS, str(Path(schema.CHECKPOINT).parent), ".local"]
PLACES += [f"{path.parent}/.{path.name}.{os.getpid()}.part" for path in map(Path, (*FILES, schema.SAMPLES))]


@fuzz(
    "run folders with links",
    st.sampled_from(["finished", "half", "empty"]),
    st.lists(st.sampled_from(PLACES), min_size=1, max_size=2, unique=True),
    st.sampled_from(["file", "folder", "nowhere", "itself", "pipe", "device"]),
    st.sampled_from(["--resume", "--overwrite", "--quiet"]),
)
def test_nothing_is_written_through_a_link(which: str, places: list[str], to: str, how: str) -> None:
    folder = of("finished" if which == "empty" else which)
    if which == "empty":
        shutil.rmtree(folder)
        folder.mkdir()
    victim = folder.parent / "victim"
    shutil.rmtree(victim, ignore_errors=True)
    (victim / "folder").mkdir(parents=True)
    for name in ("file", "folder/file"):
        (victim / name).write_text("precious")
    for place in places:
        path = folder / place
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        if not path.parent.is_dir() or path.parent.is_symlink():
            continue
        if to == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"itself": path, "device": Path("/dev/full")}.get(to, victim / to))
    arguments = ["run", how, "--out", str(folder), *([] if how == "--quiet" else ["--quiet"])]
    if how != "--resume":
        (victim.parent / "options.yaml").write_text(yaml.safe_dump(OPTIONS))
        arguments += ["--config", str(victim.parent / "options.yaml")]
    code = said(*arguments)
    assert code in (0, 1, 2)
    assert sorted(str(path.relative_to(victim)) for path in victim.rglob("*")) == ["file", "folder", "folder/file"]
    assert {(victim / name).read_text() for name in ("file", "folder/file")} == {"precious"}


def said(*arguments: str) -> int:
    """The exit code of a command; what goes to standard error is at most one short line."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        code = attempt(lambda: main(list(arguments)))
    assert isinstance(code, int)
    assert err.getvalue().count("\n") == (code != 0), err.getvalue()
    if code:
        check_error(err.getvalue().rstrip("\n"))
    return code


def test_a_cache_that_is_a_link_is_not_cleared(tmp_path: Path) -> None:
    """Of a folder that was not a run of Local, everything was removed."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    options = TINY | {"rounds": 1, "method": "FedAvg", "control": "none", "reference": "auto"}
    run(**options, out=tmp_path / "run")
    (cache,) = (tmp_path / schema.LOCAL_CACHE).iterdir()
    shutil.rmtree(cache)
    cache.symlink_to(precious)
    with pytest.raises(ComityError, match="is a link, pipe or device"):
        run(**options, out=tmp_path / "run", overwrite=True)
    assert (precious / "file").exists()


# Checkpoints that are whole, and no run wrote them.

ABOUT = ["round", "key", "traffic", "marks", "place"]
TEXTS = [
    *("", "0", "-1", "1", "99", "9" * 5000, "null", "[1, 2]", "{}", "[" * 5000, "[-5]", "\x1b[31m"),
    *('{"fit": [1, -2]}', '{"fit": [1e999, 1]}', '{"rounds.jsonl": [5, 5]}', '{"../x": [1, 2]}', '{"mine": [1, 2]}'),
]
KEYS = [
    *("client/99", "client/-1", "client/00", "client/x", "client/", "client/0/method", "client/0/method/", "else", ""),
    *("client/0/mine/x", "client/0/secret/x", "client/0/engine/counters", "client/1/engine/fitted", "server"),
    *("server/rule/x", "server/step//velocity", "server/rule//calls", "server/rule/group/row/0", "server/store/"),
    *("server/store/x", "client/0/method/\x1b[2J"),
]
TENSORS = [
    torch.zeros(0),
    torch.zeros(3),
    torch.tensor(1.5),
    torch.full((2, 2), torch.nan),
    torch.zeros(5, dtype=torch.int64),
]


@fuzz(
    "forged checkpoints",
    st.lists(
        st.tuples(st.sampled_from(["drop", "put", "add", "about"]), st.integers(0, 99), st.integers(0, 99)), max_size=3
    ),
)
def test_a_forged_checkpoint(plan: list[tuple[str, int, int]]) -> None:
    folder = of("half")
    file = folder / schema.CHECKPOINT
    with safe_open(file, framework="pt") as opened:
        about = {name: value for name, value in opened.metadata().items() if name != CHECKSUM}
        tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    for what, where, which in plan:
        name, tensor = sorted(tensors)[where % len(tensors)], TENSORS[which % len(TENSORS)]
        if what == "drop":
            del tensors[name]
        elif what == "about":
            about[ABOUT[where % len(ABOUT)]] = TEXTS[which % len(TEXTS)]
        else:
            tensors[name if what == "put" else KEYS[where % len(KEYS)]] = tensor
        if not tensors:
            break
    write_tensors(file, tensors, about)
    assert said("run", "--resume", "--quiet", "--out", str(folder)) in (0, 2)
