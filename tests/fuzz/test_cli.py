"""Generated argument lists for every command: exit code 0, or one clear line; no training is done."""

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from comity import engine
from comity.__main__ import main
from comity._catalogue import KINDS, described
from comity.commands import COMMANDS, find
from comity.commands._command import _flags
from comity.compare import Verdict
from comity.studies._study import _Study
from fuzz.harness import attempt, check_error, fuzz
from run_folders import make

# Flower's libraries take seconds to import and warn of each other; what `comity flower` reads is what `run` reads.
# `supernode` passes its options on to Flower.
# `bench` takes the options of `study` and tries a round of each configuration on real data.
TRIED = [command for command in COMMANDS if command not in ("flower", "supernode", "bench")]
ROOM = Path(tempfile.mkdtemp())
WORDS = [
    *("", "-", "--", "x", "0", "-1", "1", "3", "2.5", "1e999", "nan", "inf", "-inf", "0,1", "1,,2", ",", "none"),
    *("true", "9" * 30, "9" * 5000, "x" * 300, "x" * 5000, "a=b", "rule.c=0.1,0.5", "rule.c=", "=", "rule.c=0:1:1e-12"),
    *("rule.c=nan:1", "rule.c=0.1:0.9", "lr=nan", "seed=1", "clients=1;2", "[/]", "\x1b[31m", "\udcff", "é", "a\nb"),
    *(".", "..", "/", "runs", "runs/one", "file", "c.yaml", "bad.yaml", "/proc/x/y", "out.html", "file/x.html"),
    *("Ditto", "ConFREE", "Ditto,FedRep", "cnn", "digits", "demo", "os.system", "nowhere.Mine", "a..b", "md", "csv"),
    *("terminal", "products", "2GB", "0GB", "nanGB", "-5", "methods", "examples", "L-acc", "G-acc", "Mean"),
]


@pytest.fixture(scope="module", autouse=True)
def no_training() -> Iterator[None]:
    """In a folder with a run and a few files; what would take long is not done."""
    before = Path.cwd()
    os.chdir(ROOM)
    make(Path("runs/one"), [0.6, 0.5, 0.8], alone=[0.5, 0.6, 0.7])
    make(Path("runs/two"), [0.7, 0.5, 0.8], alone=[0.5, 0.6, 0.7], rule="ConFREE")
    Path("file").write_text("precious")
    Path("c.yaml").write_text("method: Ditto\nlr: 0.3\n")
    Path("bad.yaml").write_text("method: [1\n")
    with pytest.MonkeyPatch.context() as patch:

        def trained(*_: Any, **__: Any) -> Any:
            return SimpleNamespace(done=False, server=SimpleNamespace(round=0))

        patch.setattr(engine, "run", trained)
        nothing = {"runs": [], "failed": {}, "table": lambda: "", "verdict": Verdict("Undecided", "No run.", None, [])}
        patch.setattr(_Study, "run", lambda _: SimpleNamespace(**nothing))
        yield
    os.chdir(before)


@st.composite
def arguments(draw: st.DrawFn) -> list[str]:
    """A command with some of its options and arguments, right or wrong."""
    name = draw(st.sampled_from([*TRIED, "", "rum", "--version", "--help"]))
    flags = ["--help", "-h", "--zzz", "-x", "--rule.c", "--method.lam", "--rule.zzz", "--data.samples"]
    flags += ["--.", "--rounds.x", "--track", "--extension.x"]
    if name in TRIED:
        command = find(name)
        flags += [flag for option in (*command.options, *command.run_options.values()) for flag in _flags(option)] * 3
    made = [name] if name else []
    values = st.sampled_from(WORDS) | st.text(max_size=6).filter(lambda text: "\0" not in text)
    names = st.sampled_from([each for kind in KINDS for each in described(kind)])
    for _ in range(draw(st.integers(0, 5))):
        flag = draw(st.sampled_from(flags))
        how = draw(st.sampled_from(["flag", "value", "value", "equals", "word"]))
        value = draw(values | names)
        made += {"flag": [flag], "value": [flag, value], "equals": [f"{flag}={value}"], "word": [value]}[how]
    return [*made, "--data", "synthetic", "--data.samples", "24"] if name == "data" else made


@fuzz("arguments of commands", arguments())
def test_arguments(made: list[str]) -> None:
    if made[:1] == ["report"]:
        made = [
            each for each in made if not each.startswith(("--watch", "--figures"))
        ]  # the one waits, the other draws
    files = sorted(path for path in ROOM.rglob("*") if path.is_file())
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = attempt(lambda: main(made))
    lines = err.getvalue().splitlines()
    assert code in (0, 1, 2, 130), (code, made)
    assert len(lines) == (code in (1, 2)), (code, lines, made)
    for line in lines:
        assert line.startswith("comity: ")
        check_error(line)
    after = sorted(path for path in ROOM.rglob("*") if path.is_file())
    if code in (1, 2):
        assert after == files, made
    for path in set(after) - set(files):  # a page or a picture that was asked for
        path.unlink()
