"""Training without autograd gives autograd's numbers, and a client's bits do not depend on who trains beside it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comity import Config
from comity.engine import run
from comity.methods._prototypes import Prototypes, alignment
from comity.nn import MODELS, Model, can_compile, chain_of, gradients_of
from comity.nn._net import Net
from helpers import Options, Patch, assert_same, client_of, site_of


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}, {"batch_size": 100}], ids=str)
@pytest.mark.parametrize("pull", [0.0, 0.7, 50.0])
@pytest.mark.parametrize("parts", [(), ("head",), ("body",)], ids=str)
@pytest.mark.parametrize("trainer", ["chain", "compiled"])
@pytest.mark.parametrize("model", [{"name": "mlp", "widths": (33, 7)}, {"name": "mlp", "widths": ()}, "lenet5", "cnn"])
def test_it_is_sgd_by_autograd(
    tiny: Options, model: Any, trainer: Any, parts: tuple[str, ...], pull: float, options: dict[str, Any]
) -> None:
    """Of any parts, with weight decay and pull; 50 · lr is all the way to the anchor."""
    config = Config(**(tiny | {"model": model, "lr": 0.02} | options))
    reference = client_of(site_of(config, trainer="autograd"), 1)
    if (model, trainer) == ("cnn", "compiled") and not can_compile(reference.model, config.batch_size):
        pytest.skip("torch's own convolutions are faster there")
    client = client_of(site_of(config, trainer=trainer), 1)
    if not client.model.parameters(*parts):
        pytest.skip("a body without layers")
    anchor = torch.randn(client.model.size(*parts), generator=torch.Generator().manual_seed(0)) / 10
    before = client.model.read()
    for each in (client, reference):
        each.sgd(2, *parts, pull=(anchor, pull) if pull else None)
    # a few steps in float32, rounded otherwise
    torch.testing.assert_close(client.model.read(), reference.model.read(), rtol=1e-4, atol=1e-6)
    assert client.train_loss == pytest.approx(reference.train_loss, rel=1e-5)
    size = client.model.size("body")
    untouched = {(): slice(0, 0), ("head",): slice(0, size), ("body",): slice(size, None)}[parts]
    assert torch.equal(client.model.read()[untouched], before[untouched])
    assert not torch.equal(client.model.read(), before)


@pytest.mark.parametrize("parts", [(), ("head",), ("body",)], ids=str)
@pytest.mark.parametrize("batch", [1, 7, 10])
@pytest.mark.parametrize("name", ["logistic", "mlp", "lenet5", "cnn"])
def test_gradients_have_the_bits_of_autograd(name: str, batch: int, parts: tuple[str, ...]) -> None:
    """Also with a loss of the features, which autograd finds from its value and a chain from its slope."""
    random = torch.Generator().manual_seed(0)
    model = Model(MODELS[name]((3, 12, 12), 4))
    if not (params := model.parameters(*parts)):
        pytest.skip("a body without layers")
    x = torch.randn(batch, 3, 12, 12, generator=random).contiguous(memory_format=torch.channels_last)
    y, z = torch.randint(4, (batch,), generator=random), model.features(x)
    known = torch.tensor([True, False, True, True])
    received = Prototypes(theta=torch.zeros(0), prototypes=torch.randn(4, z.shape[1], generator=random), known=known)
    pull = alignment(received, 0.3)

    def aligned(x: Tensor, y: Tensor) -> Tensor:
        z = model.features(x)
        away = (z - received.prototypes[y]).square() * known[y, None]  # type: ignore[index]
        return F.cross_entropy(model.net.get_submodule("head")(z), y) + 0.3 * away.mean()

    with model.training(*parts):
        for found, wanted in (
            (model.gradients(*parts), gradients_of(model.loss, params)),
            (model.gradients(*parts, on_features=pull), gradients_of(aligned, params)),
        ):
            (loss, grads), (expected, by_autograd) = found(x, y), wanted(x, y)
            assert torch.equal(loss, expected)
            assert all(torch.equal(*pair) for pair in zip(grads, by_autograd, strict=True))
    pairs = zip(model.head_gradients()(z, y)[1], model.gradients("head")(x, y)[1], strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("data", ["digits", {"name": "synthetic", "samples": 30, "classes": 3, "size": 5}], ids=str)
@pytest.mark.parametrize("widths", [(16,), (33, 7), ()], ids=str)
@pytest.mark.parametrize("method", ["FedAvg", {"name": "FedProx", "mu": 0.3}, "FedRep", "Ditto"], ids=str)
def test_who_trains_beside_a_client_changes_no_bit(
    tiny: Options, method: Any, widths: tuple[int, ...], data: Any, workers: int
) -> None:
    """Widths and batches that fill no line of memory, clients of many sizes, some with less than a batch."""
    if (method, widths) == ("FedRep", ()):
        pytest.skip("a body without layers")
    options = tiny | {
        "data": data,
        "model": {"name": "mlp", "widths": widths},
        "batch_size": 7,
        "clients": 30 if data == "digits" else 9,
        "rounds": 2,
    }
    beside = run(**options | {"method": method, "workers": workers}, trainer="compiled")
    assert data != "digits" or len({len(client.train) // 7 for client in beside.federation.clients}) > 5
    assert_same(beside, run(**options | {"method": method, "workers": 1}, trainer="compiled"))


@pytest.mark.parametrize("trainer", ["chain", "compiled"])
def test_an_error_in_the_training_itself_is_each_clients_own(tiny: Options, monkeypatch: Patch, trainer: Any) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a broken step")

    monkeypatch.setattr("comity.nn.Descent.step", broken)
    monkeypatch.setattr("comity.engine._trainer.descend", broken)
    with pytest.raises(RuntimeError, match="a broken step"):
        run(**tiny, trainer=trainer)


def test_what_is_no_chain_is_left_to_autograd(tiny: Options) -> None:
    for name in ("resnet4", "vit-tiny"):
        assert chain_of(MODELS[name]((3, 32, 32), 10)) is None

    class Twice(Net):
        def __init__(self) -> None:
            super().__init__((1, 4, 4), 2)
            self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 16)), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x)) * 2

    class WithDropout(Net):
        def __init__(self) -> None:
            super().__init__((1, 4, 4), 2)
            self.body, self.head = nn.Sequential(nn.Flatten(), nn.Dropout()), nn.Linear(16, 2)

    assert chain_of(Twice()) is None
    assert chain_of(WithDropout()) is None
    assert chain_of(site_of(Config(**tiny, method="FedROD")).model().net) is None  # it has a second head
    assert can_compile(Model(MODELS["lenet5"]((3, 32, 32), 10)), batch_size=100)
    assert not can_compile(Model(MODELS["cnn"]((3, 32, 32), 10)), batch_size=100)  # torch's convolutions are faster
