"""Data that are not images, and federations that come with their clients."""

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import comity
from comity import ComityError
from comity.compare import load as load_run
from comity.config import Config
from comity.data import Dataset, Dirichlet, Federation, federate, fingerprint, load
from comity.engine import RunPlan

SHARED = Path(os.environ.get("COMITY_DATA", ""))
needs_watch = pytest.mark.skipif(not (SHARED / "watch.npz").is_file(), reason="watch.npz is not there")


def heart(seed: int = 0, **options: str) -> Federation:
    return federate(load("heart", **options), seed=seed)


# Samples of any shape.


@pytest.mark.parametrize(
    ("x", "shape"),
    [
        (np.zeros((6, 5)), (5,)),
        (np.zeros((6, 5), np.int64), (5,)),
        (np.zeros((6, 3, 20)), (3, 20)),
        (np.zeros((6, 20, 3)), (3, 20)),  # time first
        (np.zeros((6, 8, 8)), (1, 8, 8)),
        (np.zeros((6, 8, 9), np.uint8), (1, 8, 9)),
        (np.zeros((6, 8, 9, 3)), (3, 8, 9)),
        (np.zeros((6, 3, 8, 9), np.uint8), (3, 8, 9)),  # channels first
    ],
)
def test_shape_of_a_sample(x: np.ndarray, shape: tuple[int, ...]) -> None:
    federation = federate(Dataset("mine", x, np.arange(6) % 2), clients=2)
    assert federation.shape == shape
    assert federation.clients[0].train.x.shape[1:] == shape
    assert federation.clients[0].train.x.dtype == torch.float32


def test_channels_keep_their_values_wherever_they_stand() -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 7)).astype(np.float32)
    one, other = (Dataset("mine", each, [0, 1, 0, 1]) for each in (x, x.transpose(0, 2, 1)))
    assert fingerprint(one) == fingerprint(other)


