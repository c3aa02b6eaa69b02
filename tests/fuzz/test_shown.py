"""Finished studies whose files are damaged: table and page leave bad runs out and say so, and never show nonsense."""

import contextlib
import csv
import io
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from comity.__main__ import main
from comity._errors import ComityError
from comity.compare import LoadedStudy
from comity.results import schema
from fuzz.harness import attempt, check_error, damaged, fuzz
from run_folders import make

ROOM = Path(tempfile.mkdtemp())
STUDY, COPY = ROOM / "study", ROOM / "copy"


@pytest.fixture(scope="module", autouse=True)
def study() -> Iterator[None]:
    planned = []
    for method, rule in (("Local", "Mean"), ("FedRep", "Mean"), ("FedRep", "CALM")):
        alone = None if method == "Local" else [0.5, 0.6, 0.7]
        folder = f"runs/{method}-{rule}"
        make(STUDY / folder, [0.6, 0.5, 0.8], alone=alone, method=method, rule=rule)
        planned.append({"folder": folder, "title": f"{method} + {rule}", "error": "", "traceback": ""})
    make(STUDY / "runs/going-on", [0.6, 0.5, 0.8], rule="ConFREE", done=3)
    planned.append({"folder": "runs/going-on", "title": "FedRep + ConFREE", "error": "", "traceback": ""})
    (STUDY / schema.CELLS).write_text(json.dumps(planned))
    yield
    shutil.rmtree(ROOM)


NAMES = [
    *(f"runs/FedRep-CALM/{name}" for name in ("run.json", "config.yaml", "result.json", "rounds.jsonl")),
    *(f"runs/FedRep-CALM/{name}" for name in ("weights.jsonl", "cosines.jsonl", "partition.json", "clients.csv")),
    *(f"runs/going-on/{name}" for name in ("rounds.jsonl", "clients.csv", "config.yaml", "run.json")),
    "runs/Local-Mean/result.json",
    schema.CELLS,
]
ODD: list[Any] = [
    None,
    -1,
    0,
    2,
    1e9,
    10**30,
    -0.5,
    1.5,
    "x",
    "",
    [],
    {},
    True,
    [[]],
    "\x1b[31m",
    "<script>",
    "[/]",
    "é" * 500,
]
TEXT = [
    "[" * 200_000,
    '{"a":' * 50_000,
    "",
    "null",
    "[]",
    "{}",
    "NaN",
    "\x00",
    "1" * 9000,
    "a: &a [*a]\n",
    "Infinity\n",
]


@st.composite
def wrong(draw: st.DrawFn, content: str) -> bytes:
    """A file with bytes damaged, with something else in it, or with another value somewhere in its JSON."""
    how = draw(st.sampled_from(["bytes", "bytes", "value", "value", "value", "number", "lines", "other"]))
    if how == "other":
        return draw(st.sampled_from(TEXT)).encode()
    if how == "lines":
        lines = content.splitlines(keepends=True)
        return "".join(draw(st.permutations(lines[:20])) + draw(st.sampled_from([[], lines[:2]]))).encode()
    if how == "number":
        numbers = list(re.finditer(r"-?\d+(\.\d+)?", content))
        if numbers:
            match = numbers[draw(st.integers(0, 10**6)) % len(numbers)]
            other = draw(st.sampled_from(["-1", "0", "7", "1e400", "nan", "inf", "0.123", "1e18", "9" * 5000, "x", ""]))
            return (content[: match.start()] + other + content[match.end() :]).encode()
    if how == "value":
        lines = content.splitlines() if content.startswith('{"round"') else [content]
        at = draw(st.integers(0, len(lines) - 1))
        with contextlib.suppress(ValueError):
            lines[at] = json.dumps(_put(draw, json.loads(lines[at])))
            return ("\n".join(lines) + "\n").encode()
    return draw(damaged(content.encode()))


def _put(draw: st.DrawFn, value: Any) -> Any:
    """``value`` with something odd in one of its places."""
    if draw(st.integers(0, 3)) == 0 or not isinstance(value, (dict, list)) or not value:
        return draw(st.sampled_from(ODD))
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], *([_put(draw, value[at])] if draw(st.booleans()) else []), *value[at + 1 :]]
    key = draw(st.sampled_from(sorted(value)))
    kept = {name: inner for name, inner in value.items() if name != key}
    return kept if draw(st.integers(0, 4)) == 0 else kept | {key: _put(draw, value[key])}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, bytes | None]:
    """The new content of one to three files; ``None`` for one that is gone."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return {
        name: None if draw(st.integers(0, 9)) == 0 else draw(wrong((STUDY / name).read_text(encoding="utf-8")))
        for name in names
    }


def copied(files: dict[str, bytes | None]) -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(STUDY, COPY)
    for name, content in files.items():
        (COPY / name).unlink()
        if content is not None:
            (COPY / name).write_bytes(content)


def called(*arguments: str) -> tuple[int, str]:
    """Exit code and output; what goes to standard error is short lines without a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = attempt(lambda: main(list(arguments)))
    assert code in (0, 2), (code, err.getvalue())
    lines = err.getvalue().splitlines()
    assert bool(lines) >= (code == 2)
    for line in lines:
        assert line.startswith("comity: ")
        check_error(line)
    return int(code), out.getvalue()


