"""Local training: the step, what survives between rounds, and which batches it sees."""

import pytest
import torch

from comity import ComityError, Config
from comity.data import ClientData, Split
from comity.engine import Training, run
from comity.engine._optimiser import optimiser_class
from helpers import Options, client_of, keeps, site_of


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"weight_decay": 0.01},
        {"clip": 0.05},
        {"momentum": 0.5, "weight_decay": 0.1, "clip": 1.0},
        {"optimizer": "Adam"},
        {"optimizer": "AdamW", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_sgd_is_torchs_own_to_the_bit(tiny: Options, options: Options) -> None:
    client = client_of(site_of(Config(**tiny, **options), trainer="autograd"))
    batches = list(client.batches(2))
    reference = site_of(Config(**tiny, **options)).model()
    named = dict(options)
    clip = named.pop("clip", 0.0)
    optimiser = getattr(torch.optim, named.pop("optimizer", "SGD"))(reference.net.parameters(), lr=tiny["lr"], **named)
    for x, y in batches:
        optimiser.zero_grad()
        reference.loss(x, y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(reference.net.parameters(), clip)
        optimiser.step()
    client.sgd(2)
    assert torch.equal(client.model.read(), reference.read())


@pytest.mark.skipif(not torch.cpu._is_avx512_bf16_supported(), reason="the processor has no bfloat16")
def test_bfloat16_rounds_gradients_and_keeps_weights_and_predictions(tiny: Options) -> None:
    config = Config(**(tiny | {"model": "resnet4"}))
    exact, coarse = (client_of(site_of(config, trainer=name)) for name in ("autograd", "bfloat16"))
    start = exact.model.read()
    assert torch.equal(exact.predict(exact.data.test), coarse.predict(coarse.data.test))
    steps = []
    for client in (exact, coarse):
        client.sgd(pull=(torch.zeros_like(start), 0.1))
        steps.append((client.model.read() - start).double())
        assert client.model.read().dtype == torch.float32
    difference = (steps[0] - steps[1]).norm() / steps[0].norm()
    assert torch.finfo(torch.float32).eps ** 0.5 < difference < torch.finfo(torch.bfloat16).eps ** 0.5


def test_pull_is_the_gradient_of_the_proximal_term(tiny: Options) -> None:
    client = client_of(site_of(Config(**tiny)))
    anchor, strength = torch.randn(client.model.size()), 0.7

    def proximal(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        flat = torch.cat([p.reshape(-1) for p in client.model.parameters()])
        return client.model.loss(x, y) + strength / 2 * (flat - anchor).square().sum()

    start = client.model.read()
    client.sgd(loss=proximal)
    wanted = client.model.read()
    client.model.write(start)
    client.sgd(pull=(anchor, strength))
    torch.testing.assert_close(client.model.read(), wanted)
    assert not torch.allclose(wanted, start)


def test_a_pull_apart_is_a_step_beside_the_optimisers(tiny: Options) -> None:
    """θ ← θ' − lr · strength (θ − anchor), θ' by torch's SGD with momentum; without momentum it is the usual pull."""
    client, strength = client_of(site_of(Config(**tiny), trainer="autograd")), 0.7
    anchor = torch.randn(client.model.size())

    def trained(momentum: float, pull_apart: bool) -> torch.Tensor:
        client = client_of(site_of(Config(**tiny, momentum=momentum), trainer="autograd"))
        client.sgd(2, pull=(anchor, strength), pull_apart=pull_apart)
        return client.model.read()

    torch.testing.assert_close(trained(0.0, True), trained(0.0, False))
    params = list(client.model.net.parameters())
    optimiser = torch.optim.SGD(params, lr=tiny["lr"], momentum=0.9)
    for x, y in client.batches(2):
        before = client.model.read()
        optimiser.zero_grad()
        client.model.loss(x, y).backward()
        optimiser.step()
        client.model.write(client.model.read() - tiny["lr"] * strength * (before - anchor))
    torch.testing.assert_close(trained(0.9, True), client.model.read())
    assert not torch.allclose(trained(0.9, False), client.model.read(), atol=1e-3)


def test_only_the_named_part_moves(tiny: Options) -> None:
    client = client_of(site_of(Config(**tiny)))
    body, head = client.model.read("body"), client.model.read("head")
    client.sgd(1, "head")
    assert torch.equal(client.model.read("body"), body)
    assert not torch.equal(client.model.read("head"), head)


def test_batches_cover_the_data_once_an_epoch_and_leave_out_a_lone_last_sample(tiny: Options) -> None:
    client = client_of(site_of(Config(**tiny)))
    n = len(client.data.train)
    client.training = Training(batch_size=n // 2 - 1)
    seen = torch.cat([x for x, _ in client.batches(1)])
    assert len(seen) == n
    assert {tuple(x.flatten().tolist()) for x in seen} == {tuple(x.flatten().tolist()) for x in client.data.train.x}
    client.training = Training(batch_size=n - 1)
    assert [len(y) for _, y in client.batches(2)] == [n - 1, n - 1]
    client.training = Training(batch_size=1)
    assert [len(y) for _, y in client.batches(1)] == [1] * n


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_optimiser_state_is_kept_or_reset_between_rounds(tiny: Options, optimizer: str) -> None:
    momentum = 0.9 if optimizer == "SGD" else 0.0
    options = tiny | {"method": "Local", "optimizer": optimizer, "momentum": momentum, "rounds": 2, "clients": 1}
    kept = keeps(run(**options, optimizer_state="keep"))[0]["personal"]
    reset = keeps(run(**options, optimizer_state="reset"))[0]["personal"]
    assert not torch.equal(kept, reset)
    # by hand: one optimiser through both rounds
    config = Config(**options)
    site = site_of(config)
    model = site.model()
    named = {"momentum": 0.9} if optimizer == "SGD" else {}
    optimiser = getattr(torch.optim, optimizer)(model.net.parameters(), lr=config.lr, **named)
    for round in (1, 2):
        for x, y in client_of(site, 0, round).batches(1):
            optimiser.zero_grad()
            model.loss(x, y).backward()
            optimiser.step()
    assert torch.equal(kept, model.read())


def test_the_learning_rate_decays_by_round() -> None:
    training = Training(lr=0.1, lr_decay=0.5)
    assert [training.rate(t) for t in (1, 2, 3)] == [0.1, 0.05, 0.025]


@pytest.mark.parametrize("samples", [1, 7, 8, 9, 10, 24])
def test_work_in_steps_and_in_parts_of_an_epoch(tiny: Options, samples: int) -> None:
    """Three and a half epochs are seven halves; steps go on into the next epoch; both begin as whole epochs do."""
    site = site_of(Config(**tiny, steps=5))
    client = client_of(site)
    data = client.data.train
    client.data = ClientData(0, Split(data.x[:samples], data.y[:samples]), client.data.val, client.data.test)

    def orders(epochs: float | None = None) -> list[list[int]]:
        return [batch.tolist() for batch in torch.split(*client.order(epochs))]

    whole = orders(9)
    each = len(whole) // 9
    assert orders() == whole[:5]
    for epochs in (0.1, 0.5, 1, 2.5, 3.5):
        assert orders(epochs) == whole[: max(1, round(epochs * each))]
    assert orders(0) == []


def test_steps_and_epochs_are_one_or_the_other(tiny: Options) -> None:
    one, other = run(**tiny, epochs=2), run(**tiny, steps=2 * 2)  # 16 or 17 training samples are two batches of 8
    sizes = {len(client.train) for client in one.federation.clients}
    assert sizes <= {16, 17}
    assert torch.equal(one.server.theta, other.server.theta)
    half = run(**tiny, epochs=0.5)
    assert torch.equal(half.server.theta, run(**tiny, steps=1).server.theta)
    assert torch.allclose(half.server.theta, run(**tiny, epochs=0.5, trainer="autograd").server.theta, atol=1e-6)
    with pytest.raises(ComityError, match="2 epochs or 5 steps per round; give only one"):
        Config(epochs=2, steps=5)
    with pytest.raises(ComityError, match="epochs must be at least 0, got -1"):
        Config(epochs=-1)


def test_an_unknown_optimiser_is_rejected_with_the_nearest_names() -> None:
    with pytest.raises(ComityError, match="unknown optimizer 'Adm'; did you mean Adam"):
        optimiser_class("Adm")
    with pytest.raises(ComityError, match="LBFGS cannot"):
        optimiser_class("LBFGS")
