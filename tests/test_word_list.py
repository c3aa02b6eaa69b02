"""The check of the word list finds words in text for people, and leaves code alone."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_words", DOCS / "check_words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_words"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.md", "Fine.\n\nThey cannot be told\napart.\n", [(3, "told")]),
        ("a.md", "A loss\nbeyond\nchance: liars, Strangers.\n", [(2, "beyond chance"), (3, "liars"), (3, "Strangers")]),
        ("a.md", "Two MB a round, once\na client, a round later.\n", [(1, "MB a round"), (1, "once a client")]),
        ("a.md", "```\ntold\n```\n`told` <!-- told --> [x](told.md) untold\n", []),
        ("a.py", 'told = 1  # alike\ndef f() -> str:\n    """Goes on."""\n    return "it\\nwas refused"\n', None),
        ("a.js", 'const told = "is told";\n`${told} alike`;\n', [(1, "told"), (2, "alike")]),
    ],
)
def test_findings(
    check: ModuleType, tmp_path: Path, name: str, content: str, found: list[tuple[int, str]] | None
) -> None:
    (tmp_path / name).write_text(content)
    expected = [(1, "alike"), (3, "Goes on"), (5, "refused")] if found is None else found
    assert sorted((line, words) for line, words, _ in check.findings(tmp_path / name)) == sorted(expected)


def test_no_file_has_a_finding(check: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 0, capsys.readouterr().out
    suffixes = {path.suffix for path in check.files()}
    assert suffixes >= {".py", ".md", ".js", ".html", ".yaml", ".yml", ".tpl", ".ipynb", ".toml", ".cff"}


def test_a_finding_fails(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("Two liars.\nOne is told.\n")
    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.main() == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "page.md:1: 'liars'; better: malicious clients"
    assert second.startswith("page.md:2: 'told'")
    (tmp_path / "page.md").write_text("Two malicious clients.\n")
    assert check.main() == 0
