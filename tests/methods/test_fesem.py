"""FeSEM: clients belong to the nearest centre, centres are the average of their clients."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import drawn, server_of
from planted import group, planted
from torch import Tensor

from comity.engine import run
from comity.methods import Reply
from comity.methods._clusters import k_means
from helpers import build

TWO = {"name": "FeSEM", "clusters": 2}


def replies_of(rows: dict[int, Tensor], sizes: dict[int, int] | None = None) -> dict[int, Reply]:
    return {cid: Reply(theta=row, size=(sizes or {}).get(cid, 1)) for cid, row in rows.items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_planted_clusters_are_found(tiny: dict[str, Any], seed: int) -> None:
    config, federation = planted(tiny | {"method": TWO, "seed": seed})
    _, server = build(config, federation)
    server.method.begin(server)
    for _ in range(3):
        server.step()
    cluster = server.store["cluster"]
    groups = torch.tensor([group(cid) for cid in server.clients])
    assert torch.equal(cluster, groups) or torch.equal(cluster, 1 - groups)


def test_expectation_and_maximisation(tiny: dict[str, Any]) -> None:
    """r_i = argmin_k ‖w_i − c_k‖² with the old centres, then c_k the mean of its clients by size, written out."""
    server = server_of(tiny, "FeSEM", clusters=3)
    P = len(server.theta)
    centres = torch.stack([server.theta + k * drawn(P, seed=9) for k in range(3)])
    server.store["centres"], server.store["cluster"] = centres.clone(), torch.tensor([0, 1, 0, 0, 1])
    rows = {cid: centres[k] + 0.1 * drawn(P, seed=cid) for cid, k in {0: 1, 1: 1, 3: 2, 4: 1}.items()}
    server.method.merge(server, replies_of(rows, {0: 1, 1: 2, 3: 1, 4: 1}))

    assert server.store["cluster"].tolist() == [1, 1, 0, 2, 1]  # client 2 was absent and stays
    mean = (rows[0] + 2 * rows[1] + rows[4]) / 4
    torch.testing.assert_close(server.store["centres"][1], mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(server.store["centres"][2], rows[3], rtol=0, atol=1e-5)


def test_an_empty_cluster_is_given_the_farthest_client(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FeSEM", clusters=2)
    P = len(server.theta)
    server.store["centres"] = torch.stack([server.theta, server.theta + 100])
    server.store["cluster"] = torch.tensor([0, 0, 0, 0, -1])
    rows = {cid: server.theta + far * drawn(P, seed=cid) for cid, far in {0: 0.1, 1: 0.3, 3: 0.2}.items()}
    server.method.merge(server, replies_of(rows))
    assert server.store["cluster"].tolist() == [0, 1, 0, 0, -1]
    assert torch.equal(server.store["centres"][1], rows[1])
    torch.testing.assert_close(server.store["centres"][0], (rows[0] + rows[3]) / 2, rtol=0, atol=1e-6)


def test_a_cluster_of_absent_clients_is_not_empty(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FeSEM", clusters=2)
    P = len(server.theta)
    centres = torch.stack([server.theta, server.theta + 100])
    server.store["centres"], server.store["cluster"] = centres.clone(), torch.tensor([0, 0, 0, 1, -1])
    server.method.merge(server, replies_of({cid: server.theta + drawn(P, seed=cid) for cid in (0, 1)}))
    assert server.store["cluster"].tolist() == [0, 0, 0, 1, -1]
    assert torch.equal(server.store["centres"][1], centres[1])


def test_a_client_not_heard_of_starts_between_the_centres(tiny: dict[str, Any]) -> None:
    """Three clients in the first cluster, one in the second: their mean, so that neither holds on to the newcomer."""
    server = server_of(tiny, "FeSEM", clusters=2)
    assert torch.equal(server.method.send(server, 4).theta, server.theta)
    centres = torch.stack([server.theta, server.theta + 4])
    server.store["centres"], server.store["cluster"] = centres, torch.tensor([0, 0, 0, 1, -1])
    server.method.merge(server, replies_of({0: centres[0], 3: centres[1]}))
    torch.testing.assert_close(server.method.send(server, 4).theta, centres[0] + 1, rtol=0, atol=1e-5)
    torch.testing.assert_close(server.method.send(server, 3).theta, centres[1], rtol=0, atol=1e-5)


def test_fewer_clients_than_clusters_in_the_first_round(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FeSEM", clusters=4)
    rows = {cid: server.theta + drawn(len(server.theta), seed=cid) for cid in (1, 3)}
    server.method.merge(server, replies_of(rows))
    cluster = server.store["cluster"]
    assert (cluster >= 0).tolist() == [False, True, False, True, False]
    assert cluster[1] != cluster[3]
    for cid, row in rows.items():
        torch.testing.assert_close(server.method.send(server, cid).theta, row, rtol=0, atol=1e-6)


def test_identical_clients_are_one_cluster(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FeSEM", clusters=2)
    server.method.merge(server, replies_of(dict.fromkeys(range(5), server.theta + 1)))
    assert len(server.store["cluster"].unique()) == 1


def test_k_means_is_the_best_partition() -> None:
    """Against all partitions in two of nine points in the plane, five far apart and four together."""
    for seed in range(12):
        points = drawn(9, 2, seed=seed).double() * torch.tensor([[1.0]] * 5 + [[0.1]] * 4) + torch.tensor(
            [[0.0]] * 5 + [[1.5]] * 4
        )
        Q = torch.cdist(points, points).square()

        def spread(labels: tuple[int, ...], points: Tensor = points) -> float:
            parts = [points[torch.tensor(labels) == k] for k in (0, 1)]
            return sum(float((part - part.mean(0)).square().sum()) for part in parts if len(part))

        best = min(map(spread, itertools.product((0, 1), repeat=9)))
        found = k_means(Q, 2, torch.Generator().manual_seed(seed))
        assert spread(tuple(found.tolist())) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("method", ["FeSEM", "IFCA"])
def test_a_newcomer_is_given_the_cluster_of_clients_like_it(tiny: dict[str, Any], method: str) -> None:
    """Each newcomer is a copy of a client, of another group each, and is judged like it."""
    config, federation = planted(tiny | {"rounds": 12, "lr": 0.2, "seed": 1})
    twins = (replace(federation.clients[0], id=8), replace(federation.clients[1], id=9))
    federation = replace(federation, clients=(*federation.clients, *twins), client_names=())
    config = config.with_(clients=10, newcomers=2, method={"name": method, "clusters": 2})
    done = run(config, federation=federation)
    newcomers = done.result.newcomers
    assert newcomers.clients["loss"] == done.columns["loss"][:2]
    assert min(done.columns["L-acc"][:2]) > 0.7
