"""Figures for a paper."""

from pathlib import Path

import pytest

from comity.commands import command
from comity.compare import LoadedStudy
from run_folders import make

pytest.importorskip("matplotlib", reason="matplotlib, of the extra `report`, is not installed")
from comity.report import _figures


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels take time, and nobody looks at these."""
    monkeypatch.setattr(_figures, "DPI", 40)


def test_every_figure_as_pdf_and_png(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        for rule in ("Mean", "ConFREE", "CALM"):
            options = {"general_every": 1}
            make(tmp_path / f"s/{rule}-{seed}", [0.6, 0.7], alone=[0.5] * 2, rule=rule, seed=seed, options=options)
    folder = tmp_path / "figures"
    assert command("report", [str(tmp_path / "s"), "-o", str(tmp_path / "r.html"), "--figures", str(folder)]) == 0
    names = {"convergence", "some", "clients", "weights"}
    assert {file.name for file in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("pdf", "png")}
    assert f"4 in {folder}" in capsys.readouterr().out
    for file in folder.glob("*.pdf"):
        content = file.read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/Type3" not in content  # letters, not outlines


def test_each_setting_has_its_own_figures_of_what_it_knows(tmp_path: Path) -> None:
    for alpha in (0.1, 1.0):  # neither coefficients nor other clients' tests
        make(tmp_path / str(alpha), [0.6] * 4, rounds=9, done=2, thorough=False, options={"partition.alpha": alpha})
    drawn = {path.name for path in _figures.draw(LoadedStudy(tmp_path), tmp_path / "figures")}
    assert drawn == {f"{name}-alpha-{alpha}.pdf" for name in ("convergence", "clients") for alpha in (0.1, 1.0)}
