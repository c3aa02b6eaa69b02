"""FedAS: its alignment and its weights against the equations, and what it is without either."""

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import at_work, loss_gradient, noisy, sgd_step

from comity import Config
from comity.engine import run
from comity.methods import FedAS, Message
from helpers import Options, assert_reproducible, build, client_of, keeps, used


def test_a_round_written_out(tiny: Options) -> None:
    client, model, method = at_work(tiny, {"name": "FedAS", "align_epochs": 2, "align_lr": 0.05}, 1)
    own, received = (noisy(model.read("body"), seed, 0.2) for seed in (1, 2))
    client.keep["own"] = own
    train = client.data.train
    model.write(own, "body")
    with torch.no_grad():
        z = model.features(train.x)
    prototypes = {int(k): z[train.y == k].mean(0) for k in train.y.unique()}
    model.write(received, "body")
    for x, y in client.batches(2):
        z = model.features(x)
        mse = torch.nn.functional.mse_loss
        loss = sum(mse(z[y == k], prototypes[int(k)].expand_as(z[y == k])) for k in y.unique())
        sgd_step(loss, model.parameters("body"), 0.05)
    aligned = model.read()
    for x, y in client.batches():
        sgd_step(model.loss(x, y), model.parameters(), client.lr)
    fisher = sum(float(loss_gradient(model, x, y).square().sum()) for x, y in client.batches(1))

    torch.testing.assert_close(method.personal(client, Message(theta=received)), aligned, rtol=0, atol=1e-5)
    reply = method.fit(client, Message(theta=received))
    torch.testing.assert_close(reply.theta, model.read("body"), rtol=0, atol=1e-5)
    torch.testing.assert_close(client.keep["own"], model.read("body"), rtol=0, atol=1e-5)
    torch.testing.assert_close(client.keep["personal"], model.read("head"), rtol=0, atol=1e-5)
    assert reply.fisher == pytest.approx(fisher, rel=1e-3)


def test_clients_count_by_their_fisher_information(tiny: Options) -> None:
    site, server = build(Config(**tiny, method="FedAS"))
    replies = {cid: site.method.fit(client_of(site, cid), site.method.send(server, cid)) for cid in range(3)}
    for reply, fisher in zip(replies.values(), (1.0, 0.0, 3.0), strict=True):
        reply.fisher = fisher
    before = server.theta
    server.method.merge(server, replies)
    wanted = 0.25 * replies[0].theta + 0.75 * replies[2].theta
    torch.testing.assert_close(server.theta, wanted, rtol=0, atol=1e-6)
    assert not torch.equal(server.theta, before)
    for reply in replies.values():
        reply.fisher = 0.0  # nobody has any: by size
    server.method.merge(server, replies)
    assert torch.isfinite(server.theta).all()
    replies[0].fisher = -1.0
    assert "below 0" in site.method.objection(server, 0, replies[0])


@pytest.mark.parametrize("more", [{}, {"model": "resnet4", "lr": 0.01, "participation": 0.6}], ids=["mlp", "resnet4"])
def test_without_alignment_and_by_size_it_is_fedper(tiny: Options, more: dict[str, Any]) -> None:
    options = tiny | more
    plain = {"name": "FedAS", "align_epochs": 0, "weights": "size"}
    ours, theirs = run(**options, method=plain), run(**options, method="FedPer")
    assert all(torch.equal(a, b) for a, b in zip(used(ours), used(theirs), strict=True))
    for each in ({"align_epochs": 0}, {"weights": "size"}):  # each half does something
        assert not torch.equal(run(**options, method={"name": "FedAS"} | each).server.theta, theirs.server.theta)


def test_evaluation_leaves_no_trace(tiny: Options) -> None:
    often, once = (run(**tiny, method="FedAS", eval_every=every) for every in (1, 3))
    assert torch.equal(often.server.theta, once.server.theta)
    assert torch.equal(keeps(often)[0]["own"], keeps(once)[0]["own"])
    assert isinstance(often.site.method, FedAS)


def test_it_has_the_same_bits_for_any_number_of_workers_and_resumed(tiny: Options, tmp_path: Path) -> None:
    assert_reproducible(tiny | {"participation": 0.6, "method": "FedAS"}, tmp_path / "run")
