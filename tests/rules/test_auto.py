"""A rule that finds itself."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from rule_families import KINDS, family, losses_of
from test_length import quadratic

from comity._errors import ComityError
from comity.engine import run
from comity.rules import CALM, Auto, ConFREE, FedFV, Mean, Projection, TorchJD, Updates
from helpers import assert_reproducible

ONE = [
    ("Mean", Mean()),
    ("ConFREE c=0.3 length=1.5", ConFREE(0.3, length=1.5)),
    ("CALM scale=layer", CALM(scale="layer")),
    ("FedFV", FedFV()),
    ("Projection order=sequential", Projection(order="sequential")),
    ("TorchJD weighting=PCGrad", TorchJD("PCGrad")),
]


@pytest.mark.parametrize(("arm", "rule"), ONE, ids=[arm for arm, _ in ONE])
def test_one_arm_is_that_rule_exactly(arm, rule):
    auto, rule = Auto((arm,)), copy.deepcopy(rule)
    assert not auto.tries_steps
    for seed, kind in enumerate(KINDS):
        U = family(kind, 5, seed)
        ids = [f"{(seed + i) % 11}" for i in range(len(U))]
        one, other = (each.apply(Updates(U, losses=losses_of(U), ids=ids)) for each in (auto, rule))
        assert torch.equal(one.update, other.update)
        assert torch.equal(one.coefficients, other.coefficients)
        assert (one.ids, one.residual) == (other.ids, other.residual)
        if U.shape[1] != family(KINDS[(seed + 1) % len(KINDS)], 5, 0).shape[1]:  # what is remembered has another shape
            auto.state, rule.state = {}, {}


def test_it_takes_what_clients_find_best_and_sticks_to_it_between_trials():
    """The large client's update is far too long and the small one's right: the uniform mean, at twice its length."""
    U = torch.tensor([[9.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    targets, sizes = torch.tensor([[9.0, 1.0], [9.0, 1.0]], dtype=torch.float64), [9.0, 1.0]
    asked = []

    def trial(steps, factors, _dropped):
        asked.append(round)
        assert len(steps) == 2
        return quadratic(targets)(steps, factors, _dropped)

    auto = Auto(("Mean", "Mean by=uniform"), every=3)
    for round in range(25):
        outcome = auto.apply(Updates(U, sizes=sizes, trial=trial))
        torch.testing.assert_close(outcome.update, targets[0])
        assert bool(auto.verdicts) == (asked[-1] == round)
        state = copy.deepcopy(auto.state)
        auto = Auto(("Mean", "Mean by=uniform"), every=3)  # killed, and resumed from its state
        auto.state = state
    assert asked == [0, 3, 9, 21]  # a trial that changes nothing doubles the time to the next
    assert max(auto.choice, key=auto.choice.__getitem__) == "Mean by=uniform × 2"
    assert sum(auto.choice.values()) == pytest.approx(1)


def test_a_choice_that_changes_is_tried_again_soon():
    """What clients want moves away from them: longer and longer steps, until it stays."""
    U, asked = torch.ones(3, 2, dtype=torch.float64), []
    auto = Auto(("Mean", "Mean by=uniform"), every=2, memory=0.01)
    for round in range(16):

        def trial(steps, factors, _dropped, round=round):
            asked.append(round)
            return quadratic((0.5 + round / 4 if round < 8 else 2.5) * U)(steps, factors, _dropped)

        auto.apply(Updates(U, trial=trial))
        if asked[-1] == round:
            change, harmed = auto.verdicts["Mean × 0.5"]
            target = 0.5 + round / 4 if round < 8 else 2.5
            assert change == pytest.approx((0.5 - target) ** 2 - target**2)
            assert harmed == 0
    assert asked[:5] == [0, 2, 4, 6, 8]
    assert asked[5:] == [12]


def test_a_step_that_harms_one_more_client_must_gain_more():
    """At one and a half times its length the step gains a little more on average, and overshoots the nearest client."""
    U = torch.ones(4, 1, dtype=torch.float64)
    targets = torch.tensor([[1.6], [1.6], [1.6], [0.7]], dtype=torch.float64)
    many, few = (Auto(("Mean", "Mean by=uniform")).apply(Updates(U, trial=quadratic(targets, n))) for n in (100, 10))
    assert float(many.update) == 1.0
    assert float(few.update) == 1.5


@pytest.mark.parametrize(
    ("arms", "told"),
    [
        ((), "rule.arms must name at least one rule"),
        (("Meen", "ConFREE"), "unknown rule 'Meen'"),
        (("ConFREE c",), "with options such as ConFREE c=0.3, got 'ConFREE c'"),
        (("ConFREE c=7",), "rule.c must be at least 0 and below 1, got 7"),
    ],
)
def test_arms_that_cannot_be(arms, told):
    with pytest.raises(ComityError, match=told):
        Auto(arms)


def test_where_nobody_can_be_asked():
    with pytest.raises(ComityError, match="a rule other than Auto"):
        Auto()(family("random", 3, 0))


def test_a_run_records_its_choice_and_keeps_its_bits(tiny: dict[str, Any], tmp_path: Path) -> None:
    options = tiny | {"method": "FedRep", "rule": {"name": "Auto", "every": 2}, "rounds": 4, "participation": 0.6}
    one = assert_reproducible(options, tmp_path / "cut")
    weights = one.records[-1].rule.choice  # type: ignore[union-attr]
    assert len(weights) == 3 * 5
    assert sum(weights.values()) == pytest.approx(1)
    alone = {"name": "Auto", "arms": ["ConFREE c=0.3"]}
    same, other = run(**tiny, rule=alone), run(**tiny, rule={"name": "ConFREE", "c": 0.3})
    assert torch.equal(same.server.theta, other.server.theta)
    assert same.columns == other.columns
