"""``comity join``: from one table to a verdict, a page and a model per client."""

from pathlib import Path

import numpy as np
import pytest

from comity import ComityError
from comity.__main__ import main
from comity.studies import join

QUICK = {"rounds": 2, "model": "logistic", "seeds": 1}


def table(folder: Path, flipped: bool = True) -> Path:
    """Three hospitals of 60 rows; the last one codes its outcome the other way round if ``flipped``."""
    random = np.random.default_rng(0)
    rows = ["age,pressure,ward,outcome"]
    for ward in ("east", "north", "west"):
        for age, pressure in random.normal(size=(60, 2)):
            ill = (age + pressure > 0) != (flipped and ward == "west")
            rows.append(f"{60 + 10 * age:.1f},{120 + 20 * pressure:.0f},{ward},{'ill' if ill else 'well'}")
    path = folder / "patients.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_command_ends_with_a_page_models_and_the_next_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(table(tmp_path)), "--target", "outcome", "--client", "ward", "--rounds", "2", "--seeds", "3"]
    assert main(["join", *arguments]) == 0
    said = capsys.readouterr().out
    assert Path("joined/report.html").stat().st_size > 10_000
    assert len(list(Path("joined/models").iterdir())) == 3
    for words in ("the target is outcome; each ward is a client", "chosen by validation", "comity predict joined"):
        assert words in said
    assert main(["join", *arguments, "--quiet"]) == 0, "a finished study is not done again"


def test_the_learning_rate_is_the_best_in_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comity.studies._join.LEARNING_RATES", [1e-9, 0.3])
    named = {"data.target": "outcome", "data.client": "ward"}
    done = join(table(tmp_path), out=tmp_path / "out", metric="log-loss", **QUICK, **named)
    assert done.learning_rate == 0.3
    monkeypatch.setattr("comity.studies._join.LEARNING_RATES", [0.1])
    assert join(table(tmp_path), out=tmp_path / "out", metric="log-loss", **QUICK, **named).learning_rate == 0.3


def test_a_named_method_replaces_the_comparison(tmp_path: Path) -> None:
    named = {"data.target": "outcome", "data.client": "ward"}
    done = join(table(tmp_path), out=tmp_path / "out", lr=0.1, method="FedRep", rounds=2, seeds=1, **named)
    methods = {cell.method: str(cell.setting.options["model"]) for cell in done.study.cells}
    assert methods == {"Local": "mlp", "FedRep": "mlp"}, "FedRep needs a body, so the default model is an mlp"


def test_models_are_those_that_the_verdict_recommends(tmp_path: Path) -> None:
    named = {"data.target": "outcome", "data.client": "ward"}
    done = join(table(tmp_path), out=tmp_path / "out", lr=0.3, **QUICK | {"rounds": 5}, **named)
    assert done.models_of == (done.study.verdict.cell.label if "Join" in done.study.verdict.title else "local training")


def test_a_missing_table_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ComityError, match="no such file"):
        join(tmp_path / "none.csv", out=tmp_path / "out", rounds=1)
    assert not (tmp_path / "out").exists()
