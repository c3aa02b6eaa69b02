"""The properties that every rule must have, and its surface."""

import copy
import doctest
import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import ALL, close, conflict, equation_9, family, losses_of, matrices, quick

import comity.rules
from comity._errors import ComityError
from comity._layout import Layout
from comity._options import options
from comity.rules import (
    CALM,
    MGDA,
    RULES,
    ConFREE,
    FairDescent,
    FedFV,
    FedMGDAPlus,
    Mean,
    Projection,
    Rule,
    ServerStep,
    Solution,
    SolverWarning,
    TorchJD,
    Updates,
)


@pytest.mark.parametrize("rule", [rule for rule in ALL if repr(rule) != "CALM()"], ids=repr)
@given(U=matrices, factor=st.sampled_from((2.0**-10, 0.5, 2.0**12)))
@quick
def test_the_step_scales_with_the_updates(rule, U, factor):
    one, other = (copy.deepcopy(rule)(scale * U, losses=losses_of(U)) for scale in (1, factor))
    grown = 1 if repr(rule) == "FedMGDAPlus()" else factor  # which has a length of its own
    assert close(grown * one, other, U * grown, 3e-6)


@pytest.mark.parametrize("rule", [CALM(), ConFREE.released(0.5)])
def test_scale_matters_where_the_published_rule_lets_it(rule):
    U = family("random", 5, 0)
    lengthened = rule(0.01 * U).norm() / (0.01 * rule(U).norm())
    assert abs(float(lengthened) - 1) > 0.05


def test_literal_calm_lengthens_short_updates_and_the_outcome_says_so():
    U = family("random", 20, 0) / 6
    short = CALM(0.1, 10.0).apply(Updates(0.01 * U))
    assert float(short.length_ratio) > 10
    assert float(CALM(0.1, 10.0, scale="layer").apply(Updates(0.01 * U)).length_ratio) < 3
    assert float(CALM(0.1, 10.0, length="mean").apply(Updates(0.01 * U)).length_ratio) == pytest.approx(1)


@pytest.mark.parametrize("rule", ALL, ids=repr)
@given(U=matrices)
@quick
def test_every_family_is_certified_and_finite(rule, U):
    rule = copy.deepcopy(rule)  # SolverWarning is an error here
    outcome = rule.apply(Updates(U, losses=losses_of(U)))
    assert torch.isfinite(outcome.update).all()
    assert outcome.residual <= rule.target
    if rule.needs_gram and len(outcome.ids) == len(U):
        expected = outcome.coefficients[0] @ U
        assert close(outcome.update, expected, U)
    if not U.any():
        assert not outcome.update.any()


@given(matrices)
@quick
def test_reductions(U):
    plain = Projection()(U)
    assert close(CALM(C=0.0)(U), plain, U)
    if len(U) > 1:
        assert close(ConFREE(0.0)(U), plain, U)
    moved = U[U.norm(dim=1) > 0]
    if len(moved):
        sizes = torch.arange(1.0, len(U) + 1, dtype=torch.float64)
        share = sizes[U.norm(dim=1) > 0]
        normalised = (share / share.sum()) @ (moved / moved.norm(dim=1, keepdim=True))
        torch.testing.assert_close(FedMGDAPlus(0.0)(U, sizes=sizes), normalised, rtol=1e-9, atol=1e-9)
        directions = moved / moved.norm(dim=1, keepdim=True)
        assert close(FedMGDAPlus(1.0)(U), MGDA()(directions), directions, 1e-6)


@given(st.integers(0, 1000), st.sampled_from((1e-3, 1.0, 1e3)))
@quick
def test_two_clients_in_conflict(seed, ratio):
    """Sequential, simultaneous and FedFV's projection are the same, and leave no conflict."""
    U = family("random", 2, seed)
    U[1] = -U[0] * float(torch.sign(U[0] @ U[1])) * 0.3 + U[1] * (ratio if U[0] @ U[1] < 0 else -ratio)
    if not conflict(U[0], U[1]):
        U[1] = -U[1]
    g = equation_9(U)
    assert close(Projection()(U), g, U)
    assert close(Projection(order="sequential")(U), g, U)
    fair = FedFV(alpha=0.0)(U, losses=[1.0, 2.0])
    assert close(fair, g * U.mean(0).norm() / g.norm(), U)
    pcgrad = TorchJD("PCGrad")(U)
    assert close(pcgrad / 2, g, U)
    assert float((U @ g).min()) >= -1e-9 * float(U.norm(dim=1).max() ** 2)


@pytest.mark.parametrize("rule", ALL, ids=repr)
def test_one_client_keeps_its_update(rule):
    U = family("one client", 3, 0, 0.01)
    expected = U[0] / U[0].norm() if repr(rule) == "FedMGDAPlus()" else U[0]
    torch.testing.assert_close(copy.deepcopy(rule)(U, losses=[1.0]), expected, rtol=1e-12, atol=0)


