"""A model in use learns from labels that arrive later."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import comity
from comity import ComityError, load_model
from comity.__main__ import main
from comity.data.sources.embedded import HEART
from comity.guard import FEEDBACK


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "r"
    comity.run(data=str(HEART), rounds=3, guard="mixture", control="none", metric="log-loss", out=out)
    return next((out / "models").glob("000*"))


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "model"))


def rows(count: int = 40) -> tuple[dict[str, list[str]], list[str]]:
    header, *lines = HEART.read_text().splitlines()[: count + 1]
    columns = dict(zip(header.split(","), zip(*(line.split(",") for line in lines), strict=True), strict=True))
    return {name: list(cells) for name, cells in columns.items()}, list(columns["disease"])


def test_weights_follow_the_labels_and_survive_a_restart(folder: Path) -> None:
    table, labels = rows()
    model = load_model(folder)
    own, federated = model.expert_probabilities(table)[:2]
    truth = np.array([list(model.classes_).index(each) for each in labels])
    better = np.log(own[range(40), truth]).sum() > np.log(federated[range(40), truth]).sum()
    before = model.weights.copy()
    report = model.feedback(table, labels)
    assert report.samples == 40
    assert (model.weights[0] > before[0]) == better
    assert np.array_equal(load_model(folder).weights, model.weights)
    assert np.allclose(load_model(folder).predict_proba(table), np.tensordot(model.weights, [own, federated], 1))


def test_one_call_or_two_are_the_same(folder: Path, trained: Path, tmp_path: Path) -> None:
    table, labels = rows()
    load_model(folder).feedback(table, labels)
    other = Path(shutil.copytree(trained, tmp_path / "other"))
    for part in (slice(0, 7), slice(7, 40)):
        load_model(other).feedback({name: cells[part] for name, cells in table.items()}, labels[part])
    (rest, numbers), (same, near) = split_floats(folder / FEEDBACK), split_floats(other / FEEDBACK)
    assert rest == same
    assert numbers == pytest.approx(near, rel=1e-5, abs=1e-7)  # the last bits of a forward pass depend on the batch


def split_floats(path: Path) -> tuple[Any, list[float]]:
    """A JSON file with null instead of floats, and the floats."""
    floats: list[float] = []
    return json.loads(path.read_text(), parse_float=lambda text: floats.append(float(text))), floats


def test_an_alarm_returns_to_the_own_model(folder: Path) -> None:
    table, _ = rows()
    model = load_model(folder)
    own, federated = model.expert_probabilities(table)[:2]
    # labels that the own model predicts best, again and again
    chosen = int(np.argmax(np.abs(own - federated).max(1)))
    label = model.classes_[int(np.argmax((own - federated)[chosen]))]
    row = {name: [cells[chosen]] * 400 for name, cells in table.items()}
    report = model.feedback(row, [label] * 400)
    assert report.alarm or model.weights[0] > 0.99, "what follows the labels soon has nothing left to alarm about"


def test_the_command_reports_and_draws(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = HEART.read_text().splitlines()[:31]
    lines[3] = lines[3].rpartition(",")[0] + ","  # a row without a label
    lines[4] = lines[4].replace("male", "unknown", 1)
    (tmp_path / "labelled.csv").write_text("\n".join(lines))
    assert main(["feedback", str(folder), str(tmp_path / "labelled.csv")]) == 0
    said = capsys.readouterr()
    assert "28 labels so far" in said.out
    assert "row 3 is left out: no disease" in said.err
    assert "row 4 is left out: column sex: unknown value unknown" in said.err
    assert "<svg" in (folder / "feedback.html").read_text()


@pytest.mark.parametrize("content", ["{}", "[", '{"format": 2}', '{"metric": "accuracy", "weights": [[0.5, 0.6]]}'])
def test_a_damaged_state_is_one_line(folder: Path, content: str) -> None:
    (folder / FEEDBACK).write_text(content)
    with pytest.raises(ComityError, match=FEEDBACK):
        load_model(folder)


def test_what_cannot_be_learnt_from(folder: Path) -> None:
    table, labels = rows(5)
    with pytest.raises(ComityError, match="unknown class maybe; known: no, yes"):
        load_model(folder).feedback(table, [*labels[:4], "maybe"])
    assert not (folder / FEEDBACK).exists()
