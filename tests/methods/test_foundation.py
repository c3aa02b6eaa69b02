"""The defining step of methods that are FedAvg with one idea more."""

import numpy as np
import pytest
import torch
from by_hand import at_work, kept, same, sgd_step
from torch import nn

from comity import Config
from comity.engine import run
from comity.methods import WHOLE, Message
from comity.results import Traffic
from comity.rules import CALM
from helpers import Options, build, client_of, keeps, site_of, used


def test_local_shares_nothing(tiny: Options) -> None:
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


def test_fedprox_holds_clients_back(tiny: Options) -> None:
    """A strong leash: clients stay near what they received, and nearer the stronger it is."""
    options = tiny | {"rounds": 1, "lr": 0.01}
    site = site_of(Config(**options))
    start = site.model().read()

    def moved(mu: float) -> float:
        return float((run(**options, method={"name": "FedProx", "mu": mu}).server.theta - start).norm())

    assert moved(0.0) > moved(20.0) > moved(60.0) > 0


def test_fedper_trains_both_parts_together_and_shares_the_body(tiny: Options) -> None:
    done = run(**(tiny | {"rounds": 1}), method="FedPer")
    together = run(**(tiny | {"rounds": 1}), method="Local")
    body = done.site.model().size("body")
    sizes = torch.tensor([float(len(c.train)) for c in done.federation.clients])
    bodies = torch.stack(kept(together))[:, :body]
    torch.testing.assert_close(done.server.theta, (sizes / sizes.sum()) @ bodies, rtol=0, atol=1e-6)
    assert same(kept(done), [whole[body:] for whole in kept(together)])


def test_fedrep_fits_the_head_on_the_old_body_then_the_body_on_the_new_head(tiny: Options) -> None:
    client, model, method = at_work(tiny, {"name": "FedRep", "head_epochs": 2}, 2, trainer="autograd")
    for part, epochs in (("head", 2), ("body", 1)):
        for x, y in client.batches(epochs):
            sgd_step(model.loss(x, y), model.parameters(part), client.lr)
    reply = method.fit(client, Message(theta=client.model.read("shared")))
    assert torch.equal(reply.theta, model.read("body"))
    assert torch.equal(client.keep["personal"], model.read("head"))


def test_lgfedavg_shares_the_head_alone(tiny: Options) -> None:
    done = run(**tiny, method="LG-FedAvg")
    model = done.site.model()
    assert done.server.theta.numel() == model.size("head")
    bodies = kept(done)
    assert all(b.numel() == model.size("body") for b in bodies)
    assert not torch.equal(bodies[0], bodies[1])


def test_ditto_is_anchored_at_the_received_model(tiny: Options) -> None:
    """v ← v − lr (∇f(v) + lam (v − w)) with w as received, written out."""
    client, model, method = at_work(tiny, {"name": "Ditto", "lam": 0.5}, 1)
    w = client.model.read() + 0.1 * torch.randn(client.model.size(), generator=torch.Generator().manual_seed(0))
    for x, y in client.batches(1):
        grads = torch.autograd.grad(model.loss(x, y), model.parameters())
        with torch.no_grad():
            for p, g, a in zip(model.parameters(), grads, model.split(w), strict=True):
                p -= client.lr * (g + 0.5 * (p - a))
    method.fit(client, Message(theta=w))
    torch.testing.assert_close(client.keep["v"], model.read(), rtol=0, atol=1e-6)


def test_the_head_stays_as_it_was_drawn(tiny: Options) -> None:
    done = run(**tiny, method="FedBABU")
    head = done.site.model().read("head")
    assert all(torch.equal(keep["personal"], head) for keep in keeps(done).values())
    assert done.server.theta.numel() == done.site.model().size("body")
    assert (done.server.theta - done.site.model().read("body")).abs().max() > 0.01


@pytest.mark.parametrize("part", ["whole", "head"])
def test_fine_tuning_is_plain_sgd_from_the_common_model(tiny: Options, part: str) -> None:
    client, model, method = at_work(tiny, {"name": "FedBABU", "finetune": part, "finetune_epochs": 3}, 1)
    received = Message(theta=model.read("body") + 0.1)
    model.write(received.theta, "body")
    common = model.read()
    parts = WHOLE if part == "whole" else ("head",)
    for x, y in client.batches(3):
        sgd_step(model.loss(x, y), model.parameters(*parts), client.lr)
    torch.testing.assert_close(method.personal(client, received), model.read(), rtol=0, atol=1e-6)
    assert torch.equal(method.general(client, received), common)


def test_fine_tuning_leaves_no_trace(tiny: Options) -> None:
    tuned, untuned = run(**tiny, method="FedBABU"), run(**tiny, method={"name": "FedBABU", "finetune_epochs": 0})
    assert torch.equal(tuned.server.theta, untuned.server.theta)
    assert tuned.columns["global-acc"] == untuned.columns["global-acc"]
    assert not torch.equal(used(tuned)[0], used(untuned)[0])


