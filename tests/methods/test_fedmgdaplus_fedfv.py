"""FedMGDA+ and FedFV as methods: their rules with the personal model of the FedPG papers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from comity import Config
from comity.engine import Server
from comity.methods import Reply
from helpers import build, site_of

METHODS = ["FedMGDA+", "FedFV"]


def opposed(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"data": tiny["data"] | {"label_shift": 0.9, "concept_shift": 1.0}}


def one_round(options: dict[str, Any], method: dict[str, Any]) -> tuple[Server, dict[int, Reply], Tensor, Tensor]:
    """The server, what clients sent, their updates, and how the server moved."""
    _, server = build(Config(**options, method=method))
    before = server.theta.clone()
    server.round = 1
    replies = server.fit(server.clients)
    server.method.merge(server, replies)
    U = torch.stack([replies[cid].theta for cid in server.clients]) - before
    return server, replies, U.double(), (server.theta - before).double()


def test_fedfv_projects_by_rising_loss(tiny: dict[str, Any]) -> None:
    """Written out from METHODS: only the largest loss's update is kept, everyone else's is projected in turn."""
    options = opposed(tiny)
    server, replies, U, moved = one_round(options, {"name": "FedFV", "alpha": 0.1, "tau": 0})
    site = site_of(Config(**options))
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
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-5)
