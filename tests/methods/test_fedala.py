"""FedALA: the weights' step, their bounds, when they learn, and that weights of 1 are FedAvg."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from by_hand import at_work, loss_gradient, noisy
from torch import Tensor

from comity import Config
from comity.data import Split
from comity.engine import Client, run
from comity.methods import Message
from helpers import client_of, keeps, site_of, used


def count_passes(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the data of each pass that is made from now on."""
    passes: list[int] = []
    original = client.batches

    def batches(epochs: int = 1, split: Split | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        passes.append(len(split or client.data.train))
        return original(epochs, split)

    monkeypatch.setattr(client, "batches", batches)
    return passes


@pytest.mark.parametrize("top", [1, 2])
def test_weights_descend_the_loss_of_the_mixed_model(tiny: dict[str, Any], top: int) -> None:
    """W ← clip(W − rate · ∇L ⊙ (θ_g − θ_i), 0, 1), written out; below the top the model is the received one."""
    client, model, method = at_work(tiny, {"name": "FedALA", "share": 1.0, "rate": 3.0, "top": top}, 1)
    parts = ("head",) if top == 1 else ("body", "head")
    size = model.size(*parts)
    theirs = noisy(model.read(), 0)
    mine, W = noisy(theirs[-size:], 1), torch.linspace(0, 1, size)
    client.keep |= {"own": mine, "weights": W.clone()}

    chosen = torch.randperm(len(client.data.train), generator=client.random("ALA"))
    data = Split(client.data.train.x[chosen], client.data.train.y[chosen])
    for x, y in client.batches(1, data):
        model.write(torch.cat([theirs[:-size], mine + (theirs[-size:] - mine) * W]))
        W = (W - 3.0 * loss_gradient(model, x, y, *parts) * (theirs[-size:] - mine)).clamp(0, 1)
    model.write(torch.cat([theirs[:-size], mine + (theirs[-size:] - mine) * W]))

    method.load(client, Message(theta=theirs))
    torch.testing.assert_close(client.keep["weights"], W, rtol=0, atol=1e-5)
    torch.testing.assert_close(client.model.read(), model.read(), rtol=0, atol=1e-5)
    assert torch.equal(client.model.read()[:-size], theirs[:-size])


def test_nothing_is_adapted_before_the_client_has_a_model_of_its_own(tiny: dict[str, Any]) -> None:
    """Neither in round 1 nor when a client is first sampled, or judged, in a later round."""
    site = site_of(Config(**tiny, method="FedALA"))
    client, theta = client_of(site, 2, round=7), noisy(site.model().read(), 0)
    assert torch.equal(site.method.personal(client, Message(theta=theta)), theta)
    reply = site.method.fit(client, Message(theta=theta))
    assert "weights" not in client.keep
    plain = client_of(site_of(Config(**tiny)), 2, round=7)
    plain.model.write(theta)
    plain.sgd()
    assert torch.equal(reply.theta, plain.model.read())
    assert torch.equal(client.keep["own"], plain.model.read("head"))
    assert not torch.equal(site.method.personal(client, Message(theta=theta)), theta)


def test_the_first_learning_goes_on_until_it_converges(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def passes(threshold: float) -> tuple[int, int]:
        client, _, method = at_work(tiny, {"name": "FedALA", "threshold": threshold, "share": 0.5}, 0)
        theta = client.model.read()
        client.keep["own"] = noisy(theta[-client.model.size("head") :], 0)
        made = count_passes(client, monkeypatch)
        method.load(client, Message(theta=theta))
        first = len(made)
        method.load(client, Message(theta=theta))
        assert set(made) == {round(0.5 * len(client.data.train))}
        return first, len(made) - first

    assert passes(1e9) == (10, 1)
    more, later = passes(0.003)
    assert 10 < more < 100
    assert later == 1
    assert passes(1e-12)[0] > more


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batchnorm_statistics_stay_as_received(tiny: dict[str, Any], buffers: str) -> None:
    options = tiny | {"model": "resnet4", "clients": 3, "rounds": 2, "lr": 0.01, "buffers": buffers}
    done = run(**options, method="FedALA")
    assert done.result.failures == 0
    model = done.site.model()
    for cid, whole in enumerate(used(done)):
        model.write(whole)
        there = done.server.theta if buffers == "average" else keeps(done)[cid]["personal"]
        assert torch.equal(model.read("buffers"), there[-model.size("buffers") :])
