"""IFCA: clients find their cluster by loss, clusters are combined apart."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import at_work, noisy, server_of, sgd_step
from planted import group, planted
from torch import Tensor

from comity.methods.ifca import Centres, ClusterReply
from helpers import build

TWO = {"name": "IFCA", "clusters": 2}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_planted_clusters_are_found(tiny: dict[str, Any], seed: int) -> None:
    """The first choices are wrong, for they are made between two untrained models; the last are right."""
    config, federation = planted(tiny | {"method": TWO, "rounds": 6, "seed": seed})
    _, server = build(config, federation)
    server.method.begin(server)
    clusters = []
    for _ in range(config.rounds):
        server.step()
        clusters.append({frozenset(entry.ids) for entry in server.weights})
        assert {entry.group for entry in server.weights} <= {"cluster 0", "cluster 1"}
    found = {frozenset(c for c in server.clients if group(c) == g) for g in (0, 1)}
    assert clusters[0] != found
    assert clusters[-1] == found


def test_a_client_trains_the_model_with_the_least_loss(tiny: dict[str, Any]) -> None:
    client, model, method = at_work(tiny, {"name": "IFCA", "clusters": 3}, 1, trainer="autograd")
    centres = torch.stack([noisy(model.read(), seed) for seed in range(3)])
    losses = []
    for centre in centres:
        model.write(centre)
        with torch.no_grad():
            losses.append(float(F.cross_entropy(model.net(client.data.train.x), client.data.train.y)))
    k = losses.index(min(losses))
    assert k != 0  # where no choice would lead

    model.write(centres[k])
    for x, y in client.batches(1):
        sgd_step(model.loss(x, y), model.parameters(), client.lr)
    assert torch.equal(method.personal(client, Centres(centres=centres)), centres[k])
    reply = method.fit(client, Centres(centres=centres))
    assert reply.cluster == k
    assert torch.equal(reply.theta, model.read())
    assert torch.equal(client.origin, centres[k])


def test_a_model_that_broke_is_not_chosen(tiny: dict[str, Any]) -> None:
    client, _, method = at_work(tiny, TWO)
    theta = client.model.read()
    assert method.fit(client, Centres(centres=torch.stack([theta * torch.nan, theta]))).cluster == 1


def test_clusters_are_averaged_apart_and_an_empty_one_stays(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "IFCA", clusters=3)
    before = server.store["centres"].clone()
    members = {0: 2, 1: 0, 3: 2, 4: 0}
    sizes = {0: 10, 1: 30, 3: 20, 4: 10}
    replies = {
        cid: ClusterReply(theta=noisy(server.theta, cid), size=sizes[cid], cluster=k) for cid, k in members.items()
    }
    server.method.merge(server, replies)
    after = server.store["centres"]
    theta = {cid: reply.theta for cid, reply in replies.items()}
    torch.testing.assert_close(after[0], 0.75 * theta[1] + 0.25 * theta[4], rtol=0, atol=1e-6)
    torch.testing.assert_close(after[2], theta[0] / 3 + theta[3] * 2 / 3, rtol=0, atol=1e-6)
    assert torch.equal(after[1], before[1])


def test_the_first_models_differ_and_have_the_initial_numbers(tiny: dict[str, Any]) -> None:
    def first(seed: int) -> tuple[Tensor, Any]:
        server = server_of(tiny | {"model": "resnet4", "seed": seed}, "IFCA")
        return server.store["centres"], server

    centres, server = first(0)
    assert len(centres) == 4
    assert torch.equal(centres[0], server.theta)
    for layer in server.layout.layers:
        pieces = centres[:, layer.start : layer.stop]
        assert torch.equal(pieces.sort(1).values, pieces[:1].sort(1).values.expand(4, -1))
        if len(pieces[0].unique()) > 1:  # BatchNorm's are ones and zeros
            assert len(pieces.unique(dim=0)) > 1
    assert len(centres.unique(dim=0)) == 4
    assert torch.equal(centres[:, server.layout.size :], server.theta[server.layout.size :].expand(4, -1))
    assert torch.equal(first(0)[0], centres)
    assert not torch.equal(first(1)[0][1], centres[1])
