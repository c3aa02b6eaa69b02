"""FedCP: the gate, the discrepancy, what is sent, and where its noise comes from."""

import pytest
import torch
import torch.nn.functional as F
from by_hand import at_work, sgd_step
from torch import Tensor, nn

from comity import Config
from comity.methods import Message
from comity.methods.fedcp import mmd
from helpers import Options, client_of, site_of


def logits_by_hand(net: nn.Module, z: Tensor, v: Tensor, gumbel: Tensor) -> Tensor:
    """h_i(r z) + h_g(s z), (r, s) the softmax over two of the gate's answers plus noise (samples, 2, features)."""
    answer = net.gate(z * (v / v.norm())).reshape(len(z), 2, -1)
    r, s = F.softmax(answer + gumbel, dim=1).unbind(1)
    return (r * z) @ net.own.weight.T + net.own.bias + (s * z) @ net.head.weight.T + net.head.bias


def test_the_gate_shares_features_out_between_the_heads(tiny: Options) -> None:
    site = site_of(Config(**tiny, method="FedCP"))
    model, random = site.model(), torch.Generator().manual_seed(0)
    model.write(model.read() + 0.3 * torch.randn(model.size(), generator=random))
    net, x = model.net.eval(), site.federation.clients[0].test.x
    z = net.body(x)
    v = net.own.weight.sum(0)
    torch.testing.assert_close(net(x), logits_by_hand(net, z, v, torch.zeros(len(z), 2, 16)), rtol=0, atol=1e-5)
    assert torch.equal(net(x), net(x))
    gumbel = -torch.rand((len(z), 2, 16), generator=random).log().neg().log()
    drawn = net.classify(z, net.context(), gumbel[:, 0] - gumbel[:, 1])
    torch.testing.assert_close(drawn, logits_by_hand(net, z, v, gumbel), rtol=0, atol=1e-5)
    assert not torch.allclose(drawn, net(x), atol=1e-2)


def test_discrepancy_is_the_mean_of_kernels() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 3, generator=random).double(), 2 + torch.randn(5, 3, generator=random).double()

    def kernel(a: Tensor, b: Tensor) -> float:
        return sum(float(torch.exp(-(a - b).square().sum() / (2 * width))) for width in (10, 15, 20, 50))

    by_hand = sum(kernel(x[i], x[j]) + kernel(y[i], y[j]) - 2 * kernel(x[i], y[j]) for i in range(5) for j in range(5))
    torch.testing.assert_close(mmd(x, y), torch.tensor(by_hand / 25, dtype=torch.float64), rtol=1e-9, atol=0)
    assert by_hand > 1
    assert abs(float(mmd(x, x))) < 1e-12


def test_local_training_step_by_step(tiny: Options) -> None:
    """Body, own head and gate move; the global head and the received body stand still; heads are sent half and half."""
    config = Config(**tiny, method={"name": "FedCP", "lam": 2.0}, epochs=2)
    site = site_of(config)
    client, model, anchor = client_of(site, 1), site.model(), site.model()
    random = torch.Generator().manual_seed(0)
    start = model.read() + 0.3 * torch.randn(model.size(), generator=random)
    for m in (model, anchor, client.model):
        m.write(start)
    client.keep["personal"] = client.model.read("personal")
    net, noise = model.net, client.random("gumbel")
    v = net.own.weight.detach().sum(0).clone()
    for x, y in client.batches(2):
        z = net.body(x)
        u = torch.rand(z.shape, generator=noise)
        gumbel = torch.stack([(u / (1 - u)).log(), torch.zeros_like(u)], dim=1)
        loss = F.cross_entropy(logits_by_hand(net, z, v, gumbel), y) + 2.0 * mmd(z, anchor.net.body(x).detach())
        params = model.parameters("body", "own", "gate")
        sgd_step(loss, params, config.lr)
    reply = site.method.fit(client, Message(theta=anchor.read("shared")))
    torch.testing.assert_close(client.model.read(), model.read(), rtol=0, atol=1e-5)
    assert torch.equal(client.model.read("head"), anchor.read("head"))
    assert torch.equal(client.keep["personal"], client.model.read("own"))
    model.write((model.read("own") + model.read("head")) / 2, "head")
    torch.testing.assert_close(reply.theta, model.read("shared"), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lr", "lam"), [(0.1, 0.25), (0.005, 5.0), (0.001, 5.0)])
def test_by_default_the_pull_is_no_stronger_at_larger_rates(tiny: Options, lr: float, lam: float) -> None:
    """lam · lr is at most the paper's 5 · 0.005."""
    thetas = []
    for value in (None, lam, 0.5 * lam):
        client, _, method = at_work(tiny | {"lr": lr}, {"name": "FedCP", "lam": value}, 0)
        thetas.append(method.fit(client, Message(theta=client.model.read("shared"))).theta)
    assert torch.equal(thetas[0], thetas[1])
    assert not torch.equal(thetas[0], thetas[2])
