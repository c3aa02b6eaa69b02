"""FEDORA: whose data are alike, how models flow between them, and when a client follows."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from by_hand import at_work, drawn, kept, server_of, sgd_step
from torch import Tensor

from comity import Config
from comity.engine import Client, Server, run
from comity.methods import FEDORA, Message, Question
from comity.methods.fedora import PulledReply
from helpers import client_of, keeps, site_of

SLIDES = vars(FEDORA.slides())
DIGITS: dict[str, Any] = {
    "data": "digits",
    "model": {"name": "mlp", "widths": (16,)},
    "lr": 0.1,
    "workers": 1,
    "reference": "none",
}
"""Images that look different when they are turned."""


# Step 0.


@pytest.mark.parametrize("samples", [24, 200])
@pytest.mark.parametrize("labels", [False, True])
def test_the_basis_are_the_leading_singular_vectors(tiny: dict[str, Any], labels: bool, samples: int) -> None:
    """Fewer samples than pixels, and more."""
    client, _, _ = at_work(tiny | {"data": tiny["data"] | {"samples": samples}}, "FEDORA", 2)
    X = client.data.train.x.reshape(len(client.data.train), -1).double()
    if labels:
        X = torch.cat([X, torch.eye(4, dtype=torch.float64)[client.data.train.y]], 1)
    assert (len(X) > X.shape[1]) == (samples == 200)
    leading = torch.linalg.svd(X.T).U[:, :3]
    basis = FEDORA(p=3, labels=labels).basis(client, Question()).basis
    assert basis.shape == (3, 64 + 4 * labels)
    assert basis.dtype == torch.float32
    cosines = (basis.double() @ leading).diagonal().abs()
    torch.testing.assert_close(cosines, torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-5)


def test_a_basis_is_filled_up_with_nothing(tiny: dict[str, Any]) -> None:
    client = client_of(site_of(Config(**(tiny | {"data": tiny["data"] | {"samples": 8}}), method="FEDORA")))
    samples = len(client.data.train)
    basis = FEDORA(p=samples + 3).basis(client, Question()).basis.double()
    identity = torch.diag(torch.tensor([1.0] * samples + [0.0] * 3, dtype=torch.float64))
    torch.testing.assert_close(basis @ basis.T, identity, rtol=0, atol=1e-5)


def test_similarity_is_the_sum_of_the_cosines_of_the_principal_angles() -> None:
    """Two planes at known angles, and random subspaces against scipy."""
    a, b = 0.3, 1.1
    flat = torch.eye(4, dtype=torch.float64)[:2]
    turned = torch.tensor([[math.cos(a), 0, math.sin(a), 0], [0, math.cos(b), 0, math.sin(b)]], dtype=torch.float64)
    mixed = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64) @ turned  # another basis of the same plane
    W = FEDORA(p=2, similarity="cosines").similarities(torch.stack([flat, mixed]))
    known = math.cos(a) + math.cos(b)
    torch.testing.assert_close(W, torch.tensor([[0, known], [known, 0]], dtype=torch.float64), rtol=0, atol=1e-12)

    bases = torch.linalg.qr(drawn(4, 9, 3).double()).Q.mT
    W = FEDORA(p=3, similarity="cosines", neighbours=None).similarities(bases)
    for i in range(4):
        for j in range(4):
            angles = scipy.linalg.subspace_angles(bases[i].numpy().T, bases[j].numpy().T)
            assert float(W[i, j]) == pytest.approx(0.0 if i == j else float(np.cos(angles).sum()), abs=1e-9)


def test_exponential_and_nearest_neighbours() -> None:
    bases = torch.linalg.qr(drawn(5, 9, 2).double()).Q.mT
    cosines = FEDORA(p=2, similarity="cosines", neighbours=None).similarities(bases)
    W = FEDORA(p=2, neighbours=None).similarities(bases)
    expected = (10 * cosines).exp().fill_diagonal_(0)
    torch.testing.assert_close(W / W.sum(1, keepdim=True), expected / expected.sum(1, keepdim=True))
    nearest = FEDORA(p=2).similarities(bases)
    for k in range(5):
        best = sorted((j for j in range(5) if j != k), key=cosines[k].tolist().__getitem__)[-2:]
        assert set(nearest[k].nonzero()[:, 0].tolist()) == set(best)
        assert torch.equal(nearest[k, best], W[k, best])
    assert not torch.equal(nearest > 0, nearest.T > 0)  # nearest is not mutual
    assert torch.equal(FEDORA(p=2, similarity="cosines", neighbours=9).similarities(bases), cosines)


def test_a_client_without_a_basis_is_related_to_nobody() -> None:
    bases = torch.linalg.qr(drawn(3, 6, 2).double()).Q.mT
    bases[1] = 0
    for similarity in ("cosines", "exp"):
        method = FEDORA(p=2, similarity=similarity)  # type: ignore[arg-type]
        W = method.similarities(bases)
        assert not W[1].any()
        assert not W[:, 1].any()
        assert torch.equal(method.mixture(W)[1], torch.eye(3, dtype=torch.float64)[1])


@pytest.mark.parametrize("method", [{}, {"p": 5}, {"p": 5, "labels": True}, vars(FEDORA.released())])
def test_similarity_finds_the_rotation_groups(method: dict[str, Any]) -> None:
    """Twelve clients, four angles: everyone in its group is more like a client than anyone outside."""
    server = server_of(DIGITS | {"clients": 12, "partition": {"name": "rotated", "groups": 4}}, "FEDORA", **method)
    W = server.store["similarity"]
    group = torch.arange(12) % 4
    same = (group[:, None] == group) & ~torch.eye(12, dtype=torch.bool)
    other = group[:, None] != group
    for k in range(12):
        assert W[k][same[k]].min() > W[k][other[k]].max()


# Step 3.


def test_two_clients_by_hand() -> None:
    """alpha 1: θ̂_1 = ½ θ̂_2 + ½ θ_1 and the reverse, so θ̂_1 = ⅔ θ_1 + ⅓ θ_2."""
    X = FEDORA(alpha=1.0).mixture(torch.tensor([[0, 3.0], [3.0, 0]], dtype=torch.float64))
    torch.testing.assert_close(X, torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64) / 3)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 4.0, 100.0])
@pytest.mark.parametrize("neighbours", [None, 2])
def test_closed_form_and_iteration_are_the_fixed_point(alpha: float, neighbours: int | None) -> None:
    bases = torch.linalg.qr(drawn(7, 9, 2).double()).Q.mT
    closed = FEDORA(p=2, alpha=alpha, neighbours=neighbours)
    iterated = FEDORA(p=2, alpha=alpha, neighbours=neighbours, propagation="iterated")
    W = closed.similarities(bases)
    X = closed.mixture(W)
    torch.testing.assert_close(iterated.mixture(W), X, rtol=0, atol=1e-8)

    theta, beta = drawn(7, 50, seed=1).double(), alpha / (1 + alpha)
    hat = X @ theta
    torch.testing.assert_close(iterated.mixture(W) @ theta, hat, rtol=0, atol=1e-8)
    for k in range(7):
        around = sum((W[k, j] * hat[j] for j in range(7)), torch.zeros(50, dtype=torch.float64)) / W[k].sum()
        torch.testing.assert_close(hat[k], beta * around + (1 - beta) * theta[k], rtol=0, atol=1e-10)
    assert (X >= 0).all()
    torch.testing.assert_close(X.sum(1), torch.ones(7, dtype=torch.float64), rtol=0, atol=1e-12)
    if alpha == 0:
        assert torch.equal(X, torch.eye(7, dtype=torch.float64))


# Step 1.


@pytest.mark.parametrize(
    ("delta", "difference", "exponential"),
    [(0.3, 0.6, math.exp(0.15)), (0.0, 2e-8, 1.0), (-0.3, 2e-8, 0.0), (math.nan, 2e-8, 0.0)],
)
def test_both_forms_of_lambda(delta: float, difference: float, exponential: float) -> None:
    """Strengths of the pull: twice λ for the slides' λ‖θ − θ̂‖², λ for the released code's step."""
    assert FEDORA.slides().pull(delta) == pytest.approx(difference, rel=1e-12)
    assert FEDORA().pull(delta) == pytest.approx(exponential, rel=1e-12)


def trained(client: Client, theta: Tensor, lr: float, hat: Tensor | None = None, lam: float = 0.0) -> Tensor:
    """θ ← θ − lr (∇ℓ + ∇ λ‖θ − θ̂‖²) over the client's batches, by autograd of the whole loss."""
    model = client.model
    model.write(theta)
    for x, y in client.batches(1):
        loss = model.loss(x, y)
        if hat is not None:
            vector = torch.cat([p.reshape(-1) for p in model.parameters()])
            loss = loss + lam * (vector - hat).square().sum()
        sgd_step(loss, model.parameters(), lr)
    return model.read()


