"""Each rule against its definition, in vectors and words of its paper, and against independent solvers."""

import copy
import math

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import close, equation_9, family, matrices, quick, tame

from comity._layout import Layout
from comity.rules import (
    CALM,
    MGDA,
    CAGrad,
    ConFREE,
    FairDescent,
    FedFV,
    FedMGDAPlus,
    GeometricMedian,
    Projection,
    Updates,
    UPGrad,
    improvement,
    protected_directions,
)


def optimum(goal: cp.Minimize | cp.Maximize, *constraints: object) -> float:
    problem = cp.Problem(goal, list(constraints))
    problem.solve(solver=cp.CLARABEL)
    return problem.value


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


@pytest.mark.parametrize(("rule", "centre"), [(ConFREE, equation_9), (CAGrad, lambda U: U.mean(0))])
@given(U=tame, c=st.sampled_from((0.2, 0.5, 0.9)))
@quick
def test_confree_and_cagrad_solve_their_primal(rule, centre, U, c):
    """ConFREE, Equation 10: no d within c|g| of g helps the worst-off client more."""
    moved, g = U[U.norm(dim=1) > 0].numpy(), centre(U).numpy()
    if len(U) == 1 or not len(moved):
        return
    outcome = rule(c).apply(Updates(U))
    d, reach = outcome.update.numpy(), c * np.linalg.norm(g)
    assert np.linalg.norm(d - g) <= reach + 1e-9
    x = cp.Variable(U.shape[1])
    best = optimum(cp.Maximize(cp.min(moved @ x)), cp.norm(x - g) <= reach)
    assert (moved @ d).min() == pytest.approx(best, abs=2e-7 * float((moved**2).sum(1).mean()))
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
    x = cp.Variable(U.shape[1])
    best = optimum(cp.Minimize(0.5 * cp.sum_squares(x - g) + C * cp.sum(cp.pos(eps * r - moved @ x))))
    value = 0.5 * (d - g) @ (d - g) + C * np.maximum(eps * r - moved @ d, 0).sum()
    assert value == pytest.approx(best, rel=1e-6, abs=1e-6)
    # the objective is 1-strongly convex: half the squared distance to its minimiser is at most the excess of a value
    assert 0.5 * np.sum((d - x.value) ** 2) <= 1e-6 * max(1, abs(best))
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
    w = cp.Variable(len(moved), nonneg=True)
    best = optimum(cp.Minimize(cp.sum_squares(unit.T @ w)), cp.sum(w) == 1, cp.abs(w - share) <= eps)
    update = FedMGDAPlus(eps, lr=0.5)(U, sizes=sizes)
    assert float(update @ update) / 0.25 == pytest.approx(best, abs=1e-7)
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
    shortest = optimum(cp.Minimize(cp.sum_squares(Q.numpy().T @ weights)), cp.sum(weights) == 1)
    return Q, shortest, float(g.mean(0).norm())


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


