"""kNN-Per: its prediction in plain loops, the choice of lam, and that lam 0 is FedAvg."""

import math
from dataclasses import replace

import pytest
import torch
from by_hand import at_work, noisy
from torch import Tensor

from comity import ComityError
from comity.data import Split
from comity.engine import Client, run
from comity.methods import METHODS, KNNPer, Message
from helpers import Options, assert_reproducible, keeps

SHIFTED = {"label_shift": 0.8, "noise": 1.5}


def prepared(tiny: Options, **method: object) -> tuple[Client, KNNPer, Tensor]:
    """A client whose model holds what it uses."""
    client, model, knn = at_work(tiny | {"val_share": 0.25}, {"name": "kNN-Per", **method}, 1)
    assert isinstance(knn, KNNPer)
    theta = noisy(model.read("shared"), 1, 0.2)
    client.model.write(knn.personal(client, Message(theta=theta)))
    return client, knn, theta


def by_hand(client: Client, split: Split, lam: float, k: int, scale: float) -> Tensor:
    net, train = client.model.net.eval(), client.data.train
    rows = []
    with torch.no_grad():
        memory = client.model.features(train.x)
        for x in split.x:
            z = client.model.features(x[None])[0]
            nearest = sorted((float((z - m).norm()), int(y)) for m, y in zip(memory, train.y, strict=True))[:k]
            p = torch.zeros(4)
            for distance, y in nearest:
                p[y] += math.exp(-distance / scale)
            rows.append(lam * p / p.sum() + (1 - lam) * net.get_submodule("head")(z).softmax(0))
    return torch.stack(rows)


@pytest.mark.parametrize(("lam", "k", "scale"), [(0.3, 5, 0.7), (1.0, 3, 2.0), (0.6, 10_000, 1.0)])
def test_the_prediction_written_out(tiny: Options, lam: float, k: int, scale: float) -> None:
    client, _, _ = prepared(tiny, lam=lam, k=k, scale=scale)
    expected = by_hand(client, client.data.test, lam, k, scale)
    torch.testing.assert_close(client.predict(client.data.test).exp(), expected, rtol=1e-4, atol=1e-5)


def test_lam_has_the_lowest_log_loss_on_validation_samples(tiny: Options) -> None:
    chosen = set()
    for scale in (0.1, 1.0, 10.0):
        client, _, _ = prepared(tiny, scale=scale)
        losses = [
            -by_hand(client, client.data.val, i / 10, 10, scale)
            .gather(1, client.data.val.y[:, None]).clamp(min=1e-12).log().mean()
            for i in range(11)
        ]  # fmt: skip
        lam = float(client.model.read("lam"))
        assert lam == pytest.approx(min(range(11), key=lambda i: float(losses[i])) / 10, abs=1e-6)
        chosen.add(lam)
    assert chosen != {0.0}


def test_without_validation_samples_there_is_nothing_to_choose_by(tiny: Options) -> None:
    client, knn, theta = prepared(tiny)
    client.data = replace(client.data, val=Split(client.data.val.x[:0], client.data.val.y[:0]))
    knn.personal(client, Message(theta=theta))
    assert float(client.model.read("lam")) == 0


def test_without_the_memory_it_is_fedavg(tiny: Options) -> None:
    options = tiny | {"trainer": "autograd", "val_share": 0.2, "data": tiny["data"] | SHIFTED}
    plain, none, mixed = (
        run(**options, method=method) for method in ("FedAvg", {"name": "kNN-Per", "lam": 0.0}, "kNN-Per")
    )
    for done in (none, mixed):  # nothing but FedAvg's model is trained
        assert torch.equal(done.server.theta, plain.server.theta)
        assert done.columns["global-acc"] == plain.columns["global-acc"]
    assert none.columns["loss"] == plain.columns["loss"]
    assert mixed.columns["loss"] != plain.columns["loss"]


def test_the_memory_is_bounded_and_stays_with_the_client(tiny: Options) -> None:
    client, _, _ = prepared(tiny, places=5, lam=0.5)
    labels = client.model.read("labels").view(5, 4)
    assert labels.sum(1).tolist() == [1.0] * 5
    rows = {tuple(row.tolist()) for row in client.model.features(client.data.train.x)}
    assert {tuple(row.tolist()) for row in client.model.read("memory").view(5, -1)} <= rows
    done = run(**tiny, method="kNN-Per")
    size = done.site.model().size("body", "head")
    assert done.server.theta.numel() == size
    assert done.result.bytes_per_round.up == 5 * 4 * size
    assert not any(keep["personal"].any() for keep in keeps(done).values())


def test_it_is_reproducible(tiny: Options, tmp_path) -> None:  # type: ignore[no-untyped-def]
    options = tiny | {"participation": 0.6, "model": "resnet4", "lr": 0.01, "method": {"name": "kNN-Per", "places": 8}}
    assert_reproducible(options, tmp_path / "run")


def test_a_head_that_is_not_linear_is_rejected() -> None:
    net = torch.nn.Module()
    net.body, net.head = torch.nn.Flatten(), torch.nn.Sequential(torch.nn.Linear(4, 3))
    with pytest.raises(ComityError, match="kNN-Per needs a model whose head is one linear layer"):
        METHODS["kNN-Per"]().build(net)
