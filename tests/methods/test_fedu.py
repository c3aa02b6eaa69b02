"""FedU: the server's step against the graph Laplacian, over those present, and that it is not Local."""

from typing import Any

import pytest
import torch
from by_hand import server_of

from comity.engine import Server
from comity.methods import Reply


def replies_of(server: Server, cids: list[int]) -> dict[int, Reply]:
    random = torch.Generator().manual_seed(0)
    return {cid: Reply(theta=torch.randn(len(server.theta), generator=random), size=1 + cid) for cid in cids}


@pytest.mark.parametrize("graph", ["complete", "random"])
def test_the_step_against_the_laplacian(tiny: dict[str, Any], graph: str) -> None:
    """w_k ← w_k − c_k Σ_l a_kl (w_k − w_l) with c_k = step / degree, over those that answered."""
    server = server_of(tiny, "FedU", step=0.4, graph=graph)
    A, start = server.store["A"], server.theta.clone()
    replies = replies_of(server, [4, 0, 3])
    server.method.merge(server, replies)
    for k in (0, 3, 4):
        w, pull, degree = replies[k].theta, torch.zeros_like(server.theta), 0.0
        for l in (0, 3, 4):
            if l != k:
                pull += float(A[k, l]) * (w - replies[l].theta)
                degree += float(A[k, l])
        assert degree > 0
        torch.testing.assert_close(server.store["W"][k], w - 0.4 / degree * pull, rtol=0, atol=1e-5)
        assert server.method.send(server, k).theta.tolist() == server.store["W"][k].tolist()
    for absent in (1, 2):
        assert torch.equal(server.store["W"][absent], start)


def test_a_client_without_neighbours_stays(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FedU", step=1.0)
    alone = replies_of(server, [2])
    server.method.merge(server, alone)
    assert torch.equal(server.store["W"][2], alone[2].theta)
    server.store["A"][1] = server.store["A"][:, 1] = 0
    replies = replies_of(server, [0, 1, 2])
    server.method.merge(server, replies)
    assert torch.equal(server.store["W"][1], replies[1].theta)
    torch.testing.assert_close(server.store["W"][0], replies[2].theta)


def test_the_random_graph_is_symmetric_and_has_no_weak_edge(tiny: dict[str, Any]) -> None:
    A = server_of(tiny | {"clients": 12}, "FedU", graph="random").store["A"]
    assert torch.equal(A, A.mT)
    assert not A.diagonal().any()
    edges = A[A > 0]
    assert 0.25 <= float(edges.min()) < float(edges.max()) < 1
    assert 0 < int((A == 0).sum()) - 12 < 12 * 11 / 2
    assert torch.equal(server_of(tiny | {"clients": 12}, "FedU", graph="random").store["A"], A)
    assert not torch.equal(server_of(tiny | {"clients": 12, "seed": 1}, "FedU", graph="random").store["A"], A)