def near_lemma_1(cosine: float) -> torch.Tensor:
    """Two updates of length 1 with this cosine."""
    return torch.tensor([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64)


def test_lemma_1_of_fedpg_is_false():
    """Equal updates help everybody, and with unequal losses the step is 0; near that it is orthogonal to the mean."""
    equal = FairDescent().apply(Updates(torch.ones(2, 3), losses=[0.2, 1.0]))
    assert not equal.update.any()
    assert FairDescent().caution(equal).startswith("FairDescent's step is 0: its term for equal losses cancels")
    for cosine, sigma, to_mean in ((0.99, 57, 0.09), (0.9, 18, 0.28)):
        U = near_lemma_1(cosine)
        near, mean = FairDescent().apply(Updates(U, losses=[0.2, 1.0])), U.mean(0)
        assert near.notes["sigma"].item() == pytest.approx(sigma, rel=0.03)
        measured = float(near.update @ mean / near.update.norm() / mean.norm())
        assert near.notes["cosine"].item() == pytest.approx(measured)
        assert measured == pytest.approx(to_mean, abs=0.01)
        assert ("nearly orthogonal to the mean update (cosine 0.09)" in FairDescent().caution(near)) == (cosine == 0.99)


def test_least_descent_leaves_out_what_cancels_the_common_descent():
    for U in (torch.ones(2, 3).double(), near_lemma_1(0.99), near_lemma_1(0.9)):
        losses = [0.2, 1.0]
        repaired, without = (
            FairDescent(least_descent=0.1).apply(Updates(U, losses=losses)),
            FairDescent()(U, losses=[1.0, 1.0]),
        )
        assert close(repaired.update, without, U)  # equal losses have no such term
        assert FairDescent().caution(repaired) == ""
    # the formula wherever the term leaves more than that share of the descent
    rng = torch.Generator().manual_seed(0)
    left_out = 0
    for _ in range(20):
        U = 0.5 + torch.randn(4, 6, generator=rng, dtype=torch.float64)
        losses = torch.rand(4, generator=rng, dtype=torch.float64)
        formula, plain = (
            FairDescent().apply(Updates(U, losses=losses)),
            FairDescent().apply(Updates(U, losses=[1.0] * 4)),
        )
        share = float(plain.notes["sigma"] / formula.notes["sigma"])  # both steps are as long as the mean
        assert share <= 1 + 1e-9
        for least in (0.0, 0.3, 1.0):
            wanted = plain if share < least else formula
            left_out += wanted is plain
            assert close(FairDescent(least_descent=least)(U, losses=losses), wanted.update, U)
    assert 0 < left_out < 60


def test_a_step_of_conflicting_clients_is_not_blamed_on_the_losses():
    U = torch.tensor([[1.0, 0.0], [-1.0, 1e-9]], dtype=torch.float64)
    assert "hardly any direction helps every client" in FairDescent().caution(
        FairDescent().apply(Updates(U, losses=[1.0, 1.0]))
    )


def test_the_rate_of_fedmgda_plus_decays():
    U = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    first, rule = FedMGDAPlus(lr=0.5)(U), FedMGDAPlus(lr=0.5, lr_decay=0.9)
    for t in range(4):
        torch.testing.assert_close(rule(U), first * 0.9**t)
    resumed = FedMGDAPlus(lr=0.5, lr_decay=0.9)
    resumed.state = dict(rule.state)
    torch.testing.assert_close(resumed(U), first * 0.9**4)
    constant = FedMGDAPlus(lr=0.5)
    assert torch.equal(constant(U), constant(U))
    assert constant.state == {}


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


@given(tame, st.sampled_from((0.05, 0.3, 0.6, 1.0)))
@quick
def test_mgda_with_a_cap_solves_its_problem(U, cap):
    moved = U[U.norm(dim=1) > 0]
    if not len(moved):
        return
    most = max(cap, 1 / len(moved))
    outcome = MGDA(cap).apply(Updates(U))
    w = cp.Variable(len(moved), nonneg=True)
    best = optimum(cp.Minimize(cp.sum_squares(moved.numpy().T @ w)), cp.sum(w) == 1, w <= most)
    assert float(outcome.update @ outcome.update) == pytest.approx(best, abs=1e-6)
    assert float(outcome.coefficients.max()) <= most + 1e-12
    if cap == 1:
        assert torch.equal(outcome.coefficients, MGDA().apply(Updates(U)).coefficients)
    if cap * len(moved) <= 1:
        assert close(outcome.update, moved.mean(0), U)


@given(matrices)
@quick
def test_upgrad_is_the_mean_of_protected_directions(U):
    G = Updates(U).gram
    assert close(UPGrad()(U), protected_directions(G).coefficients.mean(0) @ U, U)
    gains = improvement(Updates(U), UPGrad().apply(Updates(U)).coefficients)
    assert float(gains.min()) >= -1e-9 * float(G.diagonal().max())


@given(tame, st.integers(0, 1000))
@quick
def test_the_geometric_median_solves_its_problem(U, seed):
    p = torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 2, len(U)))
    p = p / p.sum()
    outcome = GeometricMedian().apply(Updates(U, sizes=p))
    x = cp.Variable(U.shape[1])
    best = optimum(cp.Minimize(sum(w * cp.norm(x - row) for w, row in zip(p.numpy(), U.numpy(), strict=True))))
    assert float(p @ (outcome.update - U).norm(dim=1)) == pytest.approx(best, abs=1e-6)
    assert float(outcome.coefficients.sum()) <= 1 + 1e-12  # members that did not move have the rest
    assert float(outcome.coefficients.min()) >= 0


@given(matrices)
@quick
def test_the_geometric_median_of_identical_updates_is_that_update(U):
    same = U[:1].expand(5, -1)
    assert close(GeometricMedian()(same), U[0], U)
    # and more than half of the weight decides alone
    other = torch.cat((same, U[-1:], -3 * U[-1:]))
    assert close(GeometricMedian()(other), U[0], U)
