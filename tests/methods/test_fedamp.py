"""FedAMP: its weights against the paper's formulas, a pull that pulls, and that it is not Local."""

import math
from typing import Any

import pytest
import torch
from by_hand import loss_gradient, server_of
from torch import Tensor

from comity import Config
from comity._layout import Layout
from comity.methods import FedAMP, Message, Reply
from helpers import client_of, site_of

FORMS = ["distance", "cosine"]


def models(count: int = 5, size: int = 12) -> tuple[Tensor, Tensor, Layout]:
    W = 1 + torch.randn(count, size, generator=torch.Generator().manual_seed(0))
    return W, torch.ones(count, dtype=torch.bool), Layout([("all", (size,))])


def mixed(amp: FedAMP, W: Tensor, heard: Tensor, layout: Layout) -> Tensor:
    xi = amp.attention(W, heard, layout)
    torch.testing.assert_close(xi.sum(1), torch.ones(len(W), dtype=xi.dtype))
    return xi


def test_attention_by_distance_against_the_formula() -> None:
    W, heard, layout = models()
    sigma, alpha = 20.0, 1.5
    xi = mixed(FedAMP(sigma=sigma, alpha=alpha), W, heard, layout)
    for i in range(5):
        others = 0.0
        for j in range(5):
            if i != j:
                weight = alpha * math.exp(-float((W[i] - W[j]).square().sum()) / sigma) / sigma
                assert float(xi[i, j]) == pytest.approx(weight, rel=1e-5)
                others += weight
        assert others < 0.9  # below the bound, so that the formula stands as it is
        assert float(xi[i, i]) == pytest.approx(1 - others, rel=1e-5)


def test_attention_by_angle_against_the_formula() -> None:
    W, heard, layout = models()
    xi = mixed(FedAMP(form="cosine", sigma=4.0, self_weight=0.3), W, heard, layout)
    for i in range(5):
        closeness = {j: math.exp(4.0 * float(W[i] @ W[j] / (W[i].norm() * W[j].norm()))) for j in range(5) if j != i}
        for j, close in closeness.items():
            assert float(xi[i, j]) == pytest.approx(0.7 * close / sum(closeness.values()), rel=1e-5)
        assert float(xi[i, i]) == pytest.approx(0.3, rel=1e-9)


def test_by_default_the_width_is_the_median_and_the_scale_of_models_does_not_matter() -> None:
    """A width chosen beforehand underflows as models grow, and FedAMP becomes Local."""
    W, heard, layout = models()
    pairs = [float((W[i] - W[j]).square().sum()) for i in range(5) for j in range(i)]
    median = sorted(pairs)[(len(pairs) - 1) // 2]
    xi = mixed(FedAMP(alpha=0.8), W, heard, layout)
    for i, j in ((0, 1), (3, 2)):
        weight = 0.8 / 4 * math.exp(-float((W[i] - W[j]).square().sum()) / median)
        assert float(xi[i, j]) == pytest.approx(weight, rel=1e-4)
    for form in FORMS:
        small, large = (mixed(FedAMP(form=form), scale * W, heard, layout) for scale in (1e-3, 1e3))
        torch.testing.assert_close(small, large, rtol=1e-4, atol=1e-6)
        assert float(large.diagonal().max()) < 0.95
    fixed = mixed(FedAMP(sigma=1.0), 1e3 * W, heard, layout)
    assert torch.equal(fixed, torch.eye(5, dtype=fixed.dtype))


@pytest.mark.parametrize("form", FORMS)
def test_nobody_listens_to_a_client_that_never_answered(form: str) -> None:
    W, heard, layout = models()
    heard[1] = heard[4] = False
    xi = mixed(FedAMP(form=form), W, heard, layout)
    for silent in (1, 4):
        assert float(xi[:, silent].sum()) == float(xi[silent, silent]) > 0
    assert bool((xi[:, 0] > 0).all())
    lonely = mixed(FedAMP(form=form), W, torch.arange(5) == 2, layout)
    assert float(lonely[2, 2]) == 1.0
    assert torch.equal(mixed(FedAMP(form=form), W[:1], heard[:1], layout), torch.ones(1, 1, dtype=xi.dtype))


def test_the_pull_pulls(tiny: dict[str, Any]) -> None:
    """In public code the proximal term is made of detached tensors and moves nothing."""
    options = tiny | {"lr": 0.02}

    def trained(lam: float, shift: float) -> tuple[Tensor, Tensor]:
        site = site_of(Config(**options, method={"name": "FedAMP", "lam": lam, "alpha": 0.5}))
        client = client_of(site)
        u = client.model.read() + shift
        reply = site.method.fit(client, Message(theta=u))
        assert torch.equal(client.model.read(), client.keep["w"])
        return reply.theta, u

    free, u = trained(0.0, 1.0)
    held, _ = trained(2.0, 1.0)
    assert (held - u).norm() < 0.95 * (free - u).norm()
    assert torch.equal(free, trained(0.0, -1.0)[0])  # without the term it does not matter where u is

    # w ← w − lr (∇f(w) + lam/alpha (w − u)), written out
    site = site_of(Config(**options, method={"name": "FedAMP", "lam": 2.0, "alpha": 0.5}))
    model = site.model()
    for x, y in client_of(site).batches():
        w = model.read()
        model.write(w - 0.02 * (loss_gradient(model, x, y) + 4.0 * (w - u)))
    torch.testing.assert_close(held, model.read(), rtol=0, atol=1e-6)


def test_the_server_mixes_the_newest_models_it_has_by_client(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FedAMP")
    start, random = server.theta.clone(), torch.Generator().manual_seed(0)
    sent = {cid: start + torch.randn(len(start), generator=random) for cid in (3, 1)}
    server.method.merge(server, {cid: Reply(theta=theta, size=1) for cid, theta in sent.items()})
    W = server.store["W"]
    assert all(torch.equal(W[cid], sent.get(cid, start)) for cid in range(tiny["clients"]))
    weight = math.exp(-1)  # two are known: their distance is the median, and there is one other to mix with
    for cid, other in ((1, 3), (3, 1)):
        mixture = server.method.send(server, cid).theta
        torch.testing.assert_close(mixture, (1 - weight) * sent[cid] + weight * sent[other], rtol=0, atol=1e-5)
    server.method.merge(server, {0: Reply(theta=start, size=1)})
    assert torch.equal(server.store["W"][3], sent[3])  # absent now, not forgotten
