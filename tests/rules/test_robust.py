"""Rules for clients that may lie: against their definitions in vectors, and on planted majorities."""

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import close, matrices, quick, tame

from comity.rules import GeometricMedian, Mean, Updates

SEEDS = st.integers(0, 1000)


def planted(seed: int, honest: int = 7, liars: int = 3) -> torch.Tensor:
    """A majority around one update, then liars far away in one place."""
    rng = torch.Generator().manual_seed(seed)
    center, far = torch.randn(2, 9, generator=rng, dtype=torch.float64)
    noise = 0.05 * torch.randn(honest + liars, 9, generator=rng, dtype=torch.float64)
    return torch.cat((center.expand(honest, -1), (20 * far).expand(liars, -1))) + noise


@given(SEEDS)
@quick
def test_a_planted_majority_wins(seed):
    U = planted(seed)
    center = U[:7].mean(0)
    for rule in (GeometricMedian(), GeometricMedian(by="uniform")):
        assert float((rule(U) - center).norm()) < 0.5
    assert float((Mean()(U) - center).norm()) > 5


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
