"""Each rule against its definition in vectors, independent solvers, and the properties it must have."""

import copy
import doctest
import inspect
import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import close, family, matrices, quick, tame

import comity.rules
from comity._errors import ComityError
from comity._layout import Layout
from comity._options import options
from comity.rules import (
    CALM,
    MGDA,
    RULES,
    CAGrad,
    ConFREE,
    FairDescent,
    FedFV,
    FedMGDAPlus,
    GeometricMedian,
    Mean,
    Projection,
    Rule,
    ServerStep,
    Solution,
    SolverWarning,
    TorchJD,
    Updates,
    UPGrad,
)

ALL = [
    Mean(),
    Projection(),
    Projection(order="sequential"),
    ConFREE(),
    CALM(),
    CALM(scale="layer"),
    MGDA(),
    MGDA(normalise=True, length="mean"),
    FedMGDAPlus(),
    FedMGDAPlus(norm_restore=True),
    FedFV(),
    FairDescent(),
    MGDA(cap=0.4),
    UPGrad(),
    CAGrad(),
    GeometricMedian(),
]


def losses_of(U: torch.Tensor) -> torch.Tensor:
    """Losses that go with the rows, so that they move with them."""
    return 1 + (U.abs().sum(1) / U.abs().sum(1).max().clamp_min(1e-300))


# -- definitions, in vectors and words of the papers -------------------------------------------------------------------


def conflict(u: torch.Tensor, v: torch.Tensor) -> bool:
    return float(u @ v) < -1e-7 * float(u.norm() * v.norm())