def test_members_that_did_not_move_dilute_a_mean_and_do_not_count_as_worst_off():
    U = family("agreeing", 4, 0)
    with_still = torch.cat((U, torch.zeros(4, U.shape[1], dtype=U.dtype)))
    for rule in (Mean(), Projection(), ConFREE(), FedFV(tau=0)):
        assert close(rule(with_still, losses=[1.0] * 8), rule(U, losses=[1.0] * 4) / 2, U, 1e-6)
    assert close(MGDA()(with_still), MGDA()(U), U)
    outcome = ConFREE().apply(Updates(with_still))
    assert outcome.coefficients[0, 4:].tolist() == [0] * 4


@pytest.mark.parametrize("rule", [Projection, ConFREE, CALM, MGDA, FairDescent])
def test_a_rule_by_layer_is_the_rule_on_each_layer(rule):
    layout = Layout([("a", (3,)), ("b", (2, 4)), ("c", (1,))])
    U, losses = family("random", 6, 3)[:, :12], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    outcome = rule(scope="layer").apply(Updates(U, layout=layout, losses=losses))
    parts = [rule(scope="model")(U[:, layer.start : layer.stop], losses=losses) for layer in layout.layers]
    assert close(outcome.update, torch.cat(parts), U)
    assert outcome.coefficients.shape == (3, 6)


def test_length_ratio_is_relative_to_the_plain_mean():
    layout = Layout([("a", (2,)), ("b", (2,))])
    U = torch.tensor([[1.0, 0, 1, 0], [1.0, 0, -1, 0]], dtype=torch.float64)

    class Triple(Mean):
        def weigh(self, updates):
            mean = super().weigh(updates)
            return mean._replace(coefficients=3 * mean.coefficients)

    assert Triple().apply(Updates(U, layout=layout)).length_ratio.nan_to_num(-1).tolist() == [3, -1]
    uniform = Mean(by="uniform").apply(Updates(U, layout=layout, sizes=[3, 1]))
    assert uniform.length_ratio.tolist() == [1, 0]
    assert Projection().apply(Updates(U, layout=layout)).length_ratio.nan_to_num(-1).tolist() == [1, -1]


def test_mean_by_size_and_uniform():
    U = family("random", 3, 0)
    torch.testing.assert_close(Mean()(U, sizes=[1, 2, 3]), torch.tensor([1.0, 2, 3]).double() / 6 @ U)
    torch.testing.assert_close(Mean(by="uniform")(U, sizes=[1, 2, 3]), U.mean(0))


@pytest.mark.parametrize("rule", [Mean(), CALM(), FedFV()], ids=repr)
def test_the_servers_learning_rate_and_momentum_with_any_rule(rule):
    rule, velocity = copy.deepcopy(rule), 0.0
    step = ServerStep(lr=0.5, momentum=0.9)
    for seed in range(3):
        update = rule(family("random", 3, seed), losses=[1.0, 2.0, 3.0])
        velocity = 0.9 * velocity + update
        torch.testing.assert_close(step(update), 0.5 * velocity)
        state = copy.deepcopy(step.state)
        step = ServerStep(lr=0.5, momentum=0.9)  # killed, and resumed from its state
        step.state = state
    unchanged = ServerStep()
    assert torch.equal(unchanged(update), update)
    assert not unchanged.state


@pytest.mark.parametrize("rescale", ["1/(1+c²)", "1/(1+c)"])
def test_rescale(rescale):
    U = family("random", 5, 0)
    assert close(ConFREE(0.5)(U) / {"1/(1+c²)": 1.25, "1/(1+c)": 1.5}[rescale], ConFREE(0.5, rescale=rescale)(U), U)


