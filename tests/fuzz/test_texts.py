"""Names and texts of others wherever they are shown: no control characters, no markup, no formula, no HTML."""

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
import torch
import yaml
from hypothesis import strategies as st
from rich.text import Text
from safetensors.torch import save_file

from comity.__main__ import main
from comity._words import csv_cell, markdown_cell
from comity.commands._terminal import Terminal
from comity.results import schema
from fuzz.harness import attempt, fuzz
from run_folders import make

ROOM = Path(tempfile.mkdtemp())
STUDY, COPY = ROOM / "study", ROOM / "copy"
BAD = [
    *("\x1b[31mred", "\x1b]0;title\x07", "\x9b2J", "\r over", "\x08\x08", "a\x00b", "\u202egpj.exe", "\u2066x\u2069"),
    *("\u200f", "\ufeff", "\u2028", "[/]", "[bold]", "[link=x]y[/link]", "<script>alert(1)</script>", "<img src=x>"),
    *("</table>", "[a](javascript:b)", "a|b", "=cmd()", "+1+cmd()", "-1+cmd()", "@SUM(A1)", "\tx", "a\nb", "%", "\\x"),
    *("{{7*7}}", "\\input{x}", "$x$", "x" * 300, "é̀", "\U000e0041", "", " "),
]
WORDS = st.lists(st.sampled_from(BAD), min_size=1, max_size=2).map("".join) | st.text(max_size=20)
UNSHOWN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\U000e0000-\U000e0fff]"
)
"""Control and bidirectional characters."""


@pytest.fixture(scope="module", autouse=True)
def study() -> Iterator[None]:
    planned = []
    for method, rule in (("Local", "Mean"), ("FedRep", "Mean"), ("FedRep", "CALM")):
        folder = f"runs/{method}-{rule}"
        make(
            STUDY / folder,
            [0.6, 0.5, 0.8],
            alone=None if method == "Local" else [0.5, 0.6, 0.7],
            method=method,
            rule=rule,
        )
        planned.append({"folder": folder, "title": f"{method} + {rule}", "error": "", "traceback": ""})
    (STUDY / schema.CELLS).write_text(json.dumps(planned))
    yield
    shutil.rmtree(ROOM)


