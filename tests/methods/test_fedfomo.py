"""FedFomo: its weights and mixture against the formula, whose models are sent, and what is remembered of them."""

from typing import Any

import torch
from by_hand import at_work, kept, loss_gradient, same, server_of
from torch import Tensor

from comity.engine import Server, run
from comity.methods.fedfomo import OthersModels, WeighedReply


def others(theta: Tensor, count: int, scale: float = 0.05) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [theta + scale * torch.randn(len(theta), generator=random) for _ in range(count)]


def message(models: dict[int, Tensor]) -> OthersModels:
    return OthersModels(ids=torch.tensor(list(models)), models=torch.stack(list(models.values())))


def reply_of(theta: Tensor, ids: list[int], weights: Tensor) -> WeighedReply:
    return WeighedReply(theta=theta, size=1, ids=torch.tensor(ids, dtype=torch.int64), weights=weights)


def test_weights_and_mixture_against_the_formula(tiny: dict[str, Any]) -> None:
    """(L(before) − L(theta_n)) / ‖theta_n − before‖ by validation; the positive ones mix, then the client trains."""
    client, model, method = at_work(tiny, "FedFomo", 1)
    val = client.data.val
    before = model.read()
    downhill = loss_gradient(model, val.x, val.y)
    own, near, far = before - 0.2 * downhill, before - 0.05 * downhill, before + 0.3 * downhill
    client.keep |= {"before": before, "own": own}

    def loss(theta: Tensor) -> float:
        model.write(theta)
        return float(model.loss(val.x, val.y).detach())

    raw = [(loss(before) - loss(theta)) / float((theta - before).norm()) for theta in (own, near, far)]
    assert min(raw[:2]) > 0 > raw[2]
    share = raw[0] / (raw[0] + raw[1])
    mixed = before + share * (own - before) + (1 - share) * (near - before)

    reply = method.fit(client, message({4: near, 2: far}))
    torch.testing.assert_close(client.keep["before"], mixed, rtol=0, atol=1e-5)
    torch.testing.assert_close(reply.weights, torch.tensor(raw[1:], dtype=torch.float64), rtol=1e-3, atol=0)
    assert reply.ids.tolist() == [4, 2]
    model.write(client.keep["before"])
    for x, y in client.batches():
        model.write(model.read() - tiny["lr"] * loss_gradient(model, x, y))
    torch.testing.assert_close(client.keep["own"], model.read(), rtol=0, atol=1e-6)
    assert torch.equal(reply.theta, client.keep["own"])
    assert torch.equal(client.model.read(), client.keep["own"])
    assert torch.equal(method.personal(client, message({4: near})), client.keep["own"])


def test_when_nobody_does_better_the_client_goes_on_with_its_own_model(tiny: dict[str, Any]) -> None:
    client, _, method = at_work(tiny, "FedFomo")
    val = client.data.val
    before = client.model.read()
    uphill = loss_gradient(client.model, val.x, val.y)
    own = client.keep["own"] = before + 0.3 * uphill
    reply = method.fit(client, message({1: before + 0.5 * uphill}))
    assert torch.equal(client.keep["before"], own)
    assert not torch.equal(client.keep["own"], own)
    assert float(reply.weights) < 0


def test_the_same_model_again_weighs_nothing_and_a_broken_one_does_no_harm(tiny: dict[str, Any]) -> None:
    client, _, method = at_work(tiny, "FedFomo")
    before = client.model.read()
    reply = method.fit(client, message({1: before.clone(), 2: torch.full_like(before, 1e30)}))
    assert float(reply.weights[0]) == 0.0
    assert torch.isfinite(reply.weights).all()
    assert torch.equal(client.keep["before"], before)


def server_with(tiny: dict[str, Any], heard: list[int], **options: Any) -> Server:
    server = server_of(tiny, "FedFomo", **options)
    server.round = 1
    theta = others(server.theta, 5)
    nothing = torch.tensor([], dtype=torch.float64)
    server.method.merge(server, {cid: reply_of(theta[cid], [], nothing) for cid in heard})
    return server


def test_nothing_is_sent_before_anybody_answered(tiny: dict[str, Any]) -> None:
    server = server_with(tiny, [])
    sent = server.method.send(server, 0)
    assert (len(sent.ids), sent.models.numel()) == (0, 0)
    first = run(**(tiny | {"rounds": 1}), method="FedFomo")
    alone = run(**(tiny | {"rounds": 1, "val_share": 0.2}), method="Local", local_on="train")
    assert same(kept(first, "own"), kept(alone))


def test_the_models_that_helped_most_are_sent(tiny: dict[str, Any]) -> None:
    server = server_with(tiny, [0, 1, 2, 4], models=2, epsilon=0.0)
    weights = torch.tensor([-1.0, 3.0, 2.0], dtype=torch.float64)
    server.method.merge(server, {3: reply_of(server.theta, [0, 2, 4], weights)})
    sent = server.method.send(server, 3)
    assert set(sent.ids.tolist()) == {2, 4}
    assert torch.equal(sent.models, server.store["W"][sent.ids])
    # signed weights add up: what hurt may come to help, and falls behind what was never tried until then
    assert server.store["helped"][3].tolist() == [-1, 0, 3, 0, 2]
    server.method.merge(server, {3: reply_of(server.theta, [0, 2], -2 * weights[:2])})
    assert server.store["helped"][3].tolist() == [1, 0, -3, 0, 2]
    assert set(server.method.send(server, 3).ids.tolist()) == {0, 4}


def test_exploration_is_random_falls_and_never_sends_ones_own_or_an_unknown_model(tiny: dict[str, Any]) -> None:
    server = server_with(tiny | {"clients": 5}, [0, 1, 2, 3], models=1, epsilon=1.0, epsilon_decay=0.02)
    server.store["helped"][0] = torch.tensor([9.0, 0.0, 5.0, 0.0, 9.0], dtype=torch.float64)

    def sent(round: int) -> int:
        server.round = round
        (chosen,) = server.method.choose(server, 0)
        assert server.method.choose(server, 0) == [chosen]  # to look is not to draw
        return int(chosen)

    early, late = {sent(round) for round in range(1, 15)}, {sent(round) for round in range(51, 65)}
    assert early == {1, 2, 3}
    assert late == {2}
