"""Per-FedAvg: its step against the equation, the Hessian against autograd, its personal model."""

from typing import Any

import pytest
import torch
from by_hand import at_work
from torch import Tensor

from comity import Config
from comity.methods import Message, PerFedAvg
from comity.nn import Model
from helpers import client_of, site_of

HESSIAN_FREE = {"name": "Per-FedAvg", "hessian": "hessian-free"}


def in_float64(model: Model) -> Model:
    model.net.double()
    return model


def moved(model: Model, step: float, direction: list[Tensor]) -> None:
    with torch.no_grad():
        for p, d in zip(model.parameters(), direction, strict=True):
            p.add_(d, alpha=step)


def gradient(model: Model, batch: tuple[Tensor, Tensor], **graph: bool) -> list[Tensor]:
    return list(torch.autograd.grad(model.loss(*batch), model.parameters(), **graph))


def three_batches(client: Any) -> list[tuple[Tensor, Tensor]]:
    batches = [(x.double(), y) for x, y in client.batches(2)]
    assert len(batches) >= 3
    return batches[:3]


def test_hessian_free_is_the_true_hessian_vector_product(tiny: dict[str, Any]) -> None:
    """(I − α ∇²f(w; B'')) ∇f(w̃; B') with the Hessian from double backward."""
    site = site_of(Config(**tiny, method=HESSIAN_FREE), trainer="chain")
    batches, alpha = three_batches(client_of(site, 1)), 0.3
    model = in_float64(site.model())
    w = model.read()

    moved(model, -alpha, gradient(model, batches[0]))
    outer = gradient(model, batches[1])
    model.write(w)
    slope = sum((g * v).sum() for g, v in zip(gradient(model, batches[2], create_graph=True), outer, strict=True))
    curvature = torch.autograd.grad(slope, model.parameters())
    expected = [g - alpha * c for g, c in zip(outer, curvature, strict=True)]

    found, _ = PerFedAvg(hessian="hessian-free", delta=1e-5).meta_gradient(model, model.parameters(), alpha, batches)
    for a, b, g in zip(found, expected, outer, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
        assert (b - g).abs().max() > 1e-4  # the Hessian is there to be seen
    assert torch.equal(model.read(), w)


@pytest.mark.parametrize(("hessian", "batch_size"), [("first-order", 6), ("hessian-free", 4)])
def test_the_step_written_out(tiny: dict[str, Any], hessian: str, batch_size: int) -> None:
    """Gradient at w̃, applied at w, each batch with those after it; then one full gradient step for the client."""
    options = {"name": "Per-FedAvg", "hessian": hessian, "alpha": 0.2, "beta": 0.05, "delta": 0.01}
    client, model, method = at_work(tiny | {"batch_size": batch_size}, options, 2)
    count = 2 if hessian == "first-order" else 3
    batches = list(client.batches())
    assert len(batches) > count
    for i in range(len(batches)):
        group = (batches * 2)[i : i + count]
        w = model.read()
        moved(model, -0.2, gradient(model, group[0]))
        step = gradient(model, group[1])
        if hessian == "hessian-free":
            sides = []
            for delta in (0.01, -0.01):
                model.write(w)
                moved(model, delta, step)
                sides.append(gradient(model, group[2]))
            step = [g - 0.2 * (a - b) / 0.02 for g, a, b in zip(step, *sides, strict=True)]
        model.write(w)
        moved(model, -0.05, step)

    reply = method.fit(client, Message(theta=client.model.read()))
    torch.testing.assert_close(reply.theta, model.read(), rtol=0, atol=1e-6)
    train = client.data.train
    moved(model, -0.2, gradient(model, (train.x, train.y)))
    torch.testing.assert_close(client.model.read(), model.read(), rtol=0, atol=1e-6)
    torch.testing.assert_close(method.personal(client, Message(theta=reply.theta)), model.read(), rtol=0, atol=1e-6)


def test_a_client_with_one_batch_still_learns(tiny: dict[str, Any]) -> None:
    client, _, method = at_work(tiny | {"batch_size": 100}, HESSIAN_FREE)
    assert len(list(client.batches())) == 1
    before = client.model.read()
    assert not torch.equal(method.fit(client, Message(theta=before)).theta, before)


def test_without_the_inner_step_the_hessian_does_not_matter(tiny: dict[str, Any]) -> None:
    """alpha 0: plain SGD that begins with the second batch, the client's own model is the common one."""
    client, model, method = at_work(tiny, {"name": "Per-FedAvg", "alpha": 0.0}, trainer="chain")
    first, *others = client.batches()
    assert others
    for batch in (*others, first):
        moved(model, -client.lr, gradient(model, batch))
    reply = method.fit(client, Message(theta=client.model.read()))
    assert torch.equal(reply.theta, model.read())
    assert torch.equal(client.model.read(), reply.theta)

    with model.training() as params:
        plain, _ = PerFedAvg().meta_gradient(model, params, 0.0, [first] * 2)
        free, _ = PerFedAvg(hessian="hessian-free").meta_gradient(model, params, 0.0, [first] * 3)
    assert all(torch.equal(a, b) for a, b in zip(plain, free, strict=True))


def test_a_full_gradient_does_not_depend_on_its_pieces(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, method = at_work(tiny, {"name": "Per-FedAvg", "personal_steps": 3})
    received = Message(theta=client.model.read())
    whole = method.personal(client, received)
    monkeypatch.setattr("comity.methods.perfedavg.LARGEST", 5)
    torch.testing.assert_close(method.personal(client, received), whole, rtol=0, atol=1e-6)
    assert not torch.equal(whole, received.theta)
