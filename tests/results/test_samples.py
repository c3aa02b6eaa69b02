"""The scores of single tests in a run folder: written, read back, and rejected where they cannot be true."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import comity
from comity import ComityError
from comity.compare import LoadedStudy
from comity.results import SCHEMA, ClientScores, LoadedRun, RunFolder, schema
from helpers import Options


def scores(tests: int, start: int = 0, **more: Any) -> ClientScores:
    ids = np.arange(start, start + tests)
    return ClientScores(id=ids, label=ids % 2, score=(ids % 3 == 0).astype(float), **more)


def test_they_come_back_by_client(tmp_path: Path) -> None:
    given = {3: scores(4, 10, probability=np.full(4, 0.25)), 0: scores(2, probability=np.zeros(2))}
    RunFolder(tmp_path).add_samples(given)
    found = RunFolder(tmp_path).samples()
    assert found is not None
    assert list(found) == [0, 3]
    for client, each in given.items():
        for name in ("id", "label", "score", "probability"):
            assert getattr(found[client], name).tolist() == getattr(each, name).tolist()
        assert found[client].mixed is None
    assert RunFolder(tmp_path / "elsewhere").samples() is None


def test_a_column_that_some_client_does_not_have_is_left_out(tmp_path: Path) -> None:
    RunFolder(tmp_path).add_samples({0: scores(2, mixed=np.ones(2)), 1: scores(2)})
    found = RunFolder(tmp_path).samples()
    assert found is not None
    assert found[0].mixed is None


GOOD = {
    "client": np.zeros(2, "int32"),
    "id": np.arange(2),
    "label": np.zeros(2, "int32"),
    "score": np.ones(2, "float32"),
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"score": np.ones(3, "float32")}, "samples differ in length"),
        ({"score": np.ones(2, "float64")}, "score has another type"),
        ({"score": np.array([1, np.nan], "float32")}, "score is not finite"),
        ({"label": None}, "samples lack a column"),
        ({"more": np.ones(2)}, "samples have an unknown column"),
        ({"id": np.ones((2, 1), int)}, "samples differ in length"),
    ],
)
def test_what_cannot_be_true_is_rejected(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    columns = {name: column for name, column in (GOOD | change).items() if column is not None}
    save_file(columns, tmp_path / schema.SAMPLES)
    with pytest.raises(ComityError, match=why):
        RunFolder(tmp_path).samples()
    (tmp_path / schema.SAMPLES).write_bytes(b"\xff" * 40)
    with pytest.raises(ComityError, match=f"{schema.SAMPLES} is damaged"):
        RunFolder(tmp_path).samples()


def test_a_run_with_damaged_scores_is_left_out_of_a_study(tiny: Options, tmp_path: Path) -> None:
    assert SCHEMA == 4
    for seed in (0, 1):
        comity.run(**tiny | {"reference": "auto", "rounds": 1, "seed": seed}, out=tmp_path / str(seed))
    (tmp_path / "1" / schema.SAMPLES).write_bytes(b"nothing")
    RunFolder(tmp_path / "2").add_samples({9: scores(3)})  # a client that the run does not have
    shutil.copytree(tmp_path / "0", tmp_path / "2", dirs_exist_ok=True, ignore=shutil.ignore_patterns(schema.SAMPLES))
    study = LoadedStudy(tmp_path)
    assert [str(path.name) for path in study.damaged] == ["1", "2"]
    assert study.cells[-1].clients
    assert LoadedRun(tmp_path / "0").samples is not None
