"""Figures for a paper."""

from pathlib import Path

import pytest

from comity._errors import ComityError
from comity.commands import command
from comity.report._figures import STYLE, draw, need
from comity.results import LoadedStudy
from run_folders import make

pytest.importorskip("matplotlib", reason="matplotlib, of the extra `report`, is not installed")


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels take time, and nobody looks at these."""
    monkeypatch.setitem(STYLE, "savefig.dpi", 40)


def test_every_figure_as_pdf_and_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        for rule, c in (("Mean", None), ("ConFREE", 0.1), ("ConFREE", 0.9), ("Auto", None), ("CALM", None)):
            options = {"rule.c": c} if c else {}
            name = f"{rule}{c}-{seed}"
            make(tmp_path / "s" / name, [0.6, 0.7, 0.4], alone=[0.5] * 3, rule=rule, seed=seed, options=options)
    folder = tmp_path / "figures"
    assert command("report", [str(tmp_path / "s"), "-o", str(tmp_path / "r.html"), "--figures", str(folder)]) == 0
    names = {file.stem for file in folder.glob("*.pdf")}
    assert names == {
        *("convergence", "loss", "clients", "gain", "partition", "cosines", "against", "conflict", "layers"),
        *("weights", "choice", "tradeoff", "cost", "sweep-rule.c"),
    }
    assert {file.stem for file in folder.glob("*.png")} == names
    assert f"{len(names)} in {folder}" in capsys.readouterr().out
    for file in folder.glob("*.pdf"):
        content = file.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/Type3" not in content  # letters, not outlines


def test_a_run_that_knows_little_has_few_figures(tmp_path: Path) -> None:
    make(tmp_path / "a", [0.6] * 4, rounds=9, done=2, thorough=False)
    drawn = {path.stem for path in draw(LoadedStudy(tmp_path), tmp_path / "figures")}
    assert {"convergence", "clients"} <= drawn
    assert not {"gain", "partition", "weights", "cosines"} & drawn


def test_others_tests_over_rounds_where_they_were_tried_more_than_once(tmp_path: Path) -> None:
    for name, every in (("a", 1), ("b", 0)):
        make(tmp_path / name / "run", [0.6] * 4, thorough=False, options={"general_every": every})
    drawn = {
        name: {path.stem for path in draw(LoadedStudy(tmp_path / name), tmp_path / f"figures-{name}")} for name in "ab"
    }
    assert drawn["a"] - drawn["b"] == {"some"}


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ComityError, match="is a file"):
        need(tmp_path / "x")
