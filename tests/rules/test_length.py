"""How long a step is, for every rule, and by what clients count in a mean."""

import copy

import pytest
import torch
from hypothesis import given
from rule_families import ALL, close, equation_9, family, losses_of, matrices, quick

from comity._errors import ComityError
from comity._layout import Layout
from comity.rules import CALM, ConFREE, ConFREELength, FedMGDAPlus, Mean, Projection, Rule, TriedSteps, Updates

SIZES = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)


def with_length(rule: Rule, length) -> Rule:
    other = copy.deepcopy(rule)
    other.length = length
    other.__post_init__()
    return other


@pytest.mark.parametrize("rule", ALL, ids=repr)
@given(U=matrices)
@quick
def test_factor_1_is_the_rules_own_step_and_others_multiply_it(rule, U):
    one, same, half = (
        with_length(rule, length).apply(Updates(U, losses=losses_of(U))).coefficients for length in ("own", 1, "0.5")
    )
    assert torch.equal(one, same)
    assert torch.equal(0.5 * one, half)


@given(matrices)
@quick
def test_fedexp_is_its_formula_on_the_mean(U):
    """Jhunjhunwala et al., Equation 6, with the clients' shares for 1/N, and ε relative to the squared lengths."""
    sizes = torch.arange(1.0, len(U) + 1, dtype=torch.float64)
    p = sizes / sizes.sum()
    mean, squares = p @ U, float(p @ (U**2).sum(1))
    rate = max(1.0, squares / (2 * (float(mean @ mean) + 1e-3 * squares))) if squares else 1.0
    assert close(Mean(length="fedexp")(U, sizes=sizes), rate * mean, U, 1e-7 * rate)


@pytest.mark.parametrize("rule", ALL, ids=repr)
@pytest.mark.parametrize(("length", "scope"), [("mean", "model"), ("mean", "layer"), ("fedexp", "model")])
def test_any_direction_can_have_the_length_of_the_mean_or_what_fedexp_gives_it(rule, length, scope):
    layout, by_layer = Layout([("a", (4,)), ("b", (7,))]), scope == "layer" and not isinstance(rule, Mean)
    own, rule = copy.deepcopy(rule), with_length(rule, length)
    own.scope = rule.scope = "layer" if by_layer else "model"
    U = family("random", 5, 4)
    free, outcome, mean = (
        each.apply(Updates(U, layout=layout, sizes=SIZES, losses=SIZES)) for each in (own, rule, Mean(length=length))
    )
    if length == "fedexp":
        assert float(mean.update.norm()) > 1.2 * float((SIZES / SIZES.sum() @ U).norm())
    split = layout.split if by_layer else lambda vector: [vector]
    for found, direction, plain in zip(split(outcome.update), split(free.update), split(mean.update), strict=True):
        assert float(found.norm()) == pytest.approx(float(plain.norm()))
        torch.testing.assert_close(found / found.norm(), direction / direction.norm())


# -- search ------------------------------------------------------------------------------------------------------------


def quadratic(targets: torch.Tensor, samples: int = 100):
    """A trial by clients whose losses are half the squared distances to their targets, from 0."""

    def trial(steps, factors, _dropped):
        ends = torch.stack([torch.stack([factor * step for factor in factors]) for step in steps])
        after = ((ends - targets[:, None, None]) ** 2).sum(-1) / 2
        return TriedSteps((targets**2).sum(1) / 2, after, torch.full((len(targets),), samples))

    return trial


@pytest.mark.parametrize(("distance", "factor"), [(0.4, 0.5), (1.0, 1.0), (1.4, 1.5), (1.9, 2.0), (9.0, 3.0)])
def test_search_takes_the_step_that_helps_most(distance, factor):
    U = torch.ones(3, 2, dtype=torch.float64)
    updates = Updates(U, trial=quadratic(distance * U))
    torch.testing.assert_close(Mean(length="search").apply(updates).update, factor * U[0])


@pytest.mark.parametrize(("samples", "factor"), [(100, 1.0), (10, 3.0)])
def test_search_harms_nobody_that_the_rules_own_step_does_not(samples, factor):
    """Two clients are far away, the third is near: a long step overshoots it, which few samples could not tell."""
    U = torch.ones(3, 1, dtype=torch.float64)
    targets = torch.tensor([[9.0], [9.0], [0.6]], dtype=torch.float64)
    outcome = Mean(length="search").apply(Updates(U, trial=quadratic(targets, samples)))
    assert float(outcome.update) == pytest.approx(factor)


def test_where_nobody_can_be_asked_a_search_is_refused():
    with pytest.raises(ComityError, match="only a run can do"):
        ConFREE(length="search")(family("random", 3, 0))


def test_updates_that_are_clipped_or_chosen_can_still_be_tried():
    U = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 50.0]], dtype=torch.float64)
    updates = Updates(U, trial=quadratic(U)).clipped()
    some = updates.only([0, 1])
    assert some.try_steps([some.row(0)], (1.0,)).after[0, 0, 0] == 0


# -- by size or uniform ------------------------------------------------------------------------------------------------


@given(matrices)
@quick
def test_projection_by_size(U):
    sizes = torch.arange(1.0, len(U) + 1, dtype=torch.float64)
    expected = equation_9(U, sizes / sizes.sum())
    assert close(Projection(by="size")(U, sizes=sizes), expected, U, 1e-8)
    assert close(CALM(C=0.0, by="size")(U, sizes=sizes), expected, U, 1e-8) or len(U) == 1


@pytest.mark.parametrize("order", ["simultaneous", "sequential"])
def test_by_size_and_uniform_are_the_same_for_equal_sizes_and_differ_for_others(order):
    U = family("random", 5, 0)
    for make in (
        lambda by: Mean(by=by),
        lambda by: Projection(by=by, order=order),
        lambda by: ConFREE(by=by, order=order),
        lambda by: CALM(by=by),
        lambda by: FedMGDAPlus(by=by),
    ):
        torch.testing.assert_close(make("size")(U), make("uniform")(U))
        assert not close(make("size")(U, sizes=SIZES), make("uniform")(U, sizes=SIZES), U, 1e-3)


@given(U=matrices)
@quick
def test_the_control_has_confrees_length_and_the_means_direction(U):
    own, control = (rule(0.4).apply(Updates(U)).update for rule in (ConFREE, ConFREELength))
    uniform = U.mean(0)
    if uniform.norm() > 1e-6 * U.norm():
        assert close(control, uniform * (own.norm() / uniform.norm()), U, 1e-6)
