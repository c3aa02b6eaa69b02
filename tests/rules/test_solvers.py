import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import matrices, quick, tame

from comity.rules import MGDA, SolverWarning, Updates
from comity.rules.solvers import best_worst, box, box_sum, cone, factor, gram, min_norm, root, times


def normalised(U: torch.Tensor) -> np.ndarray:
    """A square root of the Gram matrix at mean diagonal 1, without rows that are 0."""
    U = U[U.norm(dim=1) > 0]
    G = (U @ U.T).numpy()
    return root(G / G.diagonal().mean())


def test_root_leaves_out_what_rounding_made_negative():
    G = np.array([[1.0, 1.0 + 1e-7], [1.0 + 1e-7, 1.0]])
    assert np.linalg.eigvalsh(G)[0] < 0
    assert abs(gram(root(G)) - G).max() <= 1e-7


@given(matrices)
@quick
def test_min_norm_is_certified(U):
    if U.any():
        A = normalised(U)
        w, residual, _ = min_norm(A)
        y = A @ w
        assert w.min() >= 0
        assert abs(w.sum() - 1) < 1e-14
        assert (A.T @ y >= y @ y - 1e-12).all()  # every client gains the squared length: the optimality of MGDA
        assert residual <= 1e-12
        assert residual == pytest.approx(y @ y - (A.T @ y).min(), abs=1e-15)


@given(matrices, st.integers(0, 100))
@quick
def test_cone_projection_is_certified(U, which):
    if U.any():
        A = normalised(U)
        A = A / np.linalg.norm(A, axis=0)
        d = A[:, which % A.shape[1]]
        x, residual, _ = cone(A, d)
        projected = d + A @ x
        assert x.min() >= 0
        assert (A.T @ projected).min() >= -1e-12  # nobody is hurt
        assert abs(projected @ (A @ x)) <= 1e-12  # and it is the nearest such: what was added is perpendicular
        assert residual <= 1e-12


@given(matrices, st.sampled_from((1e-4, 0.1, 1.0, 10.0, 100.0)), st.integers(0, 100))
@quick
def test_box_is_certified(U, high, seed):
    if U.any():
        A = normalised(U)
        A = A / np.linalg.norm(A, axis=0)
        G, q = gram(A), np.random.default_rng(seed).uniform(-1, 0.5, A.shape[1])
        upper = np.full(len(q), high)
        x, residual, _ = box(G, q, upper)
        g = G @ x + q
        assert ((x >= 0) & (x <= upper)).all()
        rounding = 1e-9 * max(1.0, high)
        assert (g[x == 0] >= -rounding).all()
        assert (g[x == high] <= rounding).all()
        assert (abs(g[(x > 0) & (x < high)]) <= rounding).all()
        assert residual <= rounding


@given(tame, st.sampled_from((0.02, 0.1, 0.5)))
@quick
def test_box_sum_is_certified_and_agrees_with_clarabel(U, eps):
    if (U.norm(dim=1) > 0).sum() > 1:
        A = normalised(U)
        n = A.shape[1]
        start = np.arange(1.0, n + 1) / np.arange(1.0, n + 1).sum()
        lower, upper = np.maximum(0, start - eps), np.minimum(1, start + eps)
        x, residual, _ = box_sum(gram(A), lower, upper, start)
        assert ((x >= lower - 1e-12) & (x <= upper + 1e-12)).all()
        assert x.sum() == pytest.approx(1, abs=1e-12)
        assert residual <= 1e-9
        z = cp.Variable(n)
        problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ z)), [cp.sum(z) == 1, z >= lower, z <= upper])
        problem.solve(solver=cp.CLARABEL)
        assert (A @ x) @ (A @ x) == pytest.approx(problem.value, abs=1e-7)


@given(matrices, st.sampled_from((0.1, 0.5, 0.9)))
@quick
def test_best_worst_is_certified(U, c):
    if U.any():
        A = normalised(U)
        a = np.full(A.shape[1], 1 / A.shape[1])
        g = A @ a
        rho = c * np.linalg.norm(g)
        if rho > 1e-9:
            x, residual, _ = best_worst(A, a, rho)
            assert x.min() >= 0
            assert np.linalg.norm(A @ x) <= rho * (1 + 1e-9)
            assert residual <= 1e-8


def test_larger_matrices_take_the_other_path_to_the_same_result():
    rng = np.random.default_rng(0)
    for n in (64, 65, 200):
        B = rng.normal(size=(n, n))
        K, b = B @ B.T + np.eye(n), rng.normal(size=n)
        solve = factor(K)
        assert np.allclose(K @ solve(b), b, rtol=0, atol=1e-10)
        assert factor(-K) is None
        assert np.allclose(times(K, b), K @ b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [100, 300])
def test_many_clients_at_once(n):
    rng = np.random.default_rng(n)
    for U in (rng.normal(size=(n, 3 * n)), rng.normal(size=(n, n // 2)), rng.normal(size=(n, n // 2)) + 0.5):
        A = normalised(torch.from_numpy(U))
        a = np.full(n, 1 / n)
        assert min_norm(A).residual <= 1e-12
        assert best_worst(A, a, 0.5 * float(np.linalg.norm(A @ a))).residual <= 1e-8
        r = np.linalg.norm(A, axis=0)
        q = -(0.3 + 0.3 * rng.normal(size=n))
        assert box(gram(A / r), q, np.full(n, 10.0)).residual <= 1e-9
        assert cone(A / r, A[:, 0] / r[0]).residual <= 1e-12
        assert box_sum(gram(A / r), np.maximum(0, a - 0.1), a + 0.1, a).residual <= 1e-9


def test_a_solver_that_gives_up_is_not_hidden(monkeypatch):
    def gives_up(*_, **__):
        raise RuntimeError("Maximum number of iterations reached.")

    monkeypatch.setattr("scipy.optimize.nnls", gives_up)
    u = Updates(torch.tensor([[1.0, 0.0, 0.0], [0.0, 5.0, 0.0]]))
    with pytest.warns(SolverWarning, match=r"MGDA\(\): duality gap .* exceeds 1e-12"):
        outcome = MGDA().apply(u)
    assert outcome.residual > 0.1
    with pytest.warns(SolverWarning, match="in layer update"):
        MGDA(scope="layer").apply(u)