def shown(*arguments: str) -> tuple[object, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = attempt(lambda: main(list(arguments)))
    assert code in (0, 1, 2), code
    for text in (out.getvalue(), err.getvalue()):
        assert (found := UNSHOWN.search(text)) is None, (found, text)
    return code, out.getvalue(), err.getvalue()


def put(file: Path, path: list[Any], text: str) -> None:
    """Put ``text`` in one place of a JSON or YAML file."""
    is_json = file.suffix == ".json"
    content = json.loads(file.read_text()) if is_json else yaml.safe_load(file.read_text())
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = text
    file.write_text(json.dumps(content) if is_json else yaml.safe_dump(content))


PLACES: list[tuple[str, list[Any]]] = [
    ("runs/FedRep-CALM/run.json", ["title"]),
    ("runs/FedRep-CALM/run.json", ["trainer"]),
    ("runs/FedRep-CALM/run.json", ["comity"]),
    ("runs/FedRep-CALM/partition.json", ["name"]),
    ("runs/FedRep-CALM/partition.json", ["partition"]),
    ("runs/FedRep-CALM/config.yaml", ["rule", "name"]),
    ("runs/FedRep-CALM/config.yaml", ["rule", "option"]),
    ("runs/FedRep-CALM/config.yaml", ["method", "name"]),
    ("runs/FedRep-CALM/config.yaml", ["data", "name"]),
    ("runs/FedRep-CALM/config.yaml", ["model", "name"]),
    ("cells.json", [2, "title"]),
    ("cells.json", [2, "error"]),
]


@fuzz(
    "texts in tables and pages",
    st.sampled_from(PLACES),
    WORDS,
    st.sampled_from(["terminal", "md", "tex", "csv", "page"]),
)
def test_texts_of_run_folders(place: tuple[str, list[Any]], text: str, form: str) -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(STUDY, COPY)
    if text.isprintable() or place[0].endswith(".json") or text.encode("utf-8", "replace").decode() == text:
        with contextlib.suppress(UnicodeEncodeError):
            put(COPY / place[0], place[1], text)
    if form == "page":
        shown("report", str(COPY), "-o", str(ROOM / "page.html"))
        return
    for more in ([], ["--by", "client"]):
        code, out, _ = shown("table", str(COPY), "--format", form, *more)
        if form == "md":
            assert not re.search(r"<[A-Za-z/!?]|\]\(", out), out
        if form == "csv" and code == 0:
            for row in csv.reader(io.StringIO(out)):
                assert not [cell for cell in row if re.match(r"[=@\t\r]|[-+](?!\.?\d[\d.e+-]*$)", cell)], row


@fuzz("texts in tables and pages", st.lists(WORDS, min_size=3, max_size=3))
def test_names_of_clients(names: list[str]) -> None:
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(STUDY, COPY)
    with contextlib.suppress(UnicodeEncodeError):
        for folder in (COPY / "runs").iterdir():
            put(folder / "partition.json", ["client_names"], names)  # type: ignore[arg-type]
    for form in ("terminal", "md", "csv"):
        shown("table", str(COPY), "--by", "client", "--format", form)


@fuzz("texts of checkpoints", WORDS, WORDS, st.sampled_from(["file", "tensor", "rule", "folder"]))
def test_names_of_files_and_tensors(one: str, other: str, where: str) -> None:
    room = ROOM / "files"
    shutil.rmtree(room, ignore_errors=True)
    room.mkdir()
    names = [re.sub(r"[/\0]", "_", text.encode("utf-8", "ignore").decode())[:60] or "x" for text in (one, other)]
    if where in ("file", "folder"):
        files = [room / (f"{name}.safetensors" if where == "file" else f"{name}/model.safetensors") for name in names]
        tensor = "w"
    else:
        files, tensor = [room / "a.safetensors", room / "b.safetensors"], names[0]
    for k, file in enumerate(dict.fromkeys([room / "base.safetensors", *files])):
        with contextlib.suppress(OSError):
            file.parent.mkdir(exist_ok=True)
            save_file({tensor: torch.full((4,), float(k)), "v": torch.tensor([1.0, -k])}, file)
    given = ["--base", str(room / "base.safetensors"), *(f"./{file.relative_to(room)}" for file in files)]
    with contextlib.chdir(room):
        shown("inspect", *given)
        rule = ["--rule", one] if where == "rule" and not one.startswith("-") else []
        shown("aggregate", *given, *rule, "-o", "new.safetensors")


def test_a_name_does_not_steer_the_terminal() -> None:
    out = io.StringIO()
    terminal = Terminal(file=out, force_terminal=True, width=80, color_system=None)
    terminal.print(Text("a\x1b[31mb\u202ec\x07"), "\x1b]0;x\x07y", markup=False)
    assert out.getvalue() == "a?[31mb?c ?]0;xy\n"  # rich itself leaves the bell out


def test_cells_of_files() -> None:
    assert [csv_cell(each) for each in ("=1+1", "-cmd", "+x", "@a", "-0.5", "+1e-3", "a=b", -1, None)] == [
        *("'=1+1", "'-cmd", "'+x", "'@a", "-0.5", "+1e-3", "a=b", -1, None),
    ]
    assert markdown_cell("a|<b>[c](d) < 0.05") == "a\\|&lt;b>[c]\\(d) < 0.05"


def test_what_a_client_says_is_no_markup() -> None:
    """An error of a client went through rich as markup: ``[/]`` ended the run."""
    from types import SimpleNamespace

    from comity.commands._progress import Progress
    from comity.results import RoundRecord

    out = io.StringIO()
    progress = Progress(Terminal(file=out, width=200))
    progress.accuracy = ""
    record = RoundRecord(round=1, failed={1: "RuntimeError: [/] [bold]\x1b[2J"})
    progress.on_round(SimpleNamespace(config=SimpleNamespace(last_round=99), done=False), record)  # type: ignore[arg-type]
    assert "client 1 left out: RuntimeError: [/] [bold]?[2J" in out.getvalue()