@fuzz("damaged run folders in a table", cases())
def test_a_table_of_damaged_folders(files: dict[str, bytes | None]) -> None:
    copied(files)
    code, out = called("table", str(COPY), "--format", "csv")
    if code == 0:
        rows = list(csv.DictReader(io.StringIO(out)))
        assert rows
        for row in rows:
            assert 0 <= float(row["accuracy"]) <= 100
    called("table", str(COPY))


@fuzz("damaged run folders in a page", cases())
def test_a_page_of_damaged_folders(files: dict[str, bytes | None]) -> None:
    copied(files)
    page = ROOM / "page.html"
    page.unlink(missing_ok=True)
    code, _ = called("report", str(COPY), "-o", str(page), "--quiet")
    assert page.exists() == (code == 0)
    assert "<script>alert" not in (page.read_text() if code == 0 else "")


def test_a_damaged_run_is_named_and_the_rest_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    copied({"runs/FedRep-CALM/result.json": b"{"})
    for command in (["table"], ["report", "-o", str(ROOM / "page.html")]):
        assert main([*command, str(COPY)]) == 0
        out, err = capsys.readouterr()
        assert "FedRep" in out or command[0] == "report"
        assert err.count("\n") == 1
        assert "comity: left out: " in err
        assert "FedRep-CALM/result.json is not JSON" in err
    assert "FedRep-CALM/result.json is not JSON" in (ROOM / "page.html").read_text()
    loaded = LoadedStudy(COPY)
    assert [path.name for path in loaded.damaged] == ["FedRep-CALM"]
    assert "A damaged run is not in the table" in loaded.table().markdown()


def test_where_nothing_is_left_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    copied(
        {
            f"{folder}/run.json": b"{"
            for folder in ("runs/FedRep-CALM", "runs/FedRep-Mean", "runs/Local-Mean", "runs/going-on")
        }
    )
    for command in (["table"], ["report", "-o", str(ROOM / "none.html")]):
        assert main([*command, str(COPY)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
    assert not (ROOM / "none.html").exists()


WRONG: list[tuple[str, str, str, str]] = [
    ("result.json", '"mean": 0.633', '"mean": 0.933', "the mean of L-acc is not that of its clients"),
    ("result.json", "0.6,", "1.6,", "L-acc has a value outside its range"),
    ("result.json", '"state": "', '"state": "not ', "Invalid enum value"),
    ("config.yaml", "clients: 3", "clients: 2", "result.json refers to unknown client ids"),
    ("config.yaml", "rounds: 5", "rounds: 4", "the last round is 5 of 4"),
    ("config.yaml", "seed: 0", "seed: x", "seed should be a whole number"),
]


@pytest.mark.parametrize(("name", "old", "new", "said"), WRONG)
def test_a_number_that_cannot_be_true_is_not_shown(name: str, old: str, new: str, said: str) -> None:
    file = f"runs/FedRep-CALM/{name}"
    text = (STUDY / file).read_text()
    assert old in text
    copied({file: text.replace(old, new).encode()})
    (what,) = LoadedStudy(COPY).damaged.values()
    assert said in what


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("rounds.jsonl", '"round": 3', '"round": 2', "round 2 comes after round 2"),
        ("rounds.jsonl", '"cohort": [0, 1, 2]', '"cohort": [0, 1, 9]', "refers to unknown client ids"),
        ("weights.jsonl", '"ids": [0, 1, 2]', '"ids": [0, 1]', "has not a number for each client"),
        ("cosines.jsonl", "[1.0, ", "[9.0, ", "Expected `float` <= 1.001 - at `$.cosines"),
    ],
)
def test_nor_on_the_page(capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, said: str) -> None:
    file = f"runs/FedRep-CALM/{name}"
    text = (STUDY / file).read_text()
    assert old in text
    copied({file: text.replace(old, new).encode()})
    assert main(["report", str(COPY), "-o", str(ROOM / "page.html"), "--quiet"]) == 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("content", ["[" * 200_000, "a: " + "{b: " * 50_000])
def test_a_deep_configuration_does_not_end_the_process(content: str) -> None:
    copied({"runs/FedRep-CALM/config.yaml": content.encode()})
    (what,) = LoadedStudy(COPY).damaged.values()
    assert "it has more than 20 levels" in what


def test_a_study_does_not_lead_elsewhere() -> None:
    cells = [{"folder": "../study/runs/FedRep-CALM", "title": "x", "error": "", "traceback": ""}]
    copied({schema.CELLS: json.dumps(cells).encode()})
    with pytest.raises(ComityError, match="which is not in the study"):
        LoadedStudy(COPY)


def test_a_file_without_end_is_not_read() -> None:
    copied({})
    with (COPY / "runs/FedRep-CALM/rounds.jsonl").open("wb") as file:
        file.truncate(10**10)  # takes no room on the disk
    outcome = attempt(lambda: LoadedStudy(COPY, thorough=True), memory=250e6)
    assert isinstance(outcome, LoadedStudy)
    assert "has a line of more than" in next(iter(outcome.damaged.values()))
