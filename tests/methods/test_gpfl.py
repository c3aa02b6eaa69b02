"""GPFL: the valve and its conditions, the three losses, and what is averaged how."""

import torch
import torch.nn.functional as F
from by_hand import sgd_step
from torch import Tensor, nn

from comity import Config
from comity.engine import Site, run
from comity.methods import FedPer, Message
from comity.nn import Model
from helpers import Options, client_of, keeps, site_of, used


def valve_by_hand(net: nn.Module, z: Tensor, c: Tensor) -> Tensor:
    def part(layers: nn.Sequential) -> Tensor:
        linear, _, norm = layers
        a = (linear.weight @ c + linear.bias).clamp(min=0)
        return (a - a.mean()) / (a.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias

    return (z * (1 + part(net.valve.scale)) + part(net.valve.shift)).clamp(min=0)


def test_local_training_step_by_step(tiny: Options) -> None:
    """Conditions and the distances' targets are those of the embedding as received; all but the condition moves."""
    lam, mu = 0.3, 0.05
    options = tiny | {"data": tiny["data"] | {"label_shift": 0.9}}
    config = Config(**options, method={"name": "GPFL", "lam": lam, "mu": mu}, epochs=2)
    site = site_of(config)
    client, model = client_of(site, 1), site.model()
    net, train = model.net, client.data.train
    E = net.embedding.weight.detach().clone()
    own = torch.stack([(train.y == k).float().mean() * E[k] for k in range(4)]).sum(0)
    assert not torch.allclose(own, E.mean(0), atol=0.1)
    params = model.parameters("body", "head", "embedding", "valve")
    for x, y in client.batches(2):
        z = net.body(x)
        logits = valve_by_hand(net, z, own) @ net.head.weight.T + net.head.bias
        g, rows = valve_by_hand(net, z, E.mean(0)), net.embedding.weight
        cosines = torch.stack([F.cosine_similarity(g, rows[k][None], dim=1) for k in range(4)], dim=1)
        distance = sum((g[i] - E[y[i]]).norm() for i in range(len(y))) / len(y)
        decay = sum(p.square().sum() for p in model.parameters("embedding", "valve"))
        loss = F.cross_entropy(logits, y) + F.cross_entropy(cosines, y) + lam * distance + mu / 2 * decay
        sgd_step(loss, params, config.lr)
    model.write(own, "condition")
    reply = site.method.fit(client, Message(theta=site.model().read("shared")))
    torch.testing.assert_close(client.model.read(), model.read(), rtol=0, atol=2e-5)
    assert torch.equal(reply.theta, client.model.read("body", "embedding", "valve"))
    torch.testing.assert_close(
        net(train.x), valve_by_hand(net, net.body(train.x), own) @ net.head.weight.T + net.head.bias
    )


def silent(site: Site) -> Model:
    """A valve that changes nothing, and embeddings that are all the same, so that no angle guides any feature."""
    model = site.model()
    with torch.no_grad():
        for layers in (model.net.valve.scale, model.net.valve.shift):
            layers[2].weight.zero_()
            layers[2].bias.zero_()
        model.net.embedding.weight.fill_(1.0)
    return model


def test_a_silent_valve_and_equal_embeddings_are_a_step_of_fedper(tiny: Options) -> None:
    """One step: with the second the embeddings have moved apart. Features come from a ReLU, so the valve's is idle."""
    options = tiny | {"batch_size": 100}
    site = site_of(Config(**options, method={"name": "GPFL", "lam": 0, "mu": 0}))
    plain = site_of(Config(**options, method="FedPer"))
    ours, theirs = client_of(site, 2), client_of(plain, 2)
    site.method.fit(ours, Message(theta=silent(site).read("shared")))
    FedPer().fit(theirs, Message(theta=plain.model().read("shared")))
    for part in ("body", "head"):
        torch.testing.assert_close(ours.model.read(part), theirs.model.read(part), rtol=0, atol=1e-6)
        assert (theirs.model.read(part) - plain.model().read(part)).abs().max() > 1e-3


def test_heads_and_conditions_stay_at_home(tiny: Options) -> None:
    done = run(**(tiny | {"data": tiny["data"] | {"label_shift": 0.9}}), method="GPFL")
    model = done.site.model()
    assert done.server.theta.numel() == model.size("body", "embedding", "valve")
    assert done.result.bytes_per_round.up == 5 * 4 * done.server.theta.numel()
    assert "global-acc" not in done.columns
    model.write(done.server.theta, "shared")
    E = model.net.embedding.weight.detach().clone()
    for cid, whole in enumerate(used(done)):
        model.write(whole)
        y = done.federation.clients[cid].train.y
        torch.testing.assert_close(model.read("condition"), E[y].mean(0), rtol=0, atol=1e-5)
    heads = [keep["personal"] for keep in keeps(done).values()]
    assert not torch.equal(heads[0], heads[1])
