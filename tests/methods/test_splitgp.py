"""SplitGP: two exits, two weights, and what is whose."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from by_hand import at_work, noisy, sgd_step
from torch import Tensor

from comity import Config
from comity.engine import run
from comity.methods import Message
from comity.nn import Model
from helpers import client_of, keeps, site_of, used

OWN = ("body", "exit")


def step(model: Model, x: Tensor, y: Tensor, gamma: float, lr: float, *parts: str) -> None:
    z = model.net.body(x)
    early, late = F.cross_entropy(model.net.exit(z), y), F.cross_entropy(model.net.head(z), y)
    params = model.parameters(*parts)
    sgd_step(gamma * early + (1 - gamma) * late, params, lr)


def test_sure_samples_leave_early(tiny: dict[str, Any]) -> None:
    site = site_of(Config(**tiny, method={"name": "SplitGP", "threshold": 1.0}))
    model, x = site.model(), site.tests.split.x
    model.write(noisy(model.read("shared"), 0) * 2, "shared")
    net = model.net.eval()
    with torch.no_grad():
        z, logits = net.body(x), net(x)
        early, late = net.exit(z), net.head(z)
    entropies = []
    for i, p in enumerate(early.softmax(1).tolist()):
        entropies.append(-sum(share * math.log(share) for share in p))
        assert torch.equal(logits[i], early[i] if entropies[-1] <= 1.0 else late[i])
    assert 3 < sum(entropy <= 1.0 for entropy in entropies) < len(entropies) - 3
    assert not (early == late).any()


@pytest.mark.parametrize("gamma", [0.5, 0.2])
def test_both_exits_train_everything(tiny: dict[str, Any], gamma: float) -> None:
    client, model, method = at_work(tiny, {"name": "SplitGP", "gamma": gamma, "lam": 0.7}, 1)
    for x, y in client.batches(1):
        step(model, x, y, gamma, client.lr, "body", "head", "exit")
    reply = method.fit(client, Message(theta=client.model.read("shared")))
    torch.testing.assert_close(reply.theta, model.read("shared"), rtol=0, atol=1e-6)
    torch.testing.assert_close(client.keep["own"], model.read(*OWN), rtol=0, atol=1e-6)


def test_a_client_mixes_its_own_part_with_the_average(tiny: dict[str, Any]) -> None:
    """phi_k ← lam phi_k + (1 − lam) average, kappa_k likewise; theta is the average itself, whatever gamma is."""
    for lam, gamma in ((0.3, 0.5), (0.3, 0.9), (0.8, 0.5)):
        client, model, method = at_work(tiny, {"name": "SplitGP", "lam": lam, "gamma": gamma}, 0)
        theta, own = noisy(model.read("shared"), 0), noisy(model.read(*OWN), 1)
        client.keep["own"] = own
        mixed = method.personal(client, Message(theta=theta))
        model.write(theta, "shared")
        average, head = model.read(*OWN), model.read("head")
        model.write(mixed)
        torch.testing.assert_close(model.read(*OWN), lam * own + (1 - lam) * average, rtol=0, atol=1e-6)
        assert torch.equal(model.read("head"), head)


def test_with_lam_1_client_parts_stay_local(tiny: dict[str, Any]) -> None:
    """And learn from the client alone when theirs is the only loss: phi and kappa by hand through all rounds."""
    method = {"name": "SplitGP", "lam": 1.0, "gamma": 1.0}
    done = run(**tiny, method=method)
    site = site_of(Config(**tiny, method=method))
    models = used(done)
    for cid in (0, 3):
        model = site.model()
        for round in range(1, tiny["rounds"] + 1):
            for x, y in client_of(site, cid, round).batches(1):
                sgd_step(F.cross_entropy(model.net.exit(model.net.body(x)), y), model.parameters(*OWN), tiny["lr"])
        trained = model.read(*OWN)
        assert torch.equal(keeps(done)[cid]["own"], trained)
        model.write(models[cid])
        assert torch.equal(model.read(*OWN), trained)


@pytest.mark.parametrize("model", [{"name": "mlp", "widths": (16,)}, "cnn", "resnet4"])
def test_without_its_two_ideas_it_is_fedavg(tiny: dict[str, Any], model: Any) -> None:
    options = tiny | {"trainer": "autograd", "model": model, "rounds": 2, "clients": 2, "lr": 0.02}
    done = run(**options, method={"name": "SplitGP", "lam": 0.0, "gamma": 0.0})
    whole = done.site.model()
    size = whole.size("body", "head")
    fedavg = run(**options).server.theta
    assert torch.equal(done.server.theta[:size], fedavg[:size])
    assert torch.equal(done.server.theta[size + whole.size("exit") :], fedavg[size:])  # BatchNorm's statistics
    other = run(**options, method={"name": "SplitGP", "lam": 0.0, "gamma": 0.5}).server.theta
    assert not torch.equal(other[:size], fedavg[:size])


def test_the_cut_lies_after_the_convolutions(tiny: dict[str, Any]) -> None:
    def parts(model: Any) -> tuple[list[str], list[str], int]:
        net = site_of(Config(**(tiny | {"model": model}), method="SplitGP")).model().net
        body, head = (list(dict(net.get_submodule(part).named_parameters())) for part in ("body", "head"))
        return body, head, net.exit.in_features

    body, head, width = parts("cnn")
    assert body == ["conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"]
    assert head == ["fc1.weight", "fc1.bias", "head.weight", "head.bias"]
    assert width == 64 * 2 * 2
    for model in ("resnet4", {"name": "mlp", "widths": (16,)}, {"name": "vit-tiny", "depth": 1}):
        body, head, _ = parts(model)
        assert head == ["weight", "bias"]
        assert body


@pytest.mark.parametrize("threshold", [0.0, 100.0])
def test_the_model_for_everybody_is_the_server_part_on_the_average(tiny: dict[str, Any], threshold: float) -> None:
    done = run(**tiny, method={"name": "SplitGP", "threshold": threshold, "lam": 0.6})
    client = client_of(done.site, 2)
    client.keep = dict(keeps(done)[2])
    common = done.server.method.general(client, done.server.method.send(done.server, 2))
    model, x = done.site.model(), client.data.test.x
    model.write(common)
    assert torch.equal(model.read("shared"), done.server.theta)
    net = model.net.eval()
    assert torch.equal(net(x), net.head(net.body(x)))
    model.write(used(done)[2])
    leaves_early = torch.equal(net(x), net.exit(net.body(x)))
    assert leaves_early == (threshold == 100.0)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batchnorm_statistics_go_with_the_client_part(tiny: dict[str, Any], buffers: str) -> None:
    options = tiny | {"model": "resnet4", "clients": 3, "rounds": 2, "lr": 0.01, "buffers": buffers}
    done = run(**options, method={"name": "SplitGP", "lam": 0.25, "personal_model": "mixture"})
    assert done.result.failures == 0
    model = done.site.model()
    size = model.size("buffers")
    for cid, whole in enumerate(used(done)):
        model.write(whole)
        own = keeps(done)[cid]["own"][-size:]
        mixed = 0.25 * own + 0.75 * done.server.theta[-size:]
        torch.testing.assert_close(model.read("buffers"), mixed if buffers == "average" else own, rtol=0, atol=1e-6)
