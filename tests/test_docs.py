"""The tutorials do what they say: their files are written, their Python is run, and so are their commands."""

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


def test_every_measured_number_is_that_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_results

    for path in make_results.PAGES:
        text = path.read_text()
        assert "<!-- = " in text
        assert make_results.page(text) == text, f"{path.name}: make results"
        emptied = re.sub(r"( -->).*?(<!-- \. -->)", r"\1\2", text, flags=re.DOTALL)
        assert emptied != text
        assert make_results.page(emptied) == text


def test_what_is_called_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    import claims

    from comity.results import Difference

    sure, chance, contrary = Difference(2.0, 0.5, 8), Difference(0.5, 0.5, 8), Difference(-2.0, 0.5, 8)
    for compared, word in (
        ({"a": sure}, "confirmed"),
        ({"a": sure, "b": chance}, "in part"),
        ({"a": sure, "b": contrary}, "mixed"),
        ({"a": chance}, "not seen"),
        ({"a": chance, "b": contrary}, "contradicted"),
    ):
        assert claims.Claim("x", "y", lambda compared=compared: compared).outcome()[0] == word
    assert claims.Claim("x", "y", lambda: {"a": Difference(0.2, 0.5, 8)}, same=True).outcome()[0] == "confirmed"
    assert claims.Claim("x", "y", lambda: {"a": sure}, same=True).outcome()[0] == "contradicted"
    assert claims.Claim("x", "y", lambda: {"a": Difference(0.2, 1.5, 8)}, same=True).outcome()[0] == "not seen"
