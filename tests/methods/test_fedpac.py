"""FedPAC: the statistics, the heads' quadratic program, the pull to prototypes, and who gets which head."""

import cvxpy as cp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from by_hand import at_work, sgd_step
from torch import Tensor

from comity import Config
from comity.engine import Client
from comity.methods.fedpac import FedPACMessage, FedPACReply, head_weights
from comity.nn import Model
from helpers import Options, build


def means_by_hand(model: Model, client: Client, classes: int = 4) -> dict[int, Tensor]:
    x, y = client.data.train.x, client.data.train.y
    model.net.eval()
    with torch.no_grad():
        return {k: model.features(x[y == k]).mean(0) for k in range(classes) if (y == k).any()}


# The quadratic program.


def problem(case: str) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    H, V = torch.randn(6, 3, 5, generator=random), torch.rand(6, generator=random) + 0.1
    if case == "near":  # heads are worth sharing: variance outweighs the bias
        return 0.1 * H, V
    if case == "twins":
        return torch.cat([H[:3], H[:3]]), V
    if case == "small":
        return 1e-3 * H, 1e-5 * V
    if case == "more clients than numbers":
        return 0.3 * torch.randn(12, 2, 2, generator=random), torch.rand(12, generator=random) + 0.01
    if case == "sure":  # one client without variance: a class of one sample
        V[2] = 0
    return H, V


@pytest.mark.parametrize("case", ["far", "near", "twins", "small", "more clients than numbers", "sure"])
def test_heads_weights_solve_their_program(case: str) -> None:
    """As cvxpy solves it, from M_i[j, k] = Σ_c ⟨H_i[c] − H_j[c], H_i[c] − H_k[c]⟩ summed out."""
    H, V = problem(case)
    found = head_weights(H, V).numpy()
    n = len(V)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=1e-12)
    H64, V64 = H.double().numpy(), V.double().numpy()
    for i in range(n):
        apart = H64[i] - H64
        M = np.array([[(apart[j] * apart[k]).sum() for k in range(n)] for j in range(n)])
        Q = np.diag(V64) + M
        scale = Q.diagonal().max()
        a = cp.Variable(n)
        goal = cp.sum_squares(apart.reshape(n, -1).T @ a / scale**0.5) + cp.sum_squares(
            cp.multiply((V64 / scale) ** 0.5, a)
        )
        cp.Problem(cp.Minimize(goal), [a >= 0, cp.sum(a) == 1]).solve(
            solver=cp.CLARABEL, tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12
        )
        np.testing.assert_allclose(found[i], a.value, rtol=0, atol=1e-5)
        slope = Q @ found[i] / scale
        assert found[i] @ slope - slope.min() < 1e-10  # no vertex of the simplex is a way down


# The client.


def test_statistics_are_those_of_the_received_body(tiny: Options) -> None:
    client, model, method = at_work(tiny, "FedPAC", 1)
    reply = method.fit(client, FedPACMessage(theta=model.read("shared")))
    y, n = client.data.train.y, len(client.data.train)
    with torch.no_grad():
        Z = model.features(client.data.train.x)
    V = 0.0
    for k in range(4):
        z, p = Z[y == k], (y == k).float().mean()
        mu = z.mean(0) if len(z) else torch.zeros(16)
        torch.testing.assert_close(reply.H[k], p * mu, rtol=0, atol=1e-6)
        if len(z):
            V += float(p * torch.trace(z.T @ z / len(z)) - p**2 * (mu @ mu))
    assert pytest.approx(V / n, rel=1e-5) == reply.V
    assert reply.counts.tolist() == [int((y == k).sum()) for k in range(4)]
    for k, mean in means_by_hand(client.model, client).items():  # with the body as it is after training
        torch.testing.assert_close(reply.prototypes[k], mean, rtol=0, atol=1e-6)
        assert not torch.allclose(reply.prototypes[k], Z[y == k].mean(0), atol=1e-4)


