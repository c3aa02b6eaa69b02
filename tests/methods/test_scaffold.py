"""SCAFFOLD: a round against the equations, option II, c as a mean, and the optimum that FedAvg misses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import at_work, loss_gradient, noisy
from torch import Tensor

from comity import Config
from comity.engine import Client, Server, Site, run
from comity.methods import SCAFFOLD, Method
from comity.methods.scaffold import Control, ControlReply
from comity.nn import gradients_of
from helpers import Options, assert_reproducible, build, client_of, keeps


def test_a_round_written_out(tiny: Options) -> None:
    client, model, method = at_work(tiny, "SCAFFOLD", 1)
    theta, c, old = (noisy(model.read(), seed, scale) for seed, scale in ((1, 0.1), (2, 0.1), (3, 0.1)))
    client.keep["control"] = old
    y, lr, steps = theta.clone(), client.lr, 0
    for batch in client.batches():
        model.write(y)
        y = y - lr * (loss_gradient(model, *batch) - old + c)
        steps += 1
    assert steps > 1
    reply = method.fit(client, Control(theta=theta, control=c))
    torch.testing.assert_close(reply.theta, y, rtol=0, atol=1e-6)
    new = old - c + (theta - y) / (steps * lr)  # option II
    torch.testing.assert_close(client.keep["control"], new, rtol=0, atol=1e-5)
    assert torch.equal(reply.change, client.keep["control"] - old)


def test_the_mean_gradient_stays_one_with_momentum(tiny: Options) -> None:
    """(theta − y)/(K lr) would be several times as long."""
    client, model, method = at_work(tiny | {"momentum": 0.9, "epochs": 3, "lr": 0.001}, "SCAFFOLD")
    theta = model.read()
    whole = torch.cat([g.reshape(-1) for g in torch.autograd.grad(model.loss(*_all(client)), model.parameters())])
    method.fit(client, Control(theta=theta, control=torch.zeros_like(theta)))
    assert float((client.keep["control"] - whole).norm() / whole.norm()) < 0.1  # lr is small: y stays near theta


def _all(client: Client) -> tuple[Tensor, Tensor]:
    return client.data.train.x, client.data.train.y


def test_c_is_the_mean_of_all_clients_control_variates(tiny: Options) -> None:
    """Of those that are absent too."""
    done = run(**(tiny | {"clients": 6, "participation": 0.5, "rounds": 4}), method="SCAFFOLD")
    own = torch.stack([keep["control"] for keep in keeps(done).values()])
    assert set(done.records[-1].cohort) < set(range(6))
    torch.testing.assert_close(done.server.store["control"], own.mean(0), rtol=0, atol=1e-6)
    assert own.std(0).max() > 0.01


def test_without_control_variates_it_is_fedavg(tiny: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    options = tiny | {"trainer": "autograd", "rounds": 3}
    plain, first = run(**options), [run(**(options | {"rounds": 1}), method=m) for m in ("SCAFFOLD", "FedAvg")]
    assert torch.equal(*(done.server.theta for done in first))  # all are 0 in the first round
    assert not torch.equal(run(**options, method="SCAFFOLD").server.theta, plain.server.theta)

    def forgetful(method: SCAFFOLD, client: Client, received: Control) -> ControlReply:
        reply = fit(method, client, received)
        client.keep["control"] = torch.zeros_like(reply.change)
        reply.change = torch.zeros_like(reply.change)
        return reply

    fit = SCAFFOLD.fit
    monkeypatch.setattr(SCAFFOLD, "fit", forgetful)
    assert torch.equal(run(**options, method="SCAFFOLD").server.theta, plain.server.theta)


def test_one_client_has_no_drift(tiny: Options) -> None:
    options = tiny | {"clients": 1, "trainer": "autograd"}
    ours, theirs = run(**options, method="SCAFFOLD").server.theta, run(**options).server.theta
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


# A problem whose answer is known: f_i(p) = Σ a_i (p − m_i)²/2 with other curvatures a_i at each client.


def bowl(cid: int, size: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(cid)
    return 0.2 + 2 * torch.rand(size, generator=random), torch.randn(size, generator=random)


def after_rounds(options: Options, method: str, rounds: int) -> tuple[Tensor, Tensor]:
    """The common model, and the minimum of the mean of all clients' losses."""
    site, server = build(Config(**options, method=method, rule={"name": "Mean", "by": "uniform"}))
    server.method.begin(server)
    size = server.layout.size
    kept: dict[int, dict[str, Tensor]] = {}
    for server.round in range(1, rounds + 1):
        replies = {cid: fit_bowl(site, server, site.method, cid, kept) for cid in server.clients}
        server.method.merge(server, replies)
    a, m = (torch.stack(each) for each in zip(*(bowl(cid, size) for cid in server.clients), strict=True))
    return server.theta, (a * m).sum(0) / a.sum(0)


def fit_bowl(site: Site, server: Server, method: Method, cid: int, kept: dict[int, dict[str, Tensor]]) -> Any:
    client = client_of(site, cid, server.round)
    client.keep = kept.setdefault(cid, client.keep)
    a, m = bowl(cid, server.layout.size)

    def loss(*_: Tensor) -> Tensor:
        p = torch.cat([param.reshape(-1) for param in client.model.parameters()])
        return (a * (p - m).square()).sum() / 2

    find = gradients_of(loss, client.model.parameters())
    client.model.gradients = lambda *_, **__: find  # type: ignore[method-assign]
    return method.fit(client, method.send(server, cid))


def test_it_reaches_the_optimum_where_fedavg_has_a_bias(tiny: Options) -> None:
    options = tiny | {"clients": 4, "lr": 0.1, "steps": 10, "trainer": "autograd"}
    assert torch.dist(*after_rounds(options, "SCAFFOLD", 80)) < 1e-3
    assert torch.dist(*after_rounds(options, "FedAvg", 80)) > 1


def test_a_rule_acts_on_the_updates_and_not_on_c(tiny: Options) -> None:
    options = tiny | {"rounds": 1, "data": tiny["data"] | {"label_shift": 0.9}}
    plain, ruled = run(**options, method="SCAFFOLD"), run(**options, method="SCAFFOLD", rule="ConFREE")
    assert not torch.equal(plain.server.theta, ruled.server.theta)
    assert torch.equal(plain.server.store["control"], ruled.server.store["control"])


def test_a_change_of_another_shape_is_rejected(tiny: Options) -> None:
    site, server = build(Config(**tiny, method="SCAFFOLD"))
    server.method.begin(server)
    reply = site.method.fit(client_of(site, 0), site.method.send(server, 0))
    assert site.method.objection(server, 0, reply) is None
    reply.change = reply.change[1:]
    assert "another shape" in site.method.objection(server, 0, reply)


def test_it_has_the_same_bits_for_any_number_of_workers_and_resumed(tiny: Options, tmp_path: Path) -> None:
    options = tiny | {"clients": 6, "participation": 0.5, "model": "resnet4", "lr": 0.01}
    assert_reproducible(options | {"method": "SCAFFOLD"}, tmp_path / "run")
