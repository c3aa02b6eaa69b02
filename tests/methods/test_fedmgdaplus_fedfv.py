"""FedMGDA+ and FedFV as methods: their rules with the personal model of the FedPG papers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from comity import ComityError, Config
from comity.engine import Server, build, run, site_of
from comity.methods import FedFV, FedMGDAPlus, Reply

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


def test_fedmgdaplus_with_eps_0_adds_up_directions(tiny: dict[str, Any]) -> None:
    options = opposed(tiny)
    _, replies, U, moved = one_round(options, {"name": "FedMGDA+", "eps": 0.0, "server_lr": 0.5})
    sizes = torch.tensor([float(replies[cid].size) for cid in sorted(replies)], dtype=torch.float64)
    expected = 0.5 * (sizes / sizes.sum()) @ (U / U.norm(dim=1, keepdim=True))
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-6)
    _, _, U, moved = one_round(options, {"name": "FedMGDA+", "eps": 0.0, "norm_restore": True})
    torch.testing.assert_close(moved, expected * 2 * U.mean(0).norm(), rtol=0, atol=1e-6)


def test_fedmgdaplus_with_eps_1_is_a_common_descent(tiny: dict[str, Any]) -> None:
    """The point of least norm has the same positive product with every direction that it is made of, and no less
    with the others."""
    _, _, U, moved = one_round(opposed(tiny), {"name": "FedMGDA+", "eps": 1.0})
    directions = U / U.norm(dim=1, keepdim=True)
    assert (directions @ directions.T).min() < 0
    assert (directions @ moved).min() == pytest.approx(float(moved @ moved), rel=1e-3)
    assert moved @ moved > 0


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


def test_fedfv_that_projects_nothing_is_the_uniform_mean(tiny: dict[str, Any]) -> None:
    options = opposed(tiny) | {"participation": 0.6}
    fair = run(**options, method={"name": "FedFV", "alpha": 1.0, "tau": 0})
    mean = run(**options, rule={"name": "Mean", "by": "uniform"})
    torch.testing.assert_close(fair.server.theta, mean.server.theta, rtol=0, atol=1e-5)
    other = run(**options, method={"name": "FedFV", "tau": 0})
    assert (other.server.theta - mean.server.theta).norm() > 0.01


def test_fedfv_remembers_absent_clients(tiny: dict[str, Any]) -> None:
    options = opposed(tiny) | {"participation": 0.4, "rounds": 8}
    with_memory, without = (run(**options, method={"name": "FedFV", "tau": tau}).server.theta for tau in (2, 0))
    assert not torch.equal(with_memory, without)


@pytest.mark.parametrize(("method", "option"), [("FedMGDA+", {"eps": 0.3}), ("FedFV", {"alpha": 0.5, "tau": 2})])
def test_it_is_fedavg_with_its_rule(tiny: dict[str, Any], method: str, option: dict[str, Any]) -> None:
    options = opposed(tiny) | {"participation": 0.6}
    done = run(**options, method={"name": method} | option)
    ruled = run(**options, rule={"name": method} | option)
    assert torch.equal(done.server.theta, ruled.server.theta)
    assert done.columns == ruled.columns
    assert not torch.equal(done.server.theta, run(**options).server.theta)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_uses_the_global_model_or_what_training_made_of_it(tiny: dict[str, Any], method: str) -> None:
    """By default the one that FedAvg's clients use, so that the two compare like with like."""
    common = run(**tiny, method=method)
    assert common.title == method
    assert common.site.moment == run(**tiny).site.moment == "received"
    done = run(**tiny, method={"name": method, "personal_model": "post_local"})
    assert done.site.moment == "fitted"
    assert torch.equal(done.server.theta, common.server.theta)
    assert done.columns["loss"] != common.columns["loss"]
    assert done.columns["global-acc"] == common.columns["global-acc"]
    assert done.columns["loss"] != run(**tiny, method="Local").columns["loss"]


@pytest.mark.parametrize("method", METHODS)
def test_with_batchnorm_and_absence(tiny: dict[str, Any], method: str) -> None:
    options = tiny | {"model": "resnet4", "clients": 4, "participation": 0.5, "dropout": 0.2, "lr": 0.01}
    done = run(**options, method=method)
    assert torch.isfinite(done.server.theta).all()
    assert torch.isfinite(torch.tensor(done.columns["loss"])).all()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (FedMGDAPlus, {"eps": 1.5}, r"method\.eps must be at least 0 and at most 1, got 1\.5"),
        (FedMGDAPlus, {"server_lr": 0.0}, r"method\.server_lr must be above 0, got 0\.0"),
        (FedFV, {"alpha": -0.1}, r"method\.alpha must be at least 0 and at most 1, got -0\.1"),
        (FedFV, {"tau": -1}, r"method\.tau must be at least 0, got -1"),
    ],
)
def test_senseless_options_are_refused(method: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ComityError, match=message):
        method(**options)


@pytest.mark.parametrize("method", METHODS)
def test_another_rule_is_refused(tiny: dict[str, Any], method: str) -> None:
    with pytest.raises(ComityError, match="brings its own rule"):
        run(**tiny, method=method, rule="ConFREE")
