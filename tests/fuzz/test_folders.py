"""Run folders whose files were damaged: resuming them gives the undamaged run's bits or one clear line."""

import contextlib
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from comity import ComityError, Config
from comity.commands import command
from comity.engine import Run, run
from comity.results import LOGS, RunFolder, schema
from fuzz.harness import attempt, damaged, fuzz
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
