"""Capped MGDA, rules of multi-task learning and the geometric median: definitions and independent judges."""

import copy

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import close, family, matrices, quick, tame

from comity.rules import (
    MGDA,
    CAGrad,
    ConFREE,
    GeometricMedian,
    Updates,
    UPGrad,
    improvement,
    protected_directions,
)

SEEDS = st.integers(0, 1000)


def regular(n: int, seed: int) -> torch.Tensor:
    """Updates of several lengths that are far from dependent."""
    return family("random", n, seed) * torch.linspace(0.2, 3, n, dtype=torch.float64)[:, None]


@given(tame, st.sampled_from((0.05, 0.3, 0.6, 1.0)))
@quick
def test_mgda_with_a_cap_solves_its_problem(U, cap):
    moved = U[U.norm(dim=1) > 0]
    if not len(moved):
        return
    most = max(cap, 1 / len(moved))
    outcome = MGDA(cap).apply(Updates(U))
    w = cp.Variable(len(moved), nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(moved.numpy().T @ w)), [cp.sum(w) == 1, w <= most])
    problem.solve(solver=cp.CLARABEL)
    assert float(outcome.update @ outcome.update) == pytest.approx(problem.value, abs=1e-6)
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


@given(tame, st.sampled_from((0.2, 0.9)))
@quick
def test_cagrad_solves_its_primal(U, c):
    moved, g = U[U.norm(dim=1) > 0].numpy(), U.mean(0).numpy()
    if len(U) == 1 or not len(moved):
        return
    d = CAGrad(c)(U).numpy()
    assert np.linalg.norm(d - g) <= c * np.linalg.norm(g) + 1e-9
    variable = cp.Variable(U.shape[1])
    problem = cp.Problem(cp.Maximize(cp.min(moved @ variable)), [cp.norm(variable - g) <= c * np.linalg.norm(g)])
    problem.solve(solver=cp.CLARABEL)
    assert (moved @ d).min() == pytest.approx(problem.value, abs=2e-7 * float((moved**2).sum(1).mean()))


def test_cagrad_is_confree_where_nobody_conflicts_and_differs_where_somebody_does():
    agreeing, random = family("random", 5, 0).abs(), family("random", 5, 0)
    assert close(CAGrad()(agreeing), ConFREE()(agreeing), agreeing, 1e-6)
    assert not close(CAGrad()(random), ConFREE()(random), random, 1e-2)


@pytest.mark.parametrize("rule", [UPGrad(), CAGrad(), MGDA(cap=0.3)], ids=repr)
def test_the_order_of_clients_does_not_matter(rule):
    U, order = regular(6, 3), torch.tensor([3, 1, 5, 0, 2, 4])
    sizes = torch.arange(1.0, 7.0)
    one, other = (copy.deepcopy(rule)(U[i], sizes=sizes[i]) for i in (torch.arange(6), order))
    assert close(one, other, U, 3e-6)


@given(tame, SEEDS)
@quick
def test_the_geometric_median_solves_its_problem(U, seed):
    p = torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 2, len(U)))
    p = p / p.sum()
    outcome = GeometricMedian().apply(Updates(U, sizes=p))
    value = float(p @ (outcome.update - U).norm(dim=1))
    variable = cp.Variable(U.shape[1])
    problem = cp.Problem(
        cp.Minimize(sum(w * cp.norm(variable - row) for w, row in zip(p.numpy(), U.numpy(), strict=True)))
    )
    problem.solve(solver=cp.CLARABEL)
    assert value == pytest.approx(problem.value, abs=1e-6)
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


def test_the_geometric_median_on_a_line_is_the_median():
    U = torch.tensor([[1.0], [2.0], [50.0], [3.0], [-7.0]], dtype=torch.float64)
    assert float(GeometricMedian()(U)) == pytest.approx(2)
    assert float(GeometricMedian()(U, sizes=[1, 1, 9, 1, 1])) == pytest.approx(50)