def test_confree_where_zero_is_in_the_hull():
    """e1 and −e1 leave no direction that helps all; what hurts nobody is then the best, and g already does not."""
    U = torch.tensor([[1.0, 0, 0], [-1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64)
    torch.testing.assert_close(ConFREE()(U), torch.tensor([0, 1 / 3, 0], dtype=torch.float64))
    opposed = torch.tensor([[1.0, 0], [-1.0, 0]], dtype=torch.float64)
    assert not ConFREE()(opposed).any()


# -- surface -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Mean()", Mean()),
        ("Mean(by='uniform')", Mean(by="uniform")),
        ("ServerStep(lr=0.5, momentum=0.9)", ServerStep(0.5, 0.9)),
        ("Projection(order='sequential', seed=1)", Projection(order="sequential", seed=1)),
        ("ConFREE()", ConFREE(0.5)),
        ("ConFREE(c=0.3, scope='layer', rescale='1/(1+c²)')", ConFREE(0.3, scope="layer", rescale="1/(1+c²)")),
        ("ConFREE.released(c=0.4, seed=0)", ConFREE.released(0.4)),
        ("CALM(C=1.0, scale='layer')", CALM(C=1.0, scale="layer")),
        ("MGDA(length='mean')", MGDA(length="mean")),
        ("FedMGDAPlus(eps=0.5, norm_restore=True)", FedMGDAPlus(0.5, norm_restore=True)),
        ("FedFV(alpha=0.2, tau=3)", FedFV(0.2, 3)),
        ("FairDescent(scope='layer')", FairDescent(scope="layer")),
        ("TorchJD(weighting='CAGrad', scope='layer', c=0.5)", TorchJD("CAGrad", scope="layer", c=0.5)),
    ],
)
def test_repr_is_the_rule(text, rule):
    assert repr(rule) == text
    assert repr(eval(text, vars(comity.rules))) == text


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        (lambda: ConFREE(1.0), r"rule\.c must be at least 0 and below 1, got 1\.0"),
        (lambda: ConFREE(math.nan), r"rule\.c must be a finite number, got nan"),
        (lambda: ConFREE(scope="tensor"), r"rule\.scope must be model \| layer, got 'tensor'"),
        (lambda: ServerStep(momentum=1.5), r"server\.momentum must be at least 0 and below 1, got 1\.5"),
        (lambda: ServerStep(0), r"server\.lr must be above 0, got 0"),
        (lambda: Mean(length="short"), r"rule\.length must be own \| mean .* or a number, above 0, got 'short'"),
        (lambda: CALM(eps=-1), r"rule\.eps must be at least 0, got -1"),
        (lambda: FedMGDAPlus(2), r"rule\.eps must be at least 0 and at most 1, got 2"),
        (lambda: FedFV(tau=1.5), r"rule\.tau must be a whole number, got 1\.5"),
        (lambda: FedFV()(torch.eye(2)), "FedFV needs the clients' losses"),
        (lambda: FairDescent()(torch.eye(2)), "FairDescent needs the clients' losses"),
    ],
)
def test_mistakes_are_told(mistake, told):
    with pytest.raises(ComityError, match=told):
        mistake()


@pytest.mark.parametrize("rule", [Mean, FedMGDAPlus, FedFV, comity.rules.ReleasedConFREE])
def test_rules_that_know_one_scope_refuse_another(rule):
    with pytest.raises(TypeError, match="scope"):
        rule(scope="layer")


@pytest.mark.parametrize("rule", RULES.values())
def test_every_option_of_a_rule_has_help(rule):
    described = options(rule)
    assert described.keys() <= inspect.signature(rule).parameters.keys()
    for option in described.values():
        assert option.help, option.name


def test_a_rule_of_ones_own():
    class Median(Rule):
        """The update of middle length.

        Options:
            worst: what the certificate says
        """

        certificate = "made up"
        target = 1e-3

        worst: float = 0.0

        def solve(self, block):
            middle = np.argsort(block.G.diagonal())[len(block.G) // 2]
            return Solution(np.eye(len(block.G))[middle], self.worst if self.worst < 1 else math.nan)

    U = torch.tensor([[1.0, 0], [0, 2.0], [0, 30.0]])
    torch.testing.assert_close(Median()(U), U[1])
    assert options(Median)["worst"].help == "what the certificate says"
    layered = Median(scope="layer").apply(Updates(U, layout=Layout([("a", (1,)), ("b", (1,))])))
    assert layered.coefficients.shape == (2, 3)
    with pytest.warns(SolverWarning, match=r"Median\(worst=0.5\): made up 5e-01 exceeds 1e-03"):
        assert Median(0.5).apply(Updates(U)).residual == 0.5
    with pytest.warns(SolverWarning, match="nan exceeds"):
        Median(worst=2.0)(U)


@pytest.mark.parametrize("rule", ALL, ids=repr)
def test_coefficients_are_those_of_the_whole_step(rule):
    one, other = copy.deepcopy(rule), copy.deepcopy(rule)
    U = family("random", 5, 0)
    for round in range(2):
        updates = Updates(U, losses=losses_of(U), ids=list(range(round, round + 5)))
        chosen, outcome = one.coefficients(updates), other.apply(updates)
        assert torch.equal(chosen.coefficients, outcome.coefficients)
        assert chosen.coefficients.dtype == torch.float64
        assert (chosen.ids, chosen.residual, chosen.certificate) == (outcome.ids, outcome.residual, outcome.certificate)
        assert torch.equal(chosen.updates.combine(chosen.coefficients), outcome.update)
        one.remember(chosen.updates, outcome.update)


def test_the_examples_of_the_documentation_hold():
    assert doctest.testmod(comity.rules).attempted > 0
    assert doctest.testmod(comity.rules).failed == 0
