"""FedBN: what stays with the client, what is averaged, and what it is without BatchNorm."""

from typing import Any

import torch
from by_hand import sgd_step
from torch import nn

from comity import Config
from comity.engine import run
from comity.methods import Message
from helpers import client_of, keeps, site_of

RESNET: dict[str, Any] = {"model": "resnet4", "rounds": 2, "clients": 3, "lr": 0.01}


def shifted(tiny: dict[str, Any]) -> dict[str, Any]:
    """Clients whose images differ in brightness, which BatchNorm sees."""
    return tiny | RESNET | {"data": tiny["data"] | {"feature_shift": 2.0}}


def test_batchnorm_stays_and_the_rest_is_averaged(tiny: dict[str, Any]) -> None:
    """One round by hand: every client trains all of the model; the shared vector holds no number of BatchNorm."""
    config = Config(**(shifted(tiny) | {"rounds": 1}), method="FedBN")
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
