"""APFL: its steps against the equations, alpha's gradient against finite differences, and PFLlib's form."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import loss_gradient
from torch import Tensor

from comity import Config
from comity.data import Split
from comity.engine import Client
from comity.methods import APFL, Message
from comity.nn import Model
from helpers import client_of, site_of


def client_in_float64(tiny: dict[str, Any], alpha: float = 0.5) -> tuple[Client, Model, Tensor]:
    """A client whose v is not the common initial model, a second model, and a w to be received."""
    site = site_of(Config(**tiny, method={"name": "APFL", "alpha": alpha}), trainer="chain")
    client = client_of(site, 1)
    train = client.data.train
    client.data = replace(client.data, train=Split(train.x.double(), train.y))
    for net in (client.model.net, (other := site.model()).net):
        net.double()
    random = torch.Generator().manual_seed(0)
    v, w = (other.read() + 0.1 * torch.randn(other.size(), generator=random, dtype=torch.float64) for _ in range(2))
    client.keep["v"] = v
    return client, other, w


def gradient(model: Model, at: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    model.write(at)
    return loss_gradient(model, *batch)


def test_alpha_moves_once_a_round_by_its_gradient(tiny: dict[str, Any]) -> None:
    """d/dα f(αv + (1−α)w) by finite differences on the first batch."""
    client, model, w = client_in_float64(tiny)
    v, (x, y), h = client.keep["v"].clone(), next(client.batches()), 1e-6

    def loss(alpha: float) -> float:
        model.write(alpha * v + (1 - alpha) * w)
        return float(model.loss(x, y).detach())

    slope = (loss(0.5 + h) - loss(0.5 - h)) / (2 * h)
    assert abs(slope) > 1e-3
    APFL().fit(client, Message(theta=w))
    assert len(list(client.batches())) > 1
    assert float(client.keep["alpha"]) == pytest.approx(0.5 - tiny["lr"] * slope, abs=1e-9)


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_round_written_out(tiny: dict[str, Any], adaptive: bool) -> None:
    """w on f(w), v on f(v̄) by v, both from the old values; v itself is kept, not v̄."""
    client, model, w = client_in_float64(tiny, alpha=0.3)
    received, lr, alpha, v, common = w.clone(), tiny["lr"], 0.3, client.keep["v"].clone(), w.clone()
    for i, batch in enumerate(client.batches()):
        mixed = alpha * v + (1 - alpha) * common
        g, at_mixed = gradient(model, common, batch), gradient(model, mixed, batch)
        change = lr * float((v - common) @ at_mixed) if adaptive and i == 0 else 0.0
        v, common, alpha = v - lr * alpha * at_mixed, common - lr * g, min(max(alpha - change, 0.0), 1.0)

    method = APFL(adaptive=adaptive, alpha=0.3)
    reply = method.fit(client, Message(theta=received))
    torch.testing.assert_close(reply.theta, common, rtol=0, atol=1e-12)
    torch.testing.assert_close(client.keep["v"], v, rtol=0, atol=1e-12)
    torch.testing.assert_close(client.model.read(), alpha * v + (1 - alpha) * common, rtol=0, atol=1e-12)
    # what the client uses mixes in the newest w, not the one it trained with
    mixed = method.personal(client, Message(theta=received))
    torch.testing.assert_close(mixed, alpha * v + (1 - alpha) * received, rtol=0, atol=1e-12)


@pytest.mark.parametrize("slope", [-1e6, 1e6])
def test_alpha_stays_a_share(tiny: dict[str, Any], slope: float) -> None:
    client, _, w = client_in_float64(tiny)
    client.keep["v"] = w + slope * (client.keep["v"] - w)
    APFL().fit(client, Message(theta=w))
    assert float(client.keep["alpha"]) in (0.0, 1.0)


@pytest.mark.parametrize(("alpha", "adaptive"), [(0.9, True), (0.4, True), (0.4, False)])
def test_a_round_of_pfllib_written_out(tiny: dict[str, Any], alpha: float, adaptive: bool) -> None:
    """Both models step by their own gradients; alpha after every batch, by the new v − w and the old gradients."""
    client, model, w = client_in_float64(tiny, alpha)
    received, lr, v, share, shares = w.clone(), tiny["lr"], client.keep["v"].clone(), alpha, []
    for batch in client.batches():
        at_w, at_v = gradient(model, w, batch), gradient(model, v, batch)
        w, v = w - lr * at_w, v - lr * at_v
        if adaptive:
            slope = float((v - w) @ (share * at_v + (1 - share) * at_w)) + 0.02 * share
            share = min(max(share - lr * slope, 0.0), 1.0)
        shares.append(share)
    assert len(set(shares)) == (len(shares) if adaptive else 1)
    mixed = share * v + (1 - share) * w

    method = APFL(form="pfllib", alpha=alpha, adaptive=adaptive)
    reply = method.fit(client, Message(theta=received))
    torch.testing.assert_close(reply.theta, w, rtol=0, atol=1e-12)
    assert float(client.keep["alpha"]) == pytest.approx(share, abs=1e-12)
    for used in (client.keep["v"], client.model.read(), method.personal(client, Message(theta=received))):
        torch.testing.assert_close(used, mixed, rtol=0, atol=1e-12)
