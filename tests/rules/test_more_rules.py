"""Capped MGDA, rules of multi-task learning and the geometric median: definitions and independent judges."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import close, matrices, quick, tame

from comity.rules import (
    MGDA,
    CAGrad,
    GeometricMedian,
    Updates,
    UPGrad,
    improvement,
    protected_directions,
)

SEEDS = st.integers(0, 1000)


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