def equation_9(U: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    projected = []
    for i in range(len(U)):
        p = U[i].clone()
        for j in range(len(U)):
            if j != i and conflict(U[i], U[j]):
                p -= (U[i] @ U[j]) / (U[j] @ U[j]) * U[j]
        projected.append(p)
    return torch.stack(projected).mean(0) if weights is None else weights @ torch.stack(projected)


def one_after_the_other(U: torch.Tensor, orders, divide: bool = True) -> torch.Tensor:
    projected = []
    for i in range(len(U)):
        p = U[i].clone()
        for j in orders[i]:
            dot = p @ U[j]
            if j != i and dot < -1e-7 * U[i].norm() * U[j].norm():
                p = p - (dot / (U[j] @ U[j]) if divide else dot) * U[j]
        projected.append(p)
    return torch.stack(projected)


@given(matrices)
@quick
def test_projection_is_equation_9(U):
    assert close(Projection()(U), equation_9(U), U, 1e-8)


@given(matrices)
@quick
def test_sequential_projection_is_the_loop(U):
    rule = Projection(order="sequential", seed=3)
    moved = U[U.norm(dim=1) > 0]
    if len(moved):
        orders = rule.random(0).permuted(np.tile(np.arange(len(moved)), (len(moved), 1)), axis=1)
        expected = one_after_the_other(moved, orders).sum(0) / len(U)
        assert close(rule(U), expected, U, 1e-7 * len(U))


def test_the_order_changes_from_call_to_call_and_comes_back_with_the_state():
    U = family("random", 6, 0)
    rule = Projection(order="sequential")
    first, second = rule(U), rule(U)
    assert not torch.equal(first, second)
    rule.state = {"calls": torch.tensor(1)}
    assert torch.equal(rule(U), second)
    assert torch.equal(Projection(order="sequential")(U), first)
    assert not torch.equal(Projection(order="sequential", seed=1)(U), first)


@given(tame, st.sampled_from((0.2, 0.5, 0.9)))
@quick
def test_confree_solves_its_primal(U, c):
    """Equation 10: no d within c|g| of g helps the worst-off client more."""
    moved = U[U.norm(dim=1) > 0]
    if len(U) == 1 or not len(moved):
        return
    g = equation_9(U).numpy()
    outcome = ConFREE(c).apply(Updates(U))
    d = outcome.update.numpy()
    assert np.linalg.norm(d - g) <= c * np.linalg.norm(g) + 1e-9
    variable = cp.Variable(U.shape[1])
    worst = cp.min(moved.numpy() @ variable)
    problem = cp.Problem(cp.Maximize(worst), [cp.norm(variable - g) <= c * np.linalg.norm(g)])
    problem.solve(solver=cp.CLARABEL)
    scale = float((moved**2).sum(1).mean())
    assert (moved.numpy() @ d).min() == pytest.approx(problem.value, abs=2e-7 * scale)
    assert outcome.residual <= 1e-8


@given(tame, st.sampled_from((0.01, 0.5, 3.0)), st.sampled_from((0.1, 1.0, 10.0)))
@quick
def test_calm_solves_its_primal(U, eps, C):
    moved = U[U.norm(dim=1) > 0].numpy()
    if len(U) == 1 or not len(moved):
        return
    g, r = equation_9(U).numpy(), np.linalg.norm(moved, axis=1)
    outcome = CALM(eps, C).apply(Updates(U))
    d = outcome.update.numpy()
    variable = cp.Variable(U.shape[1])
    objective = 0.5 * cp.sum_squares(variable - g) + C * cp.sum(cp.pos(eps * r - moved @ variable))
    problem = cp.Problem(cp.Minimize(objective))
    problem.solve(solver=cp.CLARABEL)
    value = 0.5 * (d - g) @ (d - g) + C * np.maximum(eps * r - moved @ d, 0).sum()
    assert value == pytest.approx(problem.value, rel=1e-6, abs=1e-6)
    # the objective is 1-strongly convex: half the squared distance to its minimiser is at most the excess of a value
    assert 0.5 * np.sum((d - variable.value) ** 2) <= 1e-6 * max(1, abs(problem.value))
    assert outcome.residual <= 1e-9


@given(tame, st.sampled_from((0.0, 0.1, 1.0)))
@quick
def test_fedmgda_plus_solves_its_problem(U, eps):
    moved = U[U.norm(dim=1) > 0]
    if not len(moved):
        return
    sizes = torch.arange(1.0, len(U) + 1, dtype=torch.float64)
    share = (sizes[U.norm(dim=1) > 0] / sizes[U.norm(dim=1) > 0].sum()).numpy()
    unit = (moved / moved.norm(dim=1, keepdim=True)).numpy()
    variable = cp.Variable(len(moved), nonneg=True)
    problem = cp.Problem(
        cp.Minimize(cp.sum_squares(unit.T @ variable)), [cp.sum(variable) == 1, cp.abs(variable - share) <= eps]
    )
    problem.solve(solver=cp.CLARABEL)
    update = FedMGDAPlus(eps, lr=0.5)(U, sizes=sizes)
    assert float(update @ update) / 0.25 == pytest.approx(problem.value, abs=1e-7)
    restored = FedMGDAPlus(eps, norm_restore=True)(U, sizes=sizes)
    assert close(restored, update * 2 * U.mean(0).norm(), U, 1e-8)


def fedfv_in_vectors(U, losses, alpha, tau, now, last):
    """Wang et al.'s Algorithm 1 with its history as a dict of the round each client was last seen and its update."""
    n, order = len(U), sorted(range(len(U)), key=lambda i: float(losses[i]))
    projected = one_after_the_other(U, [order] * n)
    if alpha > 0:
        for i in order[math.ceil((n - 1) * (1 - alpha)) :]:
            projected[i] = U[i]
    mean = projected.mean(0)
    for age in range(tau, 0, -1):
        against = [row for seen, row in last.values() if now - seen == age and mean @ row < 0]
        if against:
            total = torch.stack(against).sum(0)
            if mean @ total < 0:
                mean = mean - (mean @ total) / (total @ total) * total
    return mean * (U.mean(0).norm() / mean.norm()) if mean.norm() > 1e-12 else U.mean(0)


def fair_in_vectors(U, losses, absent, middle):
    """FedPG's global direction in gradients g = −Δ, as its supplement writes it."""
    g, old = -U, -absent
    mu = float(middle(g.norm(dim=1).numpy()))
    g, old = mu * g / g.norm(dim=1, keepdim=True), mu * old / old.norm(dim=1, keepdim=True)
    L, p = losses, torch.ones_like(losses) / math.sqrt(len(losses))
    h = ((L @ p) * L / L.norm() - p * L.norm()) / L.norm() ** 2
    Q = torch.cat((g, old))
    if h.norm() * L.norm() > 1e-8:
        f = h @ g
        Q = torch.cat((Q, mu * f[None] / f.norm()))
    weights = cp.Variable(len(Q), nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(Q.numpy().T @ weights)), [cp.sum(weights) == 1])
    problem.solve(solver=cp.CLARABEL)
    return Q, problem.value, float(g.mean(0).norm())


ROUNDS = [("a", "b", "c"), ("b", "d"), ("a", "d", "e"), ("c", "b"), ("e",), ("a", "b", "c", "d", "e"), ("a", "c")]