def test_with_fedbn_batchnorm_stays_and_the_rest_is_averaged(tiny: Options) -> None:
    """One round by hand: every client trains all of the model; the shared vector holds no number of BatchNorm."""
    data = tiny["data"] | {"feature_shift": 2.0}  # another brightness for each client, which BatchNorm sees
    config = Config(
        **(tiny | {"data": data, "model": "resnet4", "rounds": 1, "clients": 3, "lr": 0.01}), method="FedBN"
    )
    site, done = site_of(config), run(config)
    model = site.model()
    norms = [layer for layer in model.net.modules() if isinstance(layer, nn.BatchNorm2d)]
    affine = sum(p.numel() for layer in norms for p in layer.parameters())
    assert model.size("batchnorm") == affine > 0
    assert model.size("buffers") == affine
    assert done.server.theta.numel() == model.size() - 2 * affine
    assert not any("bn" in name for name in done.server.layout.names)
    assert done.result.bytes_per_round.up == 3 * 4 * done.server.theta.numel()

    start, average = model.read("shared"), torch.zeros(done.server.theta.numel())
    total = sum(len(c.train) for c in site.federation.clients)
    for cid in range(3):
        plain = site_of(config.with_(method="FedAvg")).model()
        client = client_of(site, cid)
        for x, y in client.batches(1):
            sgd_step(plain.loss(x, y), list(plain.net.parameters()), config.lr)
        reply = site.method.fit(client, Message(theta=start))
        for name, tensor in client.model.state_dict().items():
            torch.testing.assert_close(tensor.float(), plain.state_dict()[name].float(), rtol=0, atol=1e-5)
        average += reply.theta * (len(client.data.train) / total)
        torch.testing.assert_close(keeps(done)[cid]["personal"], client.model.read("personal"), rtol=0, atol=0)
    torch.testing.assert_close(done.server.theta, average, rtol=0, atol=1e-6)


def test_lambda_is_what_the_second_stage_adds(tiny: Options) -> None:
    rounds = [run(**(tiny | {"rounds": 1}), method={"name": "FedCALM", "stages": stages}).weights for stages in (1, 2)]
    (first,), (second,) = rounds
    assert first.multipliers is None
    added = np.subtract(second.coefficients, first.coefficients)
    np.testing.assert_allclose(second.multipliers, added, rtol=0, atol=1e-12)
    assert added.max() > 0.01


def test_weights_are_recorded_for_each_layer_and_round(tiny: Options) -> None:
    done = run(**tiny, method="FedCALM")
    layers = done.server.layout.names
    assert isinstance(done.server.rule, CALM)
    for record, weights in zip(done.records, done.weights, strict=True):
        assert weights.round == record.round
        assert len(weights.coefficients) == len(layers)
        assert all(len(row) == tiny["clients"] for row in weights.coefficients)
        for row, lam in zip(weights.coefficients, weights.multipliers, strict=True):
            assert all(0 <= x <= 10 for x in lam)
            assert all(c - x >= 1 / tiny["clients"] - 1e-9 for c, x in zip(row, lam, strict=True))  # Projection's part
        assert set(record.rule.length_ratio) == set(layers)
        assert record.rule.residual <= 1e-9


def test_fedfv_projects_by_rising_loss(tiny: Options) -> None:
    """Only the update of the largest loss is kept as it is, everyone else's is projected in turn."""
    options = tiny | {"data": tiny["data"] | {"label_shift": 0.9, "concept_shift": 1.0}}
    site, server = build(Config(**options, method={"name": "FedFV", "alpha": 0.1, "tau": 0}))
    before, server.round = server.theta.clone(), 1
    replies = server.fit(server.clients)
    server.method.merge(server, replies)
    U = (torch.stack([replies[cid].theta for cid in server.clients]) - before).double()
    losses = []
    for client in site.federation.clients:  # of what was received, not of what was made of it
        with torch.no_grad():
            losses.append(float(site.model().loss(client.train.x, client.train.y)))
    assert [replies[cid].loss for cid in server.clients] == pytest.approx(losses, rel=1e-5)
    order = sorted(server.clients, key=lambda cid: losses[cid])
    projected = U.clone()
    for i in order[:-1]:
        for j in order:
            if j != i and (along := projected[i] @ U[j]) < 0:
                projected[i] -= along / (U[j] @ U[j]) * U[j]
    assert not torch.equal(projected, U)
    mean = projected.mean(0)
    expected = mean * U.mean(0).norm() / mean.norm()
    torch.testing.assert_close((server.theta - before).double(), expected, rtol=0, atol=1e-5)
