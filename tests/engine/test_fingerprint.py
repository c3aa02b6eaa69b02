"""Data that were replaced under the same name are other data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comity import ComityError
from comity.compare import LoadedStudy
from comity.data import Dataset, Split, federate, fingerprint
from comity.engine import run
from comity.results import RunFolder
from comity.studies import study
from helpers import Options, assert_same, contents, interrupted

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.integers(0, 255, (60, 4, 4), dtype=np.uint8), np.arange(60) % 3


def write(path: Path, x: np.ndarray[Any, Any] = X, y: np.ndarray[Any, Any] = Y) -> str:
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    return str(path)


def replaced() -> np.ndarray[Any, Any]:
    other = X.copy()
    other[17, 2, 3] ^= 1  # one bit
    return other


@pytest.fixture
def options(tmp_path: Path) -> Options:
    model = {"name": "mlp", "widths": (8,)}
    data = write(tmp_path / "mine.npz")
    return {"data": data, "model": model, "clients": 3, "rounds": 2, "partition": "iid", "workers": 1}


def test_every_sample_label_and_column_counts() -> None:
    owner = np.arange(60) % 4
    columns = {"client": owner}
    whole = Dataset("a", X, Y, 3, columns)
    assert fingerprint(Dataset("another name", X.copy(), Y.copy(), 3, columns)) == fingerprint(whole)
    others = [
        Dataset("a", replaced(), Y, 3, columns),
        Dataset("a", X[::-1], Y, 3, columns),
        Dataset("a", X.transpose(0, 2, 1), Y, 3, columns),
        Dataset("a", X.reshape(60, 2, 8), Y, 3, columns),
        Dataset("a", X, Y[::-1], 3, columns),
        Dataset("a", X, Y, 4, columns),
        Dataset("a", X, Y, 3, {"client": owner[::-1]}),
        Dataset("a", X, Y, 3, {"site": owner}),
        Dataset("a", X[:-1], Y[:-1], 3, {"client": owner[:-1]}),
    ]
    found = [fingerprint(each) for each in (whole, *others)]
    assert len(set(found)) == len(found)


def test_a_federation_of_ones_own_has_the_fingerprint_of_its_clients() -> None:
    made = federate(Dataset("a", X, Y), clients=3)
    assert made.fingerprint == fingerprint(Dataset("a", X, Y))
    by_hand = replace(made)
    client = made.clients[1]
    y = client.test.y.clone()
    y[0] = (y[0] + 1) % 3
    other = replace(made, clients=(made.clients[0], replace(client, test=Split(client.test.x, y)), made.clients[2]))
    assert by_hand.fingerprint == replace(made).fingerprint
    assert by_hand.fingerprint != other.fingerprint


def test_a_run_of_replaced_data_is_not_resumed(options: Options, tmp_path: Path) -> None:
    options |= {"reference": "none", "out": tmp_path / "x"}
    interrupted(**options)
    before = contents(tmp_path / "x")
    write(tmp_path / "mine.npz", replaced())
    with pytest.raises(ComityError, match=r"holds a run of other data: .*mine.npz is not what it was"):
        run(**options, resume=True)
    assert contents(tmp_path / "x") == before
    write(tmp_path / "mine.npz")
    assert_same(run(**options, resume=True), run(**(options | {"out": None})))


def test_local_is_trained_anew_when_the_data_were_replaced(options: Options, tmp_path: Path) -> None:
    options |= {"control": "none"}
    first = run(**options, out=tmp_path / "a")
    (old,) = (tmp_path / ".local").iterdir()
    write(tmp_path / "mine.npz", 255 - X)
    second = run(**options, out=tmp_path / "b")
    assert len(list((tmp_path / ".local").iterdir())) == 2
    alone = run(**options, method="Local")
    assert second.local["L-acc"] == alone.columns["L-acc"]
    locals_of = {"a": first.local["L-acc"], "b": second.local["L-acc"]}
    assert first.local != second.local
    with pytest.raises(ComityError, match="was trained on other data than this run's mine"):
        run(**options, out=tmp_path / "c", reference=str(old))
    assert not (tmp_path / "c").exists()
    for name in ("a", "b"):  # each beside the Local of its own data
        (cell,) = (cell for cell in LoadedStudy(tmp_path / name).cells if not cell.local)
        assert list(cell.local_values(cell.finished[0]).values()) == pytest.approx(locals_of[name])


def test_a_study_whose_data_were_replaced_is_refused_or_done_again(options: Options, tmp_path: Path) -> None:
    entries = options | {"method": ["FedAvg"], "rule": ["Mean"], "seeds": 1, "jobs": 1, "out": str(tmp_path / "s")}
    study(**entries)
    folder = RunFolder(tmp_path / "s" / "runs" / "fedavg-mean-s0")
    before = folder.info().data
    study(**entries)
    write(tmp_path / "mine.npz", 255 - X)
    with pytest.raises(ComityError, match="holds a run of other data"):
        study(**entries)
    assert folder.info().data == before
    study(**entries, overwrite=True)
    assert folder.info().data not in ("", before)
    assert folder.result().clients == run(**options).columns
