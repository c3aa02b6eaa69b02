"""Trials of steps: clients report what a step would do to their losses, and a rule takes the best one."""

from itertools import product
from pathlib import Path

import pytest
import torch

from comity import ComityError, Config
from comity.engine import RunPlan, run
from comity.engine._admission import objection
from comity.extras.trials import StepLosses
from comity.methods import METHODS, Message
from helpers import Options, assert_reproducible

SEARCH = {"name": "ConFREE", "length": "search"}


@pytest.mark.parametrize("model", [{"name": "mlp", "widths": (16,)}, {"name": "resnet4"}], ids=["mlp", "resnet4"])
def test_losses_are_those_of_models_along_the_step(tiny: Options, model: Options) -> None:
    done = run(**(tiny | {"model": model, "rounds": 1, "clients": 3}), rule=SEARCH)
    site, state = done.site, done.server.link.states()[1]
    origin, size = site.initial, site.parameters
    step = 0.01 * torch.randn(len(origin), generator=torch.Generator().manual_seed(0)).abs()
    steps = torch.stack([step, -step / 4])
    question = Message(theta=origin + steps, factors=torch.tensor([0.5, 2.0]).double())
    reply, after = site.work(site.model(), 1, state, "try_steps", question, 1)
    net = site.model()
    data = site.federation.clients[1].train

    def loss(theta: torch.Tensor) -> float:
        net.write(theta)
        with torch.inference_mode():
            return float(torch.nn.functional.cross_entropy(net.net.eval()(data.x), data.y))

    wanted = [loss(origin)]
    for step, factor in product(steps, (0.5, 2.0)):
        wanted.append(loss(torch.cat([origin[:size] + factor * step[:size], origin[size:] + step[size:]])))
    assert isinstance(reply, StepLosses)
    assert [reply.before, *reply.after.flatten().tolist()] == pytest.approx(wanted, rel=1e-5)
    assert reply.samples == len(data)
    assert after.flat().keys() == state.flat().keys()


def test_a_search_takes_the_step_with_the_lowest_loss(tiny: Options) -> None:
    """With a handful of samples nobody can be said to be harmed: the mean loss alone decides."""
    shared = tiny | {"rounds": 1}
    found = run(**shared, rule={"name": "Mean", "length": "search"})
    (ratio,) = {round(each, 4) for each in found.records[0].rule.length_ratio.values()}
    clients = found.federation.clients

    def loss(length: float) -> float:
        done = run(**shared, rule={"name": "Mean", "length": length})
        model = done.site.model()
        model.write(done.server.theta)
        with torch.inference_mode():
            values = [torch.nn.functional.cross_entropy(model.net(c.train.x), c.train.y) for c in clients]
        return float(torch.stack(values).mean())

    losses = {length: loss(length) for length in (0.5, 1.0, 1.5, 2.0, 3.0)}
    assert ratio == min(losses, key=losses.__getitem__)
    assert ratio != 1
    plain = run(**shared)
    model = 4 * plain.server.theta.numel()
    assert found.records[0].bytes.down - plain.records[0].bytes.down == 5 * (model + 5 * 8)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_any_method_with_one_shared_part_can_search(tiny: Options, method: str) -> None:
    options = tiny | {"rounds": 2, "method": method, "rule": {"name": "Mean", "length": "search"}, "val_share": 0.2}
    if METHODS[method]().own_rule() is not None or method == "Local":
        return
    if method in {"FedCP", "FedROD", "GPFL", "IFCA", "FeSEM"}:
        with pytest.raises(ComityError, match=r"no step can be tried|sends no shared part"):
            run(**options)
    else:
        done = run(**options)
        assert all(record.rule is not None and record.rule.length_ratio for record in done.records)


def test_the_same_bits_with_several_workers_and_after_a_resume(tiny: Options, tmp_path: Path) -> None:
    assert_reproducible(tiny | {"method": "FedRep", "rule": SEARCH, "participation": 0.6}, tmp_path / "cut")


@pytest.mark.parametrize(
    ("after", "before", "told"),
    [
        (torch.ones(1, 3).double(), 1.0, "another shape"),
        (torch.ones(2).double(), 1.0, "another shape"),
        (torch.ones(1, 2), 1.0, "another shape or type"),
        (torch.tensor([[1.0, -1.0]]).double(), 1.0, "a loss that is not from 0"),
        (torch.tensor([[1.0, 1e9]]).double(), 1.0, "a loss that is not from 0"),
        (torch.ones(1, 2).double(), -5.0, "a loss that is not from 0"),
        (torch.tensor([[1.0, float("nan")]]).double(), 1.0, "that is not finite"),
    ],
)
def test_losses_that_cannot_be_are_rejected(after: torch.Tensor, before: float, told: str) -> None:
    verb = RunPlan(Config(rule=SEARCH)).verbs["try_steps"]
    sent = Message(theta=torch.zeros(1, 3), factors=torch.ones(2).double())
    assert told in str(objection(verb, sent, StepLosses(after=after, before=before, samples=9)))
    assert objection(verb, sent, StepLosses(after=torch.ones(1, 2).double(), before=1.0, samples=9)) is None


def test_clients_can_be_asked_only_where_the_rule_wants_it(tiny: Options) -> None:
    assert "try_steps" in RunPlan(Config(**tiny, rule=SEARCH)).verbs
    assert "try_steps" not in RunPlan(Config(**tiny, rule="ConFREE")).verbs
