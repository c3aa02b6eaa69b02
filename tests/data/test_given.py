"""Python first class: classes, objects, arrays and data frames in place of names."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import comity
from comity import ComityError
from comity.data import IID, Dataset, federate
from comity.methods import Ditto, FedAvg
from comity.rules import ConFREE

RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((90, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
CLIENT = np.repeat(["a", "b", "c"], 30)
QUICK = {"rounds": 2, "reference": "none"}


class Mine(FedAvg):
    """A method of a notebook, which cannot be imported by its name."""

    extra: float = 0.5


class Frame:
    """What comity uses of a data frame."""

    def __init__(self, **columns: object) -> None:
        self._columns, self.columns = columns, list(columns)

    def __getitem__(self, name: str) -> object:
        return self._columns[name]


def test_arrays() -> None:
    run = comity.run(data=(X, Y, CLIENT), **QUICK)
    assert run.federation.client_names == ("a", "b", "c")
    assert (run.config.clients, run.config.model.name, str(run.config.data)) == (3, "logistic", "given")
    same = comity.run(federation=federate(Dataset("given", X, Y, columns={"client": CLIENT})), **QUICK)
    assert same.columns == run.columns
    assert comity.run(data=Dataset("given", X, Y, columns={"client": CLIENT}), **QUICK).columns == run.columns
    assert comity.run(data=same.federation, **QUICK).columns == run.columns
    assert len(comity.run(data=(torch.tensor(X), Y), clients=4, partition=IID(), **QUICK).federation) == 4


@pytest.mark.parametrize("kind", [Frame, dict])
def test_frames(kind: type) -> None:
    frame = kind(age=X[:, 0], dose=X[:, 1], ward=CLIENT, ill=np.where(Y, "yes", "no"))
    run = comity.run(data=frame, **QUICK, **{"data.target": "ill", "data.client": "ward"})
    assert run.federation.shape == (2,)
    assert run.federation.class_names == ("no", "yes")
    assert "each ward is a client" in run.federation.notes[0]


def test_methods_rules_and_models_as_classes_and_objects() -> None:
    data = {"data": (X, Y, CLIENT), **QUICK}
    for method in (Mine(extra=0.25), {"name": Mine, "extra": 0.25}):
        run = comity.run(method=method, **data)
        assert type(run.site.method) is Mine
        assert run.site.method.extra == 0.25
    dotted = comity.run(method=Mine, **data, **{"method.extra": 2})
    assert isinstance(dotted.site.method, Mine)
    assert dotted.site.method.extra == 2
    by_name = comity.run(method={"name": "Ditto", "lam": 0.3}, rule={"name": "ConFREE", "c": 0.3}, **data)
    by_object = comity.run(method=Ditto(lam=0.3), rule=ConFREE(c=0.3), **data)
    assert by_object.columns == by_name.columns
    assert by_object.config.key == by_name.config.key
    assert by_object.title == "Ditto + ConFREE"
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    before = [parameter.clone() for parameter in net.parameters()]
    one, other = (comity.run(model=net, **data) for _ in range(2))
    assert one.columns == other.columns
    assert all(torch.equal(new, old) for new, old in zip(net.parameters(), before, strict=True))  # a copy was trained


def test_local_of_a_class_is_not_cached(tmp_path: Path) -> None:
    comity.run(data="heart", model=nn.Linear(25, 2), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / ".local").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"metod": "FedAvg"}, "unknown option 'metod'; did you mean method"),
        ({"resum": True}, "unknown option 'resum'; did you mean resume"),
        ({"method": 3}, "method must be a name or a mapping with `name`, a subclass of comity.methods.Method or an"),
        ({"method": nn.Linear}, "method must be a name or a mapping"),
        ({"rule": Ditto()}, "rule must be a name or a mapping"),
        ({"method": {"name": Mine, "xtra": 1}}, "unknown option 'xtra' of method .*Mine; did you mean extra"),
        (
            {"data": 7},
            r"data must be a name, \(x, y\), \(x, y, client\), a data frame, a Dataset or a Federation, got 7",
        ),
        ({"data": (X, Y[:5])}, "got 90 samples and 5 labels"),
        ({"data": (X, Y, CLIENT[:4])}, "column 'client' has 4 values for 90 samples"),
        ({"data": (X, Y, CLIENT), "clients": 5}, "clients must be 3, got 5"),
        ({"data": {"a": [1, 2], "b": [1]}}, "columns of different lengths"),
    ],
)
def test_what_is_refused(options: dict[str, object], line: str) -> None:
    with pytest.raises(ComityError, match=line):
        comity.run(**options)


def test_what_there_is() -> None:
    for name in dir(comity):
        assert getattr(comity, name) is not None
    assert {"run", "study", "Method", "Rule", "Dataset", "federate", "methods", "guard"} <= set(dir(comity))
