"""FedProto: the prototypes, the pull to them, the nearest one as an answer, and its reduction to Local."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import at_work, sgd_step

from comity import Config
from comity.engine import Client, run
from comity.methods import WHOLE, FedProto
from comity.methods._prototypes import Prototypes
from helpers import Options, Patch, build, used

SKEWED = {"label_shift": 0.9}


def test_prototypes_are_means_over_all_samples_of_a_class(tiny: Options) -> None:
    """One round by hand, in which the clients train alone."""
    config = Config(**(tiny | {"rounds": 1, "data": tiny["data"] | SKEWED}), method="FedProto")
    done, alone = run(config), run(config.with_(method="Local"), trainer="autograd")
    model, Z, y = alone.site.model(), [], []
    for whole, client in zip(used(alone), alone.federation.clients, strict=True):
        model.write(whole)
        Z.append(model.features(client.train.x).detach())
        y.append(client.train.y)
    features, labels = torch.cat(Z), torch.cat(y)
    by_hand = torch.stack([features[labels == k].mean(0) for k in range(4)])
    torch.testing.assert_close(done.server.store["prototypes"], by_hand, rtol=0, atol=1e-5)
    assert done.server.theta.numel() == 0
    assert done.result.bytes_per_round.up == 5 * (4 * 16 * 4 + 4 * 8)  # prototypes as float32, counts as int64


def test_local_training_step_by_step(tiny: Options) -> None:
    """A class without a prototype has no pull, but its samples count in the mean."""
    client, model, method = at_work(tiny, {"name": "FedProto", "lam": 3.0}, 1, epochs=2)
    known = torch.tensor([True, False, True, True])
    prototypes = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    params = model.parameters(*WHOLE)
    for x, y in client.batches(2):
        z = model.net.body(x)
        pull = sum((z[i] - prototypes[y[i]]).square().sum() for i in range(len(y)) if known[y[i]]) / z.numel()
        loss = F.cross_entropy(model.net.head(z), y) + 3.0 * pull
        sgd_step(loss, params, client.lr)
    method.fit(client, Prototypes(theta=torch.empty(0), prototypes=prototypes, known=known))
    torch.testing.assert_close(client.model.read(*WHOLE), model.read(*WHOLE), rtol=0, atol=1e-5)


def test_the_nearest_known_prototype_answers(tiny: Options) -> None:
    client, _, method = at_work(tiny, "FedProto", 0)
    net, x = client.model.net.eval(), client.data.test.x
    assert torch.equal(net(x), net.head(net.body(x)))  # as long as there is none
    z = net.body(x).detach()
    prototypes = torch.stack([z[0], z[1], z[2], z.mean(0)])
    known = torch.tensor([True, False, True, True])
    received = Prototypes(theta=torch.empty(0), prototypes=prototypes, known=known)
    client.model.write(method.personal(client, received))
    far = torch.cdist(z, prototypes).masked_fill(~known, torch.inf)
    assert torch.equal(net(x).argmax(1), far.argmin(1))
    assert net(x)[:3].argmax(1).tolist()[::2] == [0, 2]
    a, b = net(x)[:, 0] - net(x)[:, 2], far[:, 2] ** 2 - far[:, 0] ** 2
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_class_that_nobody_holds_this_round_keeps_its_prototype(tiny: Options) -> None:
    _, server = build(Config(**tiny, method="FedProto"))
    server.step()
    before = server.store["prototypes"].clone()
    replies = server.fit([0, 1])
    for reply in replies.values():
        reply.counts[3] = 0
        reply.prototypes[3] = 77.0
    server.method.merge(server, replies)
    assert torch.equal(server.store["prototypes"][3], before[3])
    assert not torch.equal(server.store["prototypes"][:3], before[:3])
    assert server.store["known"].all()


@pytest.mark.parametrize("method", ["FedProto", "FedPAC"])
def test_prototypes_that_cannot_be_used_are_refused(tiny: Options, monkeypatch: Patch, method: str) -> None:
    from comity.methods import METHODS

    honest = METHODS[method].fit

    def hostile(self: FedProto, client: Client, received: Prototypes) -> Any:
        reply = honest(self, client, received)
        counts, prototypes = reply.counts.clone(), reply.prototypes
        if client.id == 1:  # a class that it does not hold, counted a million times
            counts[0] += 10**6
        if client.id == 2:
            counts[0] -= 1000
            counts[1] += 1000
        if client.id == 3:
            prototypes = torch.full_like(prototypes, torch.inf)
        if client.id == 4:
            prototypes = torch.cat([prototypes, prototypes])
        return replace(reply, counts=counts, prototypes=prototypes)

    monkeypatch.setattr(METHODS[method], "fit", hostile)
    done = run(**(tiny | {"clients": 8}), method=method)
    for record in done.records:
        assert record.failed.keys() == {1, 2, 3, 4}
        assert "do not add up" in record.failed[1]
        assert "below 0" in record.failed[2]
        assert "not finite" in record.failed[3]
        assert "shape" in record.failed[4]
    assert torch.isfinite(done.server.store["prototypes"]).all()