def test_a_client_follows_what_serves_it_better(tiny: dict[str, Any]) -> None:
    client, _, method = at_work(tiny, {"name": "FEDORA"} | SLIDES, 1)
    theta = client.keep["own"]
    hat = theta
    for _ in range(5):
        hat = trained(client, hat, client.lr)
    client.model.write(theta)
    before = client.loss(client.data.val)
    client.model.write(hat)
    lam = before - client.loss(client.data.val)
    assert lam > 0.05
    expected = trained(client, theta, client.lr, hat, lam)
    reply = method.fit(client, Message(theta=hat))
    assert reply.pull == pytest.approx(2 * lam, rel=1e-9)
    torch.testing.assert_close(reply.theta, expected, rtol=0, atol=1e-6)
    assert torch.equal(reply.theta, client.keep["own"])
    assert torch.equal(method.personal(client, Message(theta=hat)), client.keep["own"])
    assert torch.equal(client.origin, theta)
    assert (expected - hat).norm() < (trained(client, theta, client.lr) - hat).norm()


def test_the_released_pull_is_kept_out_of_momentum(tiny: dict[str, Any]) -> None:
    """As the authors' code has it: torch's SGD with momentum makes a step, then θ ← θ − lr λ (θ before − θ̂)."""
    config = Config(**tiny, momentum=0.9, method="FEDORA")
    site = site_of(config)
    client, hat = client_of(site, 1), client_of(site, 1).keep["own"]
    for _ in range(5):
        hat = trained(client, hat, config.lr)
    model, theta = client.model, client.keep["own"]
    model.write(theta)
    before = client.loss(client.data.val)
    model.write(hat)
    lam = math.exp((before - client.loss(client.data.val)) / 2)
    model.write(theta)
    optimiser = torch.optim.SGD(model.net.parameters(), lr=config.lr, momentum=0.9)
    for x, y in client.batches(1):
        here = model.read()
        optimiser.zero_grad()
        model.loss(x, y).backward()
        optimiser.step()
        model.write(model.read() - config.lr * lam * (here - hat))
    expected = model.read()
    reply = site.method.fit(client_of(site, 1), Message(theta=hat))
    assert reply.pull == pytest.approx(lam)
    torch.testing.assert_close(reply.theta, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lam_form", ["difference", "exp"])
def test_a_client_does_not_follow_what_serves_it_worse(tiny: dict[str, Any], lam_form: str) -> None:
    client, _, method = at_work(tiny, {"name": "FEDORA", "lam_form": lam_form}, 1, trainer="autograd")
    alone = trained(client, client.keep["own"], client.lr)
    reply = method.fit(client, Message(theta=-3 * client.keep["own"]))
    torch.testing.assert_close(reply.theta, alone, rtol=0, atol=0 if lam_form == "exp" else 1e-6)


def test_the_pull_never_goes_beyond_what_it_pulls_to(tiny: dict[str, Any]) -> None:
    client, _, method = at_work(tiny | {"lr": 1e-6}, {"name": "FEDORA", "lam_form": "exp"})
    hat = client.keep["own"].clone()
    client.keep["own"] = hat + 100 * torch.randn(len(hat), generator=torch.Generator().manual_seed(0))
    reply = method.fit(client, Message(theta=hat))
    assert reply.pull > 1e6
    torch.testing.assert_close(reply.theta, hat, rtol=0, atol=1e-3)


# The whole.


@pytest.mark.parametrize("options", [{}, {"p": 3}, {"p": 2, "labels": True, "similarity": "exp", "neighbours": 2}])
def test_what_is_sent_is_what_the_paper_counts(tiny: dict[str, Any], options: dict[str, Any]) -> None:
    """2KR·d + K·p·d_in numbers of four bytes; labels widen the samples by the number of classes."""
    done = run(**tiny, method={"name": "FEDORA"} | options)
    K, R, d = 5, 3, done.site.model().size()
    d_in = 64 + 4 * options.get("labels", False)
    traffic = {verb: both for verb, both in done.server.link.traffic.items() if verb != "evaluate"}
    assert sum(map(sum, traffic.values())) / 4 == 2 * K * R * d + K * options.get("p", 1) * d_in
    assert traffic["basis"] == [0, 4 * K * options.get("p", 1) * d_in]


def test_a_round_propagates_what_clients_sent(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method={"name": "FEDORA", "p": 2, "alpha": 1.5})
    method, server = done.server.method, done.server
    X = method.mixture(server.store["similarity"])
    expected = X @ torch.stack(kept(done, "own")).double()
    torch.testing.assert_close(server.store["hat"].double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(server.method.send(server, 3).theta, server.store["hat"][3])
    assert set(done.records[-1].method["pull"]) == {"0", "1", "2", "3", "4"}


def replies_of(server: Server, cids: list[int], seed: int) -> dict[int, PulledReply]:
    noise = drawn(len(cids), len(server.theta), seed=seed).float()
    return {cid: PulledReply(theta=server.theta + row, size=1, pull=0.0) for cid, row in zip(cids, noise, strict=True)}


def test_absent_clients_are_left_out_of_the_flow(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FEDORA", **(SLIDES | {"p": 2}))
    method, W = server.method, server.store["similarity"]
    method.merge(server, replies_of(server, [0, 1, 2, 3, 4], 0))
    before = server.store["hat"].clone()
    replies = replies_of(server, [1, 3, 4], 1)
    method.merge(server, replies)
    present = W[[1, 3, 4]][:, [1, 3, 4]]
    rows = torch.stack([replies[cid].theta for cid in (1, 3, 4)])
    beta, P = 0.8, present / present.sum(1, keepdim=True)
    expected = 0.2 * torch.linalg.inv(torch.eye(3, dtype=torch.float64) - beta * P) @ rows.double()
    torch.testing.assert_close(server.store["hat"][[1, 3, 4]].double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(server.store["hat"][[0, 2]], before[[0, 2]])
    method.merge(server, replies_of(server, [2], 2))  # alone: what it sent
    assert torch.equal(server.store["hat"][2], replies_of(server, [2], 2)[2].theta)


def test_absent_clients_may_take_part_with_their_last_model(tiny: dict[str, Any]) -> None:
    server = server_of(tiny, "FEDORA", **(SLIDES | {"p": 2, "absent": "last"}))
    method, W = server.method, server.store["similarity"]
    first, second = replies_of(server, [0, 1, 4], 0), replies_of(server, [1, 3], 1)
    method.merge(server, first)
    method.merge(server, second)
    heard = [0, 1, 3, 4]  # 2 never sent a model: it neither gives nor takes
    last = first | second
    rows = torch.stack([last[cid].theta for cid in heard])
    P = W[heard][:, heard] / W[heard][:, heard].sum(1, keepdim=True)
    expected = 0.2 * torch.linalg.inv(torch.eye(4, dtype=torch.float64) - 0.8 * P) @ rows.double()
    torch.testing.assert_close(server.store["hat"][heard].double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(server.store["hat"][2], server.theta)


def test_without_flow_it_is_local(tiny: dict[str, Any]) -> None:
    """θ̂ is then θ, and the least λ is all that is left."""
    options = tiny | {"val_share": 0.2}
    local = [keep["personal"] for keep in keeps(run(**options, method="Local", local_on="train")).values()]
    still = kept(run(**options, method={"name": "FEDORA"} | SLIDES | {"alpha": 0.0}), "own")
    torch.testing.assert_close(torch.stack(still), torch.stack(local), rtol=0, atol=1e-6)


def test_the_released_options() -> None:
    released = FEDORA.released()
    assert (released.p, released.labels, released.similarity, released.neighbours) == (1, True, "exp", 2)
    assert (released.lam_form, released.alpha) == ("exp", 4.0)
    assert vars(FEDORA()) == vars(released) | {"labels": False}
    slides = FEDORA.slides()
    assert (slides.p, slides.labels, slides.similarity, slides.neighbours) == (1, False, "cosines", None)
    assert slides.lam_form == "difference"
