"""pFedFDA: its head against Bayes' rule, a round written out, and the choice of beta."""

from pathlib import Path

import pytest
import torch
from by_hand import at_work, drawn, noisy, sgd_step
from torch.distributions import MultivariateNormal

from comity.engine import run
from comity.methods import PFedFDA
from comity.methods.pfedfda import EPS, Gaussians, best_beta, between, class_shares, gaussian_head, gaussians
from helpers import Options, assert_reproducible


def test_the_head_is_bayes_rule_for_gaussian_features() -> None:
    means, A = drawn(3, 5, seed=1).double(), drawn(5, 5, seed=2).double()
    covariance, shares, Z = (
        A @ A.T + torch.eye(5).double(),
        torch.tensor([0.2, 0.5, 0.3]).double(),
        drawn(7, 5).double(),
    )
    weights, biases = gaussian_head(means, covariance, shares)
    steady = (1 - EPS) * covariance + EPS * covariance.trace() / 5 * torch.eye(5).double()
    joint = torch.stack([MultivariateNormal(mean, steady).log_prob(Z) for mean in means], 1) + shares.log()
    torch.testing.assert_close((Z @ weights.T + biases).log_softmax(1), joint.log_softmax(1))


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_a_round_written_out(tiny: Options, beta: float) -> None:
    client, model, method = at_work(tiny, {"name": "pFedFDA", "beta": beta}, 1)
    width = model.net.head.in_features
    means, covariance = drawn(4, width, seed=3), torch.eye(width) + 0.1
    received = Gaussians(theta=noisy(model.read("body"), 1, 0.1), means=means, covariance=covariance)
    train = client.data.train
    shares = class_shares(train.y, 4)
    model.write(received.theta, "body")
    with torch.no_grad():
        for p, value in zip(
            model.parameters("head"), gaussian_head(means.double(), covariance.double(), shares), strict=True
        ):
            p.copy_(value)
    head = model.read("head")
    for x, y in client.batches():
        sgd_step(model.loss(x, y), model.parameters("body"), client.lr)
    assert torch.equal(model.read("head"), head)  # it guides the body, and stays as it is
    with torch.no_grad():
        Z = model.features(train.x).double()
    own = torch.stack([Z[train.y == k].mean(0) if (train.y == k).sum() > 2 else means[k].double() for k in range(4)])
    away = Z - own[train.y]
    spread = away.T @ away / (len(Z) - 1) + EPS * torch.eye(width).double()
    reply = method.fit(client, received)
    torch.testing.assert_close(reply.theta, model.read("body"), rtol=0, atol=1e-5)
    torch.testing.assert_close(reply.means, (beta * own + (1 - beta) * means).float(), rtol=0, atol=1e-4)
    torch.testing.assert_close(reply.covariance, (beta * spread + (1 - beta) * covariance).float(), rtol=0, atol=1e-4)


def test_beta_is_large_where_the_common_gaussians_are_wrong_and_small_where_they_are_right() -> None:
    y = torch.arange(400) % 4
    truth = 2 * drawn(4, 6, seed=4).double()
    Z = truth[y] + drawn(400, 6, seed=5).double()
    unit = torch.eye(6).double()
    assert best_beta(Z, y, -truth, unit) >= 0.9
    few = slice(0, 16)  # four samples of each class say little about 6 features
    assert best_beta(Z[few], y[few], truth, unit) <= 0.5
    assert best_beta(Z[:1], y[:1], truth, unit) == 0.0  # nothing to test on
    own = gaussians(Z, y, truth)
    assert all(torch.equal(a, b) for a, b in zip(between(0.0, own, (truth, unit)), (truth, unit), strict=True))


def test_the_server_averages_the_gaussians_by_size(tiny: Options) -> None:
    done = run(**(tiny | {"rounds": 1}), method={"name": "pFedFDA", "beta": 0.0})
    width = done.site.model().net.head.in_features
    torch.testing.assert_close(done.server.store["covariance"], torch.eye(width))  # with beta 0 all send what they got
    assert not torch.equal(run(**tiny, method="pFedFDA").server.store["covariance"], done.server.store["covariance"])
    assert isinstance(done.site.method, PFedFDA)


def test_under_the_initial_head_it_is_fedbabu(tiny: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PFedFDA, "write_head", lambda *_: None)
    ours, theirs = (run(**tiny, method=method).server.theta for method in ("pFedFDA", "FedBABU"))
    assert torch.equal(ours, theirs)


def test_it_has_the_same_bits_for_any_number_of_workers_and_resumed(tiny: Options, tmp_path: Path) -> None:
    assert_reproducible(tiny | {"participation": 0.6, "method": "pFedFDA"}, tmp_path / "run")