def test_vectors_are_standardised_by_all_samples_but_the_tests() -> None:
    random = np.random.default_rng(0)
    x = random.normal(50, 9, (200, 3))
    x[:, 2] = random.random(200) < 0.3
    x[::7, 0] = np.nan
    federation = federate(Dataset("mine", x, np.arange(200) % 2), clients=3, val_share=0.2)
    train = torch.cat([split.x for c in federation.clients for split in (c.train, c.val)]).double()
    assert train.mean(0) == pytest.approx(0, abs=1e-6)
    assert float(train[:, 1].std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert len(train[:, 2].unique()) == 2
    assert float(train[:, 2].max() - train[:, 2].min()) == pytest.approx(1)  # a mark is centred alone
    everything = torch.cat([split.x for c in federation.clients for split in (c.train, c.val, c.test)])
    assert int((everything[:, 0] == 0).sum()) == 29  # what is missing stands at the mean
    tested = torch.cat([client.test.x for client in federation.clients]).double()
    assert abs(float(tested[:, 1].mean())) > 1e-3  # nothing was fitted on what is tested


def test_newcomers_play_no_part_in_what_vectors_are_standardised_by() -> None:
    """The last client's features lie far away: the others' samples must not show it, and its own must."""
    client = np.repeat([0, 1, 2], 40)
    x = np.random.default_rng(0).normal(size=(120, 2)) + np.where(client == 2, 1000.0, 5.0)[:, None]
    dataset = Dataset("mine", x, np.arange(120) % 2, columns={"client": client})
    run = comity.run(data=dataset, newcomers=1, rounds=1, reference="none")
    first = torch.cat([each.train.x for each in run.federation.clients]).double()
    assert first.mean(0) == pytest.approx(0, abs=1e-5)
    assert first.std(0, correction=0) == pytest.approx(1, abs=1e-5)
    alone = federate(Dataset("mine", x[:80], dataset.y[:80], columns={"client": client[:80]}))
    for one, other in zip(run.federation.clients, alone.clients, strict=True):
        assert torch.equal(one.train.x, other.train.x)  # as if the newcomer were not there
    assert float(RunPlan(Config(clients=3, newcomers=1), dataset=dataset).everyone.clients[2].train.x.mean()) > 900
    with pytest.raises(ComityError, match="newcomers is 3 of 3 clients"):
        comity.run(data=dataset, newcomers=3, rounds=1, reference="none")


def test_what_training_never_saw_says_nothing() -> None:
    x = np.zeros((40, 2))
    x[:, 0] = np.arange(40)
    test = np.zeros(40)
    test[::4] = 1
    x[::4, 1] = 1  # only test samples have it
    dataset = Dataset("mine", x, np.arange(40) // 2 % 2, columns={"client": np.arange(40) // 20, "test": test})
    federation = federate(dataset)
    assert all((client.test.x[:, 1] == 0).all() for client in federation.clients)


def test_raw_vectors_if_asked_for() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    raw = federate(Dataset("mine", x, np.arange(6) % 2, standardise=False), clients=1)
    assert {tuple(row) for row in raw.clients[0].train.x.tolist()} <= {tuple(row) for row in x.tolist()}
    assert raw.fingerprint != federate(Dataset("mine", x, np.arange(6) % 2), clients=1).fingerprint
    with pytest.raises(ComityError, match="values that are not finite"):
        Dataset("mine", np.full((2, 2), np.nan), [0, 1], standardise=False)
    with pytest.raises(ComityError, match="values that are not finite"):
        Dataset("mine", np.full((2, 2), np.inf), [0, 1])


# heart


def test_heart_is_four_hospitals() -> None:
    federation = heart()
    assert federation.client_names == ("Cleveland", "Hungary", "Long Beach", "Switzerland")
    assert federation.counts.sum(1).tolist() == [303, 294, 200, 123]
    assert federation.counts[3].tolist() == [8, 115]
    assert federation.class_names == ("no", "yes")
    assert federation.shape == (25,)
    assert "each hospital is a client" in federation.notes[0]


def test_no_chest_pain_is_a_category() -> None:
    """It is the largest category and the strongest predictor; as "none" it was read as blank."""
    dataset = load("heart")
    assert isinstance(dataset, Dataset)
    assert dataset.schema is not None
    features = dataset.x[:, [name.startswith("chest_pain = ") for name in dataset.schema.features]]
    assert features.sum(0).tolist() == [496, 174, 204, 46]  # as in the repository, and no cell is blank
    assert dataset.warnings == ()


def gains(**options: str) -> dict[str, float]:
    """Points of accuracy that logistic regression on everyone's patients gains over each hospital's own."""
    rows = []
    for seed in range(10):
        clients = heart(seed, **options).clients
        x, y = (torch.cat([getattr(c.train, part) for c in clients]).numpy() for part in ("x", "y"))
        pooled = LogisticRegression(max_iter=1000).fit(x, y)
        own = [LogisticRegression(max_iter=1000).fit(c.train.x.numpy(), c.train.y.numpy()) for c in clients]
        tests = [(c.test.x.numpy(), c.test.y.numpy()) for c in clients]
        rows.append([100 * (pooled.score(*t) - o.score(*t)) for t, o in zip(tests, own, strict=True)])
    return dict(zip(heart().client_names, np.mean(rows, 0).tolist(), strict=True))


def test_pooling_harms_switzerland_alone() -> None:
    """Its patients are ill nine times in ten. A model that sees marks of missing values knows the hospital by them."""
    gain = gains()
    assert gain.pop("Switzerland") < -12
    assert max(map(abs, gain.values())) < 4
    assert gains(missing="marked")["Switzerland"] > -5
    assert heart(missing="marked").shape == (35,)


@needs_watch
def test_watch_is_twenty_arms() -> None:
    federation = federate(load("watch"))
    assert (len(federation), federation.shape, federation.classes) == (20, (6, 50), 7)
    x = torch.cat([client.train.x for client in federation.clients]).double()
    assert x.mean((0, 2)) == pytest.approx(0, abs=1e-5)
    assert x.std((0, 2), correction=0) == pytest.approx(1, abs=1e-5)


def test_watch_of_an_installed_seglearn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recordings = [np.full((250, 6), k) + np.arange(250)[:, None] / 1000 for k in range(4)]
    content = {
        "X": recordings,
        "y": [0, 1, 0, 1],
        "subject": [1, 1, 2, 2],
        "side": [0, 1, 0, 1],
        "y_labels": ["PEN", "ABD"],
    }
    (tmp_path / "seglearn" / "data").mkdir(parents=True)
    (tmp_path / "seglearn" / "__init__.py").write_text("raise AssertionError('it is not imported')")
    np.save(tmp_path / "seglearn" / "data" / "watch_dataset.npy", np.array(content, dtype=object))
    monkeypatch.syspath_prepend(tmp_path)
    dataset = load("watch", tmp_path / "nothing")
    assert (dataset.shape, dataset.class_names) == ((6, 50), ("PEN", "ABD"))
    assert dataset.columns["client"][::2].tolist() == ["01 left", "01 right", "02 left", "02 right"]
    assert np.allclose(dataset.x[:, 0, 0], [0, 0.1, 1, 1.1, 2, 2.1, 3, 3.1])  # two windows each


# Clients and models by default.


def test_data_say_how_many_clients_and_which_model() -> None:
    config = RunPlan(Config(data="heart")).config
    assert (config.clients, config.model.name) == (4, "logistic")
    config = RunPlan(Config(data="digits")).config
    assert (config.clients, config.model.name) == (20, "cnn")
    assert RunPlan(Config(data="heart", model="mlp", clients=4)).config.model.name == "mlp"
    with pytest.raises(ComityError, match="clients must be 4, got 5: heart comes with 4 clients"):
        comity.run(data="heart", clients=5)


def test_a_run_on_heart_and_its_names(tmp_path: Path) -> None:
    run = comity.run(data="heart", rounds=2, out=tmp_path / "run")
    assert run.config.clients == 4
    with (tmp_path / "run" / "clients.csv").open(encoding="utf-8", newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == [*run.federation.client_names] * 2
    assert len(load_run(tmp_path / "run").clients) == 8  # the names do not disturb who reads its numbers
    partition = load_run(tmp_path / "run").partition
    assert partition is not None
    assert partition.client_names == ["Cleveland", "Hungary", "Long Beach", "Switzerland"]
    assert partition.class_names == ["no", "yes"]
    again = comity.run(Config.load(tmp_path / "run" / "config.yaml"), out=None, reference="none")
    assert again.columns == {name: run.columns[name] for name in again.columns}


@needs_watch
@pytest.mark.parametrize("method", ["FedAvg", "FedRep"])
def test_methods_on_series(method: str) -> None:
    run = comity.run(data="watch", method=method, rounds=2, lr=0.1, reference="none")
    assert run.config.model.name == "cnn1d"
    assert np.mean(run.columns["L-acc"]) > 0.22  # one in seven by chance


def test_domains_are_the_clients_unless_a_partition_is_named() -> None:
    x, domain = np.random.default_rng(0).standard_normal((40, 3)), np.repeat(["a", "b"], 20)
    dataset = Dataset("mine", x, np.arange(40) % 2, columns={"domain": domain})
    assert federate(dataset).client_names == ("a", "b")
    assert federate(dataset, Dirichlet(), clients=3).client_names == ("0", "1", "2")