@pytest.mark.parametrize("head_lr", [0.3, None])
def test_the_head_is_fitted_first_then_the_body_under_the_pull(tiny: Options, head_lr: float | None) -> None:
    client, model, method = at_work(tiny, {"name": "FedPAC", "lam": 2.0, "head_epochs": 2, "head_lr": head_lr}, 2)
    random = torch.Generator().manual_seed(0)
    prototypes, known = torch.randn(4, 16, generator=random), torch.tensor([True, True, False, True])
    head = model.read("head") + 0.1
    model.write(head, "head")
    assert {2, 3} <= set(client.data.train.y.tolist())

    for part, epochs, lr in (("head", 2, head_lr or client.lr), ("body", 1, client.lr)):
        for x, y in client.batches(epochs):
            z = model.net.body(x)
            loss = F.cross_entropy(model.net.head(z), y)
            if part == "body":
                pulls = [(z[i] - prototypes[k]).square().sum() for i, k in enumerate(y.tolist()) if known[k]]
                loss = loss + 2.0 * sum(pulls) / (len(y) * 16)
            sgd_step(loss, model.parameters(part), lr)
    theta = client.model.read("shared")
    received = FedPACMessage(theta=theta, head=head, prototypes=prototypes, known=known)
    reply = method.fit(client, received)
    torch.testing.assert_close(reply.theta, model.read("body"), rtol=0, atol=1e-6)
    torch.testing.assert_close(reply.head, model.read("head"), rtol=0, atol=1e-6)
    assert torch.equal(client.keep["personal"], reply.head)


# The server.


def reply_of(seed: int, counts: list[int], theta: Tensor, head: int) -> FedPACReply:
    random = torch.Generator().manual_seed(seed)
    return FedPACReply(
        theta=theta + 0.1 * seed,
        size=sum(counts),
        head=torch.randn(head, generator=random),
        prototypes=torch.randn(4, 16, generator=random),
        counts=torch.tensor(counts),
        H=0.2 * torch.randn(4, 16, generator=random),
        V=0.1 * seed,
    )


def test_heads_are_mixed_for_the_clients_they_belong_to(tiny: Options) -> None:
    """Clients 1 and 4 take part, then 3 and 4: what an absent one has stays, whatever its place in the cohort."""
    _, server = build(Config(**tiny, method="FedPAC"))
    size = 16 * 4 + 4
    first = {1: reply_of(1, [5, 0, 1, 0], server.theta, size), 4: reply_of(4, [1, 0, 3, 0], server.theta, size)}
    server.method.merge(server, first)
    assert server.method.send(server, 0).head is None
    weights = head_weights(torch.stack([first[1].H, first[4].H]), torch.tensor([first[1].V, first[4].V])).float()
    assert weights.min() > 0.01
    for row, cid in enumerate((1, 4)):
        expected = weights[row, 0] * first[1].head + weights[row, 1] * first[4].head
        torch.testing.assert_close(server.method.send(server, cid).head, expected, rtol=0, atol=1e-6)
    kept, old = server.method.send(server, 1).head.clone(), server.method.send(server, 4).head.clone()

    # every sample of a class counts the same; of a class that nobody has nothing is known
    sent = server.method.send(server, 0)
    assert sent.known.tolist() == [True, False, True, False]
    by_hand = (5 * first[1].prototypes[0] + first[4].prototypes[0]) / 6
    torch.testing.assert_close(sent.prototypes[0], by_hand, rtol=0, atol=1e-6)

    second = {3: reply_of(3, [0, 2, 0, 0], server.theta, size), 4: reply_of(5, [4, 0, 0, 0], server.theta, size)}
    server.method.merge(server, second)
    assert torch.equal(server.method.send(server, 1).head, kept)
    assert not torch.equal(server.method.send(server, 4).head, old)
    sent = server.method.send(server, 2)
    assert sent.head is None
    assert sent.known.tolist() == [True, True, True, False]
    by_hand = (first[1].prototypes[2] + 3 * first[4].prototypes[2]) / 4
    torch.testing.assert_close(sent.prototypes[2], by_hand, rtol=0, atol=1e-6)  # nobody has shown it since
    torch.testing.assert_close(sent.prototypes[0], second[4].prototypes[0], rtol=0, atol=1e-6)
