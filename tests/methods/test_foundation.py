"""Each method's defining step, what it must reduce to, and that it is not secretly another."""

from typing import Any

import torch
from by_hand import kept, same, sgd_step

from comity import Config
from comity.engine import run
from comity.methods import Message
from comity.results import Traffic
from helpers import client_of, site_of


def test_local_shares_nothing(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="Local", trainer="autograd")
    assert done.server.theta.numel() == 0
    assert done.result.bytes_per_round == Traffic(down=0, up=0)
    # client 0 alone, by hand, through all rounds
    site = site_of(Config(**tiny, method="Local"))
    model = site.model()
    for round in range(1, tiny["rounds"] + 1):
        for x, y in client_of(site, 0, round).batches(1):
            sgd_step(model.loss(x, y), model.parameters(), tiny["lr"])
    assert torch.equal(kept(done)[0], model.read())


def test_fedprox_holds_clients_back(tiny: dict[str, Any]) -> None:
    """A strong leash: clients stay near what they received, and nearer the stronger it is."""
    options = tiny | {"rounds": 1, "lr": 0.01}
    site = site_of(Config(**options))
    start = site.model().read()

    def moved(mu: float) -> float:
        return float((run(**options, method={"name": "FedProx", "mu": mu}).server.theta - start).norm())

    assert moved(0.0) > moved(20.0) > moved(60.0) > 0


def test_fedper_trains_both_parts_together_and_shares_the_body(tiny: dict[str, Any]) -> None:
    done = run(**(tiny | {"rounds": 1}), method="FedPer")
    together = run(**(tiny | {"rounds": 1}), method="Local")
    body = done.site.model().size("body")
    sizes = torch.tensor([float(len(c.train)) for c in done.federation.clients])
    bodies = torch.stack(kept(together))[:, :body]
    torch.testing.assert_close(done.server.theta, (sizes / sizes.sum()) @ bodies, rtol=0, atol=1e-6)
    assert same(kept(done), [whole[body:] for whole in kept(together)])


def test_fedrep_fits_the_head_on_the_old_body_then_the_body_on_the_new_head(tiny: dict[str, Any]) -> None:
    config = Config(**tiny, method={"name": "FedRep", "head_epochs": 2})
    site = site_of(config, trainer="autograd")
    client = client_of(site, 2)
    model = site.model()
    for part, epochs in (("head", 2), ("body", 1)):
        for x, y in client.batches(epochs):
            sgd_step(model.loss(x, y), model.parameters(part), config.lr)
    reply = site.method.fit(client, Message(theta=client.model.read("shared")))
    assert torch.equal(reply.theta, model.read("body"))
    assert torch.equal(client.keep["personal"], model.read("head"))


def test_lgfedavg_shares_the_head_alone(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="LG-FedAvg")
    model = done.site.model()
    assert done.server.theta.numel() == model.size("head")
    bodies = kept(done)
    assert all(b.numel() == model.size("body") for b in bodies)
    assert not torch.equal(bodies[0], bodies[1])


def test_ditto_is_anchored_at_the_received_model(tiny: dict[str, Any]) -> None:
    """v ← v − lr (∇f(v) + lam (v − w)) with w as received, written out."""
    config = Config(**tiny, method={"name": "Ditto", "lam": 0.5})
    site = site_of(config)
    client = client_of(site, 1)
    w = client.model.read() + 0.1 * torch.randn(client.model.size(), generator=torch.Generator().manual_seed(0))
    model = site.model()
    for x, y in client.batches(1):
        grads = torch.autograd.grad(model.loss(x, y), model.parameters())
        with torch.no_grad():
            for p, g, a in zip(model.parameters(), grads, model.split(w), strict=True):
                p -= config.lr * (g + 0.5 * (p - a))
    site.method.fit(client, Message(theta=w))
    torch.testing.assert_close(client.keep["v"], model.read(), rtol=0, atol=1e-6)
