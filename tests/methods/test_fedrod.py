"""FedROD: balanced softmax, two heads that do not disturb each other, and the hypernetwork."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comity import Config
from comity.engine import Client, run
from comity.methods import Message
from comity.methods.fedrod import balanced_softmax
from comity.nn import Model
from helpers import Options, client_of, keeps, site_of, used

HYPER = {"name": "FedROD", "head": "hypernetwork"}


def counts_of(client: Client, classes: int = 4) -> Tensor:
    return torch.tensor([float((client.data.train.y == c).sum()) for c in range(classes)])


def some_lack_a_class(tiny: Options) -> Options:
    return tiny | {"data": tiny["data"] | {"label_shift": 0.9}}


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_generic_loss_is_the_balanced_softmax(gamma: float) -> None:
    counts = torch.tensor([3.0, 0.0, 1.0, 5.0])
    logits = torch.tensor([[0.3, 9.0, -1.0, 0.5], [2.0, -3.0, 0.1, 0.2]], requires_grad=True)
    y = torch.tensor([2, 0])
    weighted = counts**gamma * logits.detach().exp()
    by_hand = -(weighted[[0, 1], y] / weighted.sum(1)).log().mean()
    loss = balanced_softmax(logits, y, counts, gamma)
    torch.testing.assert_close(loss.detach(), by_hand, rtol=1e-6, atol=0)
    (slope,) = torch.autograd.grad(loss, logits)
    assert torch.isfinite(slope).all()
    assert torch.equal(slope[:, 1], torch.zeros(2))  # nothing is learnt about a class that is not there
    assert (slope[:, [0, 2, 3]] != 0).all()


def stepped(model: Model, client: Client, head: str, lr: float) -> None:
    """The two losses' steps, each taken alone."""
    net, counts = model.net, counts_of(client)
    for x, y in client.batches(1):
        z = net.body(x)
        prior = torch.where(counts > 0, counts.log(), -torch.inf)
        generic = F.cross_entropy(net.head(z) + prior, y)
        shared = model.parameters("body", "head")
        own = model.parameters("own" if head == "linear" else "hypernetwork")
        slopes = torch.autograd.grad(generic, shared)
        with torch.no_grad():
            z = net.body(x)
            fixed = net.head(z)
        if head == "linear":
            mine = net.own(z)
        else:
            made = net.hypernetwork(counts / counts.sum())
            mine = z @ made[: -len(counts)].view(len(counts), -1).T + made[-len(counts) :]
        slopes += torch.autograd.grad(F.cross_entropy(fixed + mine, y), own)
        with torch.no_grad():
            for p, g in zip(shared + own, slopes, strict=True):
                p -= lr * g


@pytest.mark.parametrize("head", ["linear", "hypernetwork"])
def test_each_loss_moves_its_own_parts(tiny: Options, head: str) -> None:
    config = Config(**some_lack_a_class(tiny), method={"name": "FedROD", "head": head})
    site = site_of(config)
    cid = next(c for c in range(5) if (counts_of(client_of(site, c)) == 0).any())
    client, model = client_of(site, cid), site.model()
    noise = torch.randn(model.size(), generator=torch.Generator().manual_seed(0))
    start = model.read() + 0.1 * noise
    model.write(start)
    client.model.write(start)
    client.keep["personal"] = client.model.read("personal")
    stepped(model, client, head, config.lr)
    reply = site.method.fit(client, Message(theta=client.model.read("shared")))
    torch.testing.assert_close(reply.theta, model.read("shared"), rtol=0, atol=1e-6)
    if head == "linear":
        torch.testing.assert_close(client.keep["personal"], model.read("own"), rtol=0, atol=1e-6)


def test_clients_use_both_heads_and_everybody_the_generic_one(tiny: Options) -> None:
    done = run(**tiny, method="FedROD")
    client = client_of(done.site, 3)
    client.keep = dict(keeps(done)[3])
    received = done.server.method.send(done.server, 3)
    x = client.data.test.x
    model = done.site.model()
    model.write(done.server.method.personal(client, received))
    net = model.net.eval()
    z = net.body(x)
    assert torch.equal(net(x), net.head(z) + net.own(z))
    assert net.own.weight.abs().max() > 0.01
    assert torch.equal(torch.cat([net.own.weight.reshape(-1), net.own.bias]), client.keep["personal"])
    common = done.server.method.general(client, received)
    model.write(common)
    assert torch.equal(net(x), net.head(z))


def test_the_hypernetwork_makes_the_head_from_class_frequencies(tiny: Options) -> None:
    """Also for a client that never took part."""
    done = run(**(some_lack_a_class(tiny) | {"participation": 0.4, "rounds": 2}), method=HYPER)
    absent = next(cid for cid in range(5) if all(cid not in record.cohort for record in done.records))
    present = next(cid for cid in range(5) if any(cid in record.cohort for record in done.records))
    assert absent in keeps(done)  # it was evaluated
    models = used(done)
    net = done.site.model()
    heads = []
    for cid in (absent, present):
        net.write(models[cid])
        share = torch.nn.functional.normalize(counts_of(client_of(done.site, cid)), p=1, dim=0)
        torch.testing.assert_close(net.read("own"), net.net.hypernetwork(share).detach(), rtol=0, atol=1e-6)
        heads.append(net.read("own"))
    assert heads[0].abs().max() > 0
    assert not torch.allclose(*heads)
    assert torch.equal(models[absent][: net.size("body", "head")], done.server.theta[: net.size("body", "head")])
