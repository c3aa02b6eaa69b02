"""TorchJD, as a rule and as an independent judge."""

import re
import sys

import cvxpy as cp
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rule_families import close, family, quick, tame
from torchjd.aggregation import MGDAWeighting, UPGradWeighting
from torchjd.linalg import DualConeProjector

from comity._errors import ComityError, install
from comity.rules import MGDA, TorchJD, Updates, protected_directions


class ClarabelProjector(DualConeProjector):
    """TorchJD's own needs quadprog; this is its definition, min vᵀGv for v ≥ u."""

    def __call__(self, U, G):
        rows = []
        values, vectors = torch.linalg.eigh(G)
        A = (vectors * values.clamp_min(0).sqrt()).T.numpy()
        for u in U.numpy():
            v = cp.Variable(len(u))
            cp.Problem(cp.Minimize(cp.sum_squares(A @ v)), [v >= u]).solve(solver=cp.CLARABEL)
            rows.append(torch.from_numpy(v.value))
        return torch.stack(rows)


@given(tame)
@quick
def test_mgda_is_at_least_as_short_as_torchjds(U):
    if (U.norm(dim=1) > 0).all():  # to TorchJD an update of 0 is one to be counted
        G = U @ U.T
        w = MGDAWeighting(epsilon=1e-9, max_iters=300)(G)
        ours, theirs = float(MGDA()(U).norm() ** 2), float(w @ G @ w)
        assert ours <= theirs + 1e-12
        assert theirs <= ours + 1e-2 * float(G.diagonal().max())  # which is as near as Frank and Wolfe come


@given(tame)
@quick
def test_protected_directions_are_upgrads_projections(U):
    """UPGrad weighs with the mean of all updates projected on the dual cone, which are our directions for gamma 0."""
    if (U.norm(dim=1) > 0).all():
        G = U @ U.T
        ours = protected_directions(G)
        theirs = UPGradWeighting(projector=ClarabelProjector())(G)
        assert close(theirs @ U, ours.coefficients.mean(0) @ U, U, 1e-3)  # a value good to 1e-8 is a point to its root
        assert ours.residual <= 1e-12


@given(tame, st.sampled_from((0.0, 0.3, 1.0)))
@quick
def test_protected_directions_keep_their_promise(U, gamma):
    G = U @ U.T
    X, _ = protected_directions(G, gamma)
    products = X @ G
    scale = float(G.diagonal().max().clamp_min(1e-300))
    assert float((products - gamma * G.clamp_max(0)).min()) >= -1e-10 * scale
    if gamma == 1:
        assert torch.equal(X, torch.eye(len(U), dtype=torch.float64))
    own = (protected_directions(G).coefficients @ U - U).norm(dim=1)
    assert torch.all(((X @ U - U).norm(dim=1) - (1 - gamma) * own).abs() <= 1e-9 * scale**0.5)


def test_protected_directions_leave_those_without_conflict_alone():
    U = family("random", 4, 0).abs()
    assert torch.equal(protected_directions(U @ U.T).coefficients, torch.eye(4, dtype=torch.float64))
    with pytest.raises(ComityError, match="gamma must be at least 0 and at most 1, got 2"):
        protected_directions(U @ U.T, 2)


def test_a_weighting_by_name():
    U = family("random", 5, 0)
    G = U @ U.T
    ours = TorchJD("UPGrad", projector=ClarabelProjector())(U)
    torch.testing.assert_close(ours, UPGradWeighting(projector=ClarabelProjector())(G / G.diagonal().mean()) @ U)
    layered = TorchJD("MGDA", scope="layer", length="mean").apply(Updates(U))
    assert layered.coefficients.shape == (1, 5)
    assert layered.length_ratio.item() == pytest.approx(1)
    rule = TorchJD("PCGrad", seed=1)
    first = rule(U)
    before = torch.random.get_rng_state()
    assert not torch.equal(rule(U), first)
    assert torch.equal(torch.random.get_rng_state(), before)  # the global generator is left alone
    assert torch.equal(TorchJD("PCGrad", seed=1)(U), first)


def test_what_torchjd_cannot_do_is_told(monkeypatch):
    with pytest.raises(ComityError, match="unknown weighting of TorchJD 'UpGrad'; did you mean UPGrad"):
        TorchJD("UpGrad")
    with pytest.raises(ComityError, match="unknown weighting of TorchJD ''"):
        TorchJD("")
    with pytest.raises(ComityError, match="GradVac keeps a state"):
        TorchJD("GradVac")

    def needs_quadprog():
        raise ImportError("quadprog")

    monkeypatch.setattr("torchjd.aggregation.UPGradWeighting", needs_quadprog)
    with pytest.raises(ComityError, match="TorchJD's UPGrad needs more than TorchJD itself: quadprog"):
        TorchJD("UPGrad")
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(ComityError, match=re.escape(install("torchjd"))):
        TorchJD("UPGrad")
