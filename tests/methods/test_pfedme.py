"""pFedMe: a round against its equations, the inner problem solved, the server's step."""

import torch
from by_hand import at_work, loss_gradient

from comity import Config
from comity.engine import run
from comity.methods import Message
from helpers import Options, build, client_of, keeps, site_of, used


def test_a_round_written_out(tiny: Options) -> None:
    """K steps on each batch, from where the batch before ended, then w towards theta; every batch counts."""
    options = {"lam": 2.0, "K": 3, "personal_lr": 0.04, "eta": 0.1}
    client, model, method = at_work(tiny, {"name": "pFedMe"} | options, 1)
    received = model.read()
    theta, w, batches = received.clone(), received.clone(), list(client.batches())
    assert len(batches) > 1
    for batch in batches:
        for _ in range(3):
            model.write(theta)
            theta = theta - 0.04 * (loss_gradient(model, *batch) + 2.0 * (theta - w))
        w = w - 0.1 * 2.0 * (w - theta)

    reply = method.fit(client, Message(theta=received))
    torch.testing.assert_close(reply.theta, w, rtol=0, atol=1e-6)
    torch.testing.assert_close(client.keep["theta"], theta, rtol=0, atol=1e-6)
    assert torch.equal(client.model.read(), client.keep["theta"])
    assert not torch.allclose(w, theta, rtol=0, atol=1e-3)


def test_enough_steps_solve_the_inner_problem(tiny: Options) -> None:
    """∇f(theta) = lam (w − theta), and so w descends by the Moreau envelope's gradient lam (w − theta)."""
    options = {"lam": 15.0, "K": 400, "personal_lr": 0.05, "eta": 0.01}
    site = site_of(Config(**(tiny | {"batch_size": 100}), method={"name": "pFedMe"} | options))
    for cid in range(1, 5):  # client 0's solution lies on a kink of a ReLU, where there is no gradient to compare
        client = client_of(site, cid)
        w = client.model.read()
        reply = site.method.fit(client, Message(theta=w))
        theta, train = client.keep["theta"], client.data.train
        slope = loss_gradient(client.model, train.x, train.y)
        assert slope.norm() > 0.1
        torch.testing.assert_close(slope, 15.0 * (w - theta), rtol=0, atol=1e-5)
        torch.testing.assert_close(reply.theta, w - 0.01 * slope, rtol=0, atol=1e-6)


def test_beta_0_leaves_the_global_model_and_beta_1_is_the_average(tiny: Options) -> None:
    one = tiny | {"rounds": 1}
    still = run(**tiny, method={"name": "pFedMe", "beta": 0.0})
    assert torch.equal(still.server.theta, still.site.model().read())

    site, server = build(Config(**one, method="pFedMe"))
    server.round = 1
    replies = server.fit(server.clients)
    sizes = torch.tensor([float(reply.size) for reply in replies.values()])
    average = (sizes / sizes.sum()) @ torch.stack([reply.theta for reply in replies.values()])
    start = site.model().read()
    for beta in (0.5, 1.0, 2.0):
        done = run(**one, method={"name": "pFedMe", "beta": beta})
        torch.testing.assert_close(done.server.theta, start + beta * (average - start), rtol=0, atol=1e-6)
    assert not torch.equal(run(**one, method="pFedMe").server.theta, start)


def test_a_beta_above_1_does_not_stretch_statistics(tiny: Options) -> None:
    options = tiny | {"model": "resnet4", "rounds": 1, "clients": 2, "lr": 0.01}
    once, twice = (run(**options, method={"name": "pFedMe", "beta": beta, "K": 1}) for beta in (1.0, 2.0))
    size = once.server.layout.size
    assert torch.equal(once.server.theta[size:], twice.server.theta[size:])
    assert not torch.equal(once.server.theta[:size], twice.server.theta[:size])


def test_a_clients_model_is_its_theta_or_before_its_first_round_the_common_one(tiny: Options) -> None:
    done = run(**(tiny | {"rounds": 2, "participation": 0.4}), method="pFedMe")
    took_part = {cid for record in done.records for cid in record.cohort}
    assert 0 < len(took_part) < tiny["clients"]
    for cid, model in enumerate(used(done)):
        if cid in took_part:
            assert torch.equal(model, keeps(done)[cid]["theta"])
            assert not torch.equal(model, done.server.theta)
        else:
            assert torch.equal(model, done.server.theta)