@pytest.mark.parametrize(("alpha", "tau"), [(0.0, 0), (0.1, 1), (0.5, 2), (0.34, 10)])
def test_fedfv_over_rounds_with_absent_clients(alpha, tau):
    rng = torch.Generator().manual_seed(tau)
    rule, last, met = FedFV(alpha, tau), {}, 0
    for now, names in enumerate(ROUNDS):
        U = torch.randn(len(names), 6, generator=rng, dtype=torch.float64)
        losses = torch.rand(len(names), generator=rng, dtype=torch.float64)
        absent = {k: v for k, v in last.items() if k not in names and now - v[0] <= tau}
        met += len(absent)
        outcome = rule.apply(Updates(U, losses=losses, ids=names))
        assert close(outcome.update, fedfv_in_vectors(U, losses, alpha, tau, now, absent), U)
        assert set(outcome.ids) == {*names, *absent}
        last |= {name: (now, row) for name, row in zip(names, U, strict=True)}
        state = {key: value.clone() for key, value in rule.state.items()}
        rule = FedFV(alpha, tau)  # killed, and resumed from its state
        rule.state = state
    assert met > 0 or tau == 0


@pytest.mark.parametrize(("unit", "middle"), [("median", np.median), ("mean", np.mean)])
def test_fair_descent_over_rounds_with_absent_clients(unit, middle):
    rng = torch.Generator().manual_seed(5)
    rule, last, met = FairDescent(unit=unit), {}, 0
    for now, names in enumerate(ROUNDS):
        U = 0.3 + torch.randn(len(names), 9, generator=rng, dtype=torch.float64)
        losses = torch.rand(len(names), generator=rng, dtype=torch.float64)
        seen = len(set(last) | set(names))
        window = seen // len(names) if seen > len(names) else 0
        absent = [v[1] for k, v in last.items() if k not in names and now - v[0] <= window]
        met += len(absent)
        missing = torch.stack(absent) if absent else torch.empty(0, 9).double()
        Q, shortest, length = fair_in_vectors(U, losses, missing, middle)
        outcome = rule.apply(Updates(U, losses=losses, ids=names))
        d = outcome.update / outcome.notes["sigma"]
        # as short as the hull's nearest point and no less than its square along all of it: it is that point
        assert float(d @ d) == pytest.approx(shortest, abs=1e-6)
        assert float((-Q @ d).min()) >= float(d @ d) - 1e-9
        assert float(outcome.update.norm()) == pytest.approx(length)
        assert outcome.coefficients.shape == (1, len(names) + len(absent))
        last |= {name: (now, row) for name, row in zip(names, U, strict=True)}
        state = copy.deepcopy(rule.state)
        rule = FairDescent(unit=unit)
        rule.state = state
    assert met > 3


