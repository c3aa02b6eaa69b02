"""What the README shows of `comity inspect` is what its evidence prints."""

import glob
import shlex
import shutil
from pathlib import Path

import pytest

from comity.__main__ import main
from test_docs import DOCS, blocks


def test_the_example_of_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    *_, script = blocks("evidence/files.md", "sh")
    for line in script.splitlines():
        name, *arguments = shlex.split(line)
        capsys.readouterr()
        if name == "comity":
            paths = [
                path for each in arguments for path in (sorted(glob.glob(each)) if "clients/*" in each else [each])
            ]
            assert main(paths) == 0
        elif name == "mkdir":
            Path(arguments[0]).mkdir()
        else:
            shutil.copy(*arguments)
    printed = {line.rstrip() for line in capsys.readouterr().out.splitlines()}
    (shown,) = [block for block in blocks("README.md", "text") if block.startswith("Conflict")]
    assert set(shown.splitlines()) <= printed


def test_it_stays_short() -> None:
    assert len((DOCS.parent / "README.md").read_text().splitlines()) < 200
