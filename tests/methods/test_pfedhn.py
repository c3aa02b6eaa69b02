"""pFedHN: the server steps through its hypernetwork towards what clients made of their models."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from comity import Config
from comity.engine import Server, run
from comity.methods import Reply
from helpers import build, keeps, used

SMALL = {"name": "pFedHN", "width": 8, "hidden": 2}


def server_of(tiny: dict[str, Any], **options: Any) -> Server:
    _, server = build(Config(**tiny, method=SMALL | options))
    server.method.begin(server)
    return server


def twin(server: Server) -> tuple[nn.Sequential, nn.Parameter]:
    """The same hypernetwork out of torch's own modules: a layer, then ReLU and layer in turn, then a layer."""
    store, layers = server.store, []
    for k in range(4):
        weight = store[f"phi/{k}/weight"]
        linear = nn.Linear(*weight.shape)
        with torch.no_grad():
            linear.weight.copy_(weight.T)
            linear.bias.copy_(store[f"phi/{k}/bias"])
        layers += [nn.ReLU()] * (k in (1, 2)) + [linear]
    return nn.Sequential(*layers), nn.Parameter(store["v"].clone())


def replies_of(server: Server, cids: list[int], round: int) -> dict[int, Reply]:
    random = torch.Generator().manual_seed(round)
    sent = {cid: server.method.send(server, cid).theta for cid in cids}
    return {cid: Reply(theta=t + torch.randn(len(t), generator=random), size=cid + 1) for cid, t in sent.items()}


@pytest.mark.parametrize(("clip", "together"), [(0.0, 20), (2.0, 20), (0.0, 2)])
def test_the_step_is_the_gradient_through_the_hypernetwork(
    tiny: dict[str, Any], clip: float, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By autograd of Σ_i ⟨h(v_i; phi), Δ_i⟩ and torch's own SGD, over three rounds of all clients.

    The mean gradient times as many rates as there are clients, up to a limit: a step for each, as in the paper.
    """
    monkeypatch.setattr("comity.methods.pfedhn.MOST_JOINT_STEPS", together)
    server = server_of(tiny, server_clip=clip, server_lr=0.01, server_weight_decay=0.01)
    hyper, v = twin(server)
    cids = server.clients
    groups = [{"params": hyper.parameters(), "lr": 0.01 * min(len(cids), together)}, {"params": [v], "lr": 0.01}]
    sgd = torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01)
    for round in range(3):
        replies = replies_of(server, cids, round)
        delta = hyper(v).detach() - torch.stack([replies[cid].theta for cid in cids])
        sgd.zero_grad()
        (hyper(v) * delta).sum().backward()
        for parameter in hyper.parameters():
            parameter.grad /= len(cids)  # averaged over clients; v_i has its own gradient
        if clip:
            assert nn.utils.clip_grad_norm_([*hyper.parameters(), v], clip) > clip
        sgd.step()
        server.method.merge(server, replies)
        torch.testing.assert_close(server.store["v"], v.detach(), rtol=1e-5, atol=1e-5)
        for k, layer in enumerate(layer for layer in hyper if isinstance(layer, nn.Linear)):
            torch.testing.assert_close(server.store[f"phi/{k}/weight"], layer.weight.detach().T, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(server.store[f"phi/{k}/bias"], layer.bias.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(server.store["models"], hyper(v).detach(), rtol=1e-5, atol=1e-5)


def test_absent_clients_keep_their_embedding(tiny: dict[str, Any]) -> None:
    """Also against momentum and decay; their models change with the hypernetwork."""
    server = server_of(tiny)
    server.method.merge(server, replies_of(server, server.clients, 0))
    before = {name: tensor.clone() for name, tensor in server.store.items()}
    server.method.merge(server, replies_of(server, [1, 4], 1))
    for name in ("v", "momentum/v"):
        same = (server.store[name] == before[name]).all(1)
        assert same.tolist() == [True, False, True, True, False]
    assert not (server.store["models"] == before["models"]).all(1).any()


def test_models_start_around_the_initial_one(tiny: dict[str, Any]) -> None:
    server = server_of(tiny)
    models = server.store["models"]
    assert len(models.unique(dim=0)) == 5
    assert server.store["v"].shape == (5, 2)  # 1 + 5/4
    assert torch.equal(server.store["phi/3/bias"], server.theta)
    again = server_of(tiny)
    assert torch.equal(again.store["models"], models)
    assert not torch.equal(server_of(tiny | {"seed": 1}).store["v"], server.store["v"])


def test_a_client_uses_what_the_hypernetwork_makes(tiny: dict[str, Any]) -> None:
    done = run(**(tiny | {"rounds": 2, "participation": 0.4}), method=SMALL)
    assert torch.equal(torch.stack(used(done)), done.server.store["models"])
    for other in ("Local", "FedAvg"):
        assert run(**(tiny | {"rounds": 2, "participation": 0.4}), method=other).columns["loss"] != done.columns["loss"]


def test_with_a_local_head_it_makes_the_body(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method=SMALL | {"local_head": True})
    model = done.site.model()
    assert done.server.store["models"].shape == (5, model.size("body"))
    assert done.result.bytes_per_round.up == 5 * 4 * model.size("body")
    heads = [keep["personal"] for keep in keeps(done).values()]
    assert all(len(head) == model.size("head") for head in heads)
    assert len(torch.stack(heads).unique(dim=0)) == 5


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_with_batchnorm(tiny: dict[str, Any], buffers: str) -> None:
    """Statistics are averaged by size, never made by the hypernetwork."""
    options = tiny | {"model": "resnet4", "rounds": 1, "clients": 3, "buffers": buffers}
    done = run(**options, method=SMALL)
    size = done.server.layout.size
    assert done.server.store["models"].shape == (3, size)
    assert torch.isfinite(done.server.store["models"]).all()
    if buffers == "average":
        server = server_of(options)
        replies = server.fit(server.clients)
        for cid, reply in replies.items():
            reply.size = cid + 1
        tails = torch.stack([replies[cid].theta[size:] for cid in server.clients])
        server.method.merge(server, replies)
        expected = (tails[0] + 2 * tails[1] + 3 * tails[2]) / 6
        torch.testing.assert_close(server.method.send(server, 1).theta[size:], expected, rtol=1e-5, atol=1e-6)


def test_a_hypernetwork_of_one_layer_and_an_embedding_of_given_size(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, hidden=0, embedding=7)
    assert server.store["v"].shape == (5, 7)
    store: dict[str, Tensor] = server.store
    made = (store["v"] @ store["phi/0/weight"] + store["phi/0/bias"]) @ store["phi/1/weight"] + store["phi/1/bias"]
    torch.testing.assert_close(store["models"], made, rtol=1e-5, atol=1e-6)
