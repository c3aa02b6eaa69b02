"""The tutorials do what they say: their files are written, their Python is run, and so are their commands."""

import csv
import re
import shlex
import sys
from pathlib import Path

import pytest

from comity.__main__ import main
from comity.commands import find

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall((DOCS / page).read_text()) if found == language]


@pytest.mark.parametrize(("page", "module"), [("own-method.md", "mymethod"), ("own-rule.md", "myrule")])
def test_a_tutorial(page: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    first, *more = blocks(page, "python")
    assert f"`{module}.py`" in (DOCS / page).read_text()
    Path(f"{module}.py").write_text(first)
    sys.path.append(str(tmp_path))
    for block in more:
        exec(compile(block, page, "exec"), {})
    for line in "".join(blocks(page, "")).splitlines():
        _, *arguments = shlex.split(line, comments=True)
        small = ["--clients", "4", "--model", "mlp", "--rounds", "1", "--quiet"] if "--help" not in arguments else []
        small += ["--jobs", "1"] if arguments[0] == "study" else []
        assert main([*arguments, *small]) == 0, line
    sys.modules.pop(module)


@pytest.mark.parametrize("page", ["index.md", "follow.md", "own-method.md", "own-rule.md"])
def test_every_command_is_one(page: str) -> None:
    lines = [line for line in "".join(blocks(page, "")).splitlines() if line.startswith("comity ")]
    for line in lines:
        _, name, *arguments = shlex.split(line, comments=True)
        find(name).parse(arguments)
    assert lines


def test_the_measured_tables_are_those_of_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_guard

    text = make_guard.PAGE.read_text()
    assert make_guard.page(text, make_guard.read()) == text
    with (DOCS / "results" / "direction-or-length.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    page = (DOCS / "results.md").read_text()
    section = page[page.index("## direction-or-length") : page.index("## confree-table1")]
    assert len(rows) == 26
    assert all(f"{float(row['accuracy']):.2f} ± {float(row['accuracy std']):.2f}" in section for row in rows)
