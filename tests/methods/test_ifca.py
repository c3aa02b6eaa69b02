"""IFCA: clients find their cluster by loss, clusters are combined apart."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planted import group, planted
from torch import Tensor

from comity import ComityError, Config
from comity.engine import build, run, site_of
from comity.methods import IFCA
from comity.methods.ifca import Centres, ClusterReply
from comity.results.schema import Traffic
from helpers import client_of

TWO = {"name": "IFCA", "clusters": 2}


def near(theta: Tensor, seed: int) -> Tensor:
    return theta + 0.3 * torch.randn(len(theta), generator=torch.Generator().manual_seed(seed))


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
    config = Config(**tiny, method={"name": "IFCA", "clusters": 3})
    site = site_of(config, trainer="autograd")
    client, model = client_of(site, 1), site.model()
    centres = torch.stack([near(model.read(), seed) for seed in range(3)])
    losses = []
    for centre in centres:
        model.write(centre)
        with torch.no_grad():
            losses.append(float(F.cross_entropy(model.net(client.data.train.x), client.data.train.y)))
    k = losses.index(min(losses))
    assert k != 0  # where no choice would lead

    model.write(centres[k])
    for x, y in client.batches(1):
        grads = torch.autograd.grad(model.loss(x, y), model.parameters())
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p.add_(g, alpha=-config.lr)
    assert torch.equal(site.method.personal(client, Centres(centres=centres)), centres[k])
    reply = site.method.fit(client, Centres(centres=centres))
    assert reply.cluster == k
    assert torch.equal(reply.theta, model.read())
    assert client.origin is not None
    assert torch.equal(client.origin, centres[k])


def test_a_model_that_broke_is_not_chosen(tiny: dict[str, Any]) -> None:
    site = site_of(Config(**tiny, method=TWO))
    client = client_of(site)
    theta = client.model.read()
    assert site.method.fit(client, Centres(centres=torch.stack([theta * torch.nan, theta]))).cluster == 1


def test_clusters_are_averaged_apart_and_an_empty_one_stays(tiny: dict[str, Any]) -> None:
    _, server = build(Config(**tiny, method={"name": "IFCA", "clusters": 3}))
    server.method.begin(server)
    before = server.store["centres"].clone()
    members = {0: 2, 1: 0, 3: 2, 4: 0}
    sizes = {0: 10, 1: 30, 3: 20, 4: 10}
    replies = {
        cid: ClusterReply(theta=near(server.theta, cid), size=sizes[cid], cluster=k) for cid, k in members.items()
    }
    server.method.merge(server, replies)
    after = server.store["centres"]
    theta = {cid: reply.theta for cid, reply in replies.items()}
    torch.testing.assert_close(after[0], 0.75 * theta[1] + 0.25 * theta[4], rtol=0, atol=1e-6)
    torch.testing.assert_close(after[2], theta[0] / 3 + theta[3] * 2 / 3, rtol=0, atol=1e-6)
    assert torch.equal(after[1], before[1])


def test_the_first_models_differ_and_have_the_initial_numbers(tiny: dict[str, Any]) -> None:
    def first(seed: int) -> tuple[Tensor, Any]:
        _, server = build(Config(**(tiny | {"model": "resnet4", "seed": seed}), method="IFCA"))
        server.method.begin(server)
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


def test_one_cluster_is_fedavg(tiny: dict[str, Any]) -> None:
    part = tiny | {"participation": 0.6}
    alone = run(**part, method={"name": "IFCA", "clusters": 1})
    fedavg = run(**part)
    assert torch.equal(alone.server.store["centres"][0], fedavg.server.theta)
    assert alone.columns["L-acc"] == fedavg.columns["L-acc"]
    assert not torch.equal(run(**part, method=TWO).server.store["centres"][0], fedavg.server.theta)


def test_it_is_not_local(tiny: dict[str, Any]) -> None:
    done = run(**(tiny | {"rounds": 2}), method=TWO)
    local = run(**(tiny | {"rounds": 2}), method="Local")
    assert done.columns["loss"] != local.columns["loss"]


def test_clients_that_never_took_part_are_judged_with_their_best_model(tiny: dict[str, Any]) -> None:
    done = run(**(tiny | {"rounds": 1, "participation": 0.2, "dropout": 0.3}), method=TWO)
    assert done.columns["client"] == list(range(5))
    assert torch.isfinite(torch.tensor(done.columns["loss"])).all()


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_batchnorm(tiny: dict[str, Any], buffers: str) -> None:
    options = tiny | {"model": "resnet4", "rounds": 2, "clients": 3, "buffers": buffers}
    done = run(**options, method=TWO)
    size = done.site.model().size("shared")
    assert done.server.store["centres"].shape == (2, size)
    assert done.result.bytes_per_round == Traffic(down=3 * 2 * size * 4, up=3 * size * 4)


def test_senseless_options_are_refused() -> None:
    with pytest.raises(ComityError, match=r"method\.clusters must be at least 1, got 0"):
        IFCA(clusters=0).check()
