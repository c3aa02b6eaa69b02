"""Models that a run leaves: they predict what was measured, and hold nothing that they should not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from comity import ComityError, load_model, run
from comity.data import Federation
from comity.deploy import ClientModel
from comity.engine import Extension, Judgement, Run
from comity.methods import METHODS
from comity.metrics import DECIDING, scores
from helpers import Options

HEART: Options = {"data": "heart", "rounds": 2, "workers": 1, "control": "none"}


def models_of(done: Run) -> dict[int, ClientModel]:
    assert done.folder is not None
    return {int(path.name[:3]): load_model(path) for path in sorted((done.folder / "models").iterdir())}


def score(model: ClientModel, federation: Federation, cid: int, metric: str) -> float:
    """The metric of a client's tests by a model that was loaded. The samples are what the network sees."""
    test = federation.clients[cid].test
    with torch.no_grad():
        each = [torch.log_softmax(net(test.x), 1).double().exp().numpy() for net in model.artefact.nets]
    with np.errstate(divide="ignore"):
        predicted = np.log(np.tensordot(model.weights, each, 1))
    shares = model.expected_shares
    found = scores(metric, predicted, test.y.numpy(), () if shares is None else shares)
    assert found is not None
    return DECIDING[metric].gain(float(found.mean()), 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_of_every_method_is_the_one_that_was_judged(tiny: Options, tmp_path: Path, method: str) -> None:
    done = run(**tiny | {"rounds": 1, "clients": 3}, method=method, out=tmp_path / "x")
    models = models_of(done)
    assert list(models) == [0, 1, 2]
    for cid, model in models.items():
        found = score(model, done.federation, cid, "accuracy")
        assert found == done.columns["L-acc"][cid] == model.artefact.info.performance.score  # type: ignore[union-attr]
        assert [each.name for each in model.artefact.info.experts] == ["own" if method == "Local" else "federated"]


@pytest.mark.parametrize(
    ("options", "experts"),
    [
        ({"method": "FedAvg"}, ["own", "federated"]),
        ({"method": "FedAvg", "guard": "mixture"}, ["own", "federated"]),
        ({"method": "Ditto", "guard": "mixture", "metric": "log-loss"}, ["own", "federated", "common"]),
        ({"method": "FedAvg", "guard": "certified", "metric": "accuracy"}, ["own", "federated"]),
    ],
    ids=str,
)
def test_what_a_client_uses_is_saved_with_its_weights(options: Options, experts: list[str], tmp_path: Path) -> None:
    done = run(**HEART | options, out=tmp_path / "x")
    for cid, model in models_of(done).items():
        info = model.artefact.info
        assert [each.name for each in info.experts] == experts
        if "guard" in options:
            kept = done.server.link.states()[cid].engine["guard"]
            assert model.weights.tolist() == kept.tolist()
        measured = info.performance
        assert measured is not None
        assert score(model, done.federation, cid, info.metric) == pytest.approx(measured.score, abs=1e-6)
        assert done.result.transfer is not None
        assert measured.gain == done.result.transfer.clients[cid]
        assert info.provenance.fingerprint == done.federation.fingerprint


def test_rows_of_the_table_give_the_predictions_of_the_run(tmp_path: Path) -> None:
    """From the file itself: text, blanks and all, without anything else of the run."""
    import csv
    from importlib.resources import files

    done = run(**HEART, guard="mixture", out=tmp_path / "x")
    text = files("comity.data.sources").joinpath("heart.csv").read_text()
    table = list(csv.DictReader(text.splitlines()))
    for cid, model in models_of(done).items():
        test = done.federation.clients[cid]
        rows = [table[index] for index in test.test_ids]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        right = model.predict(columns) == np.array([row["disease"] for row in rows])
        classes = [np.mean(right[np.array([row["disease"] == name for row in rows])]) for name in ("no", "yes")]
        assert np.mean(classes) == pytest.approx(done.result.clients["balanced-acc"][cid], abs=1e-9)


def test_no_row_of_data_is_in_a_model(tmp_path: Path) -> None:
    done = run(**HEART, out=tmp_path / "x")
    for cid, model in models_of(done).items():
        raw = model.artefact.tensors["check.x"].numpy()
        seen = model.artefact.preprocessing(raw).numpy()
        data = done.federation.clients[cid]
        held = np.concatenate([split.x.numpy() for split in (data.train, data.val, data.test)])
        assert np.abs(seen[:, None] - held[None]).max(2).min() > 0.1
        assert {name.split(".")[0] for name in model.artefact.tensors} == {"own", "federated", "scaler", "check"}


class Net(torch.nn.Module):
    """A network of the user's own, with a table that is no part of its state."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Flatten(), torch.nn.Linear(64, classes)
        self.register_buffer("twos", torch.full((classes,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)) * self.twos


def test_a_network_of_ones_own_needs_permission(tiny: Options, tmp_path: Path) -> None:
    done = run(**tiny | {"model": f"{__name__}:Net"}, out=tmp_path / "x")
    path = tmp_path / "x" / "models" / "000"
    with pytest.raises(ComityError, match="which is code that does not come with comity"):
        load_model(path)
    assert score(load_model(path, allow_code=True), done.federation, 0, "accuracy") == done.columns["L-acc"][0]


@pytest.mark.parametrize("more", [{"newcomers": 2, "newcomer_rounds": 0}, {"masked": True}], ids=str)
def test_newcomers_have_no_models_and_masked_clients_do(tiny: Options, tmp_path: Path, more: Options) -> None:
    done = run(**tiny, **more, out=tmp_path / "x")
    assert list(models_of(done)) == list(range(len(done.federation)))


def test_another_run_in_the_folder_removes_models(tiny: Options, tmp_path: Path) -> None:
    run(**tiny, out=tmp_path / "x")
    run(**tiny, out=tmp_path / "x", save_models=False, overwrite=True)
    assert not (tmp_path / "x" / "models").exists()


class Halving(Extension):
    """Changes predictions in a way of its own."""

    def judge(self, judgement: Judgement) -> None:
        judgement.mix(judgement.predict, judgement.predicted / 2)


@pytest.mark.parametrize(
    "options",
    [
        {"partition": "rotated", "data": "digits"},
        {"model": torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4))},
        {"extension": Halving},
    ],
    ids=["transform", "object", "extension"],
)
def test_what_cannot_be_saved_does_not_end_a_run(tiny: Options, tmp_path: Path, options: Any) -> None:
    done = run(**tiny | options, out=tmp_path / "x")
    assert done.done
    assert not (tmp_path / "x" / "models").exists()
    assert any("No model" in extension.note for extension in done.site.extensions)


def test_a_folder_says_which_models_it_holds(tiny: Options, tmp_path: Path) -> None:
    run(**tiny, out=tmp_path / "x")
    with pytest.raises(ComityError, match="holds the models of 5 clients; name one"):
        load_model(tmp_path / "x")
    assert load_model(tmp_path / "x" / "models" / "000" / "model.json").weights.tolist() == [1.0]
    with pytest.raises(ComityError, match="holds no model"):
        load_model(tmp_path)
