"""FedDBE: the consensus, the client's own shift, the running mean, and its reduction to FedAvg."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import sgd_step

from comity import Config
from comity.engine import run
from comity.methods import WHOLE, Client, FedDBE, verb
from comity.methods.feddbe import FedDBEMessage, MeanFeatures
from helpers import assert_reproducible, build, client_of, keeps, site_of, used


class Unshifted(FedDBE):
    """p stays at 0."""

    trained = WHOLE


def test_with_kappa_0_and_no_shift_it_is_fedavg_to_the_bit(tiny: dict[str, Any]) -> None:
    """FedAvg by autograd too: to float rounding the other trainers agree with it."""
    options = tiny | {"rounds": 4, "data": tiny["data"] | {"label_shift": 0.9}}
    done = run(**options, method={"name": f"{__name__}.Unshifted", "kappa": 0})
    plain = run(**options, method="FedAvg", trainer="autograd")
    assert torch.equal(done.server.theta, plain.server.theta)
    assert done.columns == plain.columns
    assert done.result.bytes_per_round == plain.result.bytes_per_round  # no consensus is asked for
    shifted = run(**options, method={"name": "FedDBE", "kappa": 0})
    assert not torch.equal(shifted.server.theta, plain.server.theta)


def test_the_consensus_is_the_mean_of_features_after_one_training(tiny: dict[str, Any]) -> None:
    config = Config(**(tiny | {"data": tiny["data"] | {"label_shift": 0.9}}), method="FedDBE")
    site, server = build(config)
    server.method.begin(server)
    rows = []
    for cid, data in enumerate(site.federation.clients):
        model = site.model()
        for x, y in replace(client_of(site, cid), verb="mean_features", round=0).batches(1):
            sgd_step(model.loss(x, y), model.parameters(*WHOLE), config.lr)
        rows.append(model.features(data.train.x).sum(0).detach())
    total = sum(len(c.train) for c in site.federation.clients)
    torch.testing.assert_close(server.store["consensus"], torch.stack(rows).sum(0) / total, rtol=0, atol=1e-5)
    before = server.store["consensus"].clone()
    server.step()
    assert torch.equal(server.store["consensus"], before)
    assert server.record.bytes.up > server.link.traffic["fit"][1]  # the means are counted


@pytest.mark.parametrize("mu", [1.0, 0.3])
def test_local_training_step_by_step(tiny: dict[str, Any], mu: float) -> None:
    config = Config(**tiny, method={"name": "FedDBE", "kappa": 20.0, "mu": mu}, epochs=2)
    site = site_of(config)
    client, model = client_of(site, 1), site.model()
    consensus = torch.linspace(-1, 1, 16)
    net, m = model.net, torch.zeros(16)
    for x, y in client.batches(2):
        z = net.body(x)
        m = (1 - mu) * m.detach() + mu * z.mean(0)
        logits = (z + net.shift.value) @ net.head.weight.T + net.head.bias
        loss = F.cross_entropy(logits, y) + 20.0 * (0.5 * (m - consensus) ** 2).mean()
        sgd_step(loss, model.parameters(), config.lr)
    reply = site.method.fit(client, FedDBEMessage(theta=site.model().read("shared"), consensus=consensus))
    torch.testing.assert_close(client.model.read(), model.read(), rtol=0, atol=1e-5)
    assert torch.equal(client.keep["personal"], client.model.read("shift"))
    assert float(client.keep["personal"].abs().max()) > 0
    assert torch.equal(reply.theta, client.model.read("shared"))


def test_the_model_for_everybody_has_no_shift(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="FedDBE")
    model, shifts = done.site.model(), []
    for cid, whole in enumerate(used(done)):
        model.write(whole)
        shifts.append(model.read("shift"))
        assert torch.equal(shifts[-1], keeps(done)[cid]["personal"])
        assert torch.equal(model.read("shared"), done.server.theta)
    assert not torch.equal(shifts[0], shifts[1])
    client = done.site.client(0, model, done.server.link.states()[0])
    general = done.site.method.general(client, done.site.method.send(done.server, 0))
    model.write(general)
    assert torch.equal(model.read("shared"), done.server.theta)
    assert not model.read("shift").any()


class Hostile(FedDBE):
    @verb
    def mean_features(self, client: Client, received: FedDBEMessage) -> MeanFeatures:
        reply = super().mean_features(client, received)
        wrong = {1: {"mean": reply.mean + torch.nan}, 2: {"mean": reply.mean[1:]}, 3: {"size": -5}}
        return replace(reply, **wrong.get(client.id, {}))


def test_a_mean_that_cannot_be_used_is_left_out(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method=f"{__name__}.Hostile")
    failed = done.records[0].failed
    assert failed.keys() == {1, 2, 3}
    assert "not finite" in failed[1]
    assert "of shape (15,)" in failed[2]
    assert "must be above 0" in failed[3]
    assert torch.isfinite(done.server.store["consensus"]).all()


def test_the_consensus_survives_a_resume(tiny: dict[str, Any], tmp_path: Any) -> None:
    assert_reproducible(tiny | {"method": "FedDBE"}, tmp_path / "cut")