def test_normalised_mgda_does_not_rest_on_the_shortest_update():
    """The hull's nearest point of a short and many long updates is the short one; of directions it is none alone."""
    U = torch.tensor([[1e-3, 1e-3, 0.0], [1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    assert float(MGDA().apply(Updates(U)).coefficients[0, 0]) > 0.99
    even = MGDA(normalise=True).apply(Updates(U))
    lengths = U.norm(dim=1)
    same = MGDA()(U / lengths[:, None]) * lengths.mean()  # MGDA of the updates at one length
    assert close(even.update, same, U)
    assert (U @ even.update > 0).all()
    step = MGDA(normalise=True, length="mean")(U)
    assert close(step, same * U.mean(0).norm() / same.norm(), U)
    alike = U[1:] / lengths[1:, None]
    assert close(MGDA(normalise=True)(alike), MGDA()(alike), alike)


def test_fair_descent_evens_out_losses():
    U = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    even, odd = FairDescent()(U, losses=[1.0, 1.0]), FairDescent()(U, losses=[1.0, 3.0])
    assert even[0] == pytest.approx(float(even[1]))
    assert odd[1] > 1.5 * odd[0]  # the worse-off client gains more
    torch.testing.assert_close(even, U.mean(0))
    stationary = FairDescent().apply(Updates(torch.cat((U, -U)), losses=[1.0, 2.0, 1.0, 2.0]))
    assert not stationary.update.any()
    assert stationary.notes["sigma"].item() == 0


def test_released_confree_is_what_the_released_code_does():
    """The four steps of the authors' code in plain loops, SLSQP included, on a matrix of updates about 1 long."""
    from scipy.optimize import minimize

    U, c = family("random", 6, 1, 0.4), 0.4
    rule = ConFREE.released(c, seed=2)
    orders = rule.random(0).permuted(np.tile(np.arange(6), (6, 1)), axis=1)
    g = one_after_the_other(U, orders, divide=False).mean(0)
    A, b, reach = (U @ U.T).numpy(), (U @ g).numpy(), c * float(g.norm()) + 1e-8
    found = minimize(
        lambda w: w @ b + reach * np.sqrt(w @ A @ w + 1e-8),
        np.full(6, 1 / 6),
        bounds=[(0, 1)] * 6,
        constraints={"type": "eq", "fun": lambda w: 1 - sum(w)},
    )
    step = torch.from_numpy(found.x) @ U
    expected = (g + reach / (step.norm() + 1e-8) * step) / (1 + c**2)
    assert close(rule(U), expected, U, 1e-6)  # SLSQP differentiates numerically, with steps of 1.5e-8
    assert not close(g, equation_9(U), U, 1e-2)
    short = ConFREE.released(c).apply(Updates(1e-3 * U))
    torch.testing.assert_close(short.update / 1e-3, U.mean(0) * (1 + c) / (1 + c**2), rtol=1e-3, atol=1e-3)
    assert short.residual > 1e-8  # SLSQP did not leave its start; the certificate says so
    layered = Updates(U, layout=Layout([("a", (6,)), ("b", (7,))]))
    assert ConFREE.released().apply(layered).coefficients.shape == (2, 6)


# -- properties --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "degree"),
    [
        (Mean(), 1),
        (Projection(), 1),
        (Projection(order="sequential"), 1),
        (ConFREE(), 1),
        (CALM(scale="layer"), 1),
        (MGDA(), 1),
        (MGDA(normalise=True), 1),
        (FedMGDAPlus(), 0),
        (FedMGDAPlus(norm_restore=True), 1),
        (FedFV(tau=0), 1),
        (FairDescent(), 1),
    ],
)
@given(U=matrices, factor=st.sampled_from((2.0**-10, 0.5, 2.0**12)))
@quick
def test_scale_of_the_updates(rule, degree, U, factor):
    rule = copy.deepcopy(rule)
    losses = losses_of(U)
    fresh = copy.deepcopy(rule)
    one, other = rule(U, losses=losses), fresh(factor * U, losses=losses)
    assert close(factor**degree * one, other, U * factor**degree, 3e-6)


@pytest.mark.parametrize("rule", [CALM(), ConFREE.released(0.5)])
def test_scale_matters_where_the_published_rule_lets_it(rule):
    U = family("random", 5, 0)
    stretched = rule(0.01 * U).norm() / (0.01 * rule(U).norm())
    assert abs(float(stretched) - 1) > 0.05


def test_literal_calm_stretches_short_updates_and_the_outcome_says_so():
    U = family("random", 20, 0) / 6
    short = CALM(0.1, 10.0).apply(Updates(0.01 * U))
    assert float(short.stretch) > 10
    assert float(CALM(0.1, 10.0, scale="layer").apply(Updates(0.01 * U)).stretch) < 3
    assert float(CALM(0.1, 10.0, length="mean").apply(Updates(0.01 * U)).stretch) == pytest.approx(1)


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


@pytest.mark.parametrize("rule", ALL, ids=repr)
@pytest.mark.parametrize("scope", ["model", "layer"])
def test_length_of_the_mean(rule, scope):
    rule = copy.deepcopy(rule)
    rule.length = "mean"
    rule.scope = scope if not isinstance(rule, Mean) else "model"
    layout = Layout([("a", (4,)), ("b", (7,))])
    U, sizes = family("random", 5, 4), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float64)
    own = copy.deepcopy(rule)
    own.length = "own"
    arguments = {"layout": layout, "sizes": sizes, "losses": sizes}
    outcome, free = rule.apply(Updates(U, **arguments)), own.apply(Updates(U, **arguments))
    plain = sizes / sizes.sum() @ U
    if rule.scope == "layer":
        torch.testing.assert_close(outcome.stretch, torch.ones(2, dtype=torch.float64))
        pairs = [(layout.split(outcome.update)[k], layout.split(free.update)[k]) for k in range(2)]
    else:
        assert float(outcome.update.norm()) == pytest.approx(float(plain.norm()))
        pairs = [(outcome.update, free.update)]
    for one, other in pairs:
        torch.testing.assert_close(one / one.norm(), other / other.norm())


def test_stretch_is_relative_to_the_plain_mean():
    layout = Layout([("a", (2,)), ("b", (2,))])
    U = torch.tensor([[1.0, 0, 1, 0], [1.0, 0, -1, 0]], dtype=torch.float64)

    class Triple(Mean):
        def weigh(self, updates):
            mean = super().weigh(updates)
            return mean._replace(coefficients=3 * mean.coefficients)

    assert Triple().apply(Updates(U, layout=layout)).stretch.nan_to_num(-1).tolist() == [3, -1]
    uniform = Mean(by="uniform").apply(Updates(U, layout=layout, sizes=[3, 1]))
    assert uniform.stretch.tolist() == [1, 0]
    assert Projection().apply(Updates(U, layout=layout)).stretch.nan_to_num(-1).tolist() == [1, -1]


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
        (
            lambda: Mean(length="short"),
            r"rule\.length must be own \| mean \| fedexp \| search or a number, above 0, got 'short'",
        ),
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
    assert Median(scope="layer").apply(Updates(U, layout=Layout([("a", (1,)), ("b", (1,))]))).coefficients.shape == (
        2,
        3,
    )
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
