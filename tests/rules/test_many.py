"""Solvers for many clients: the same steps and certificates as those that factor the whole Gram matrix."""

from typing import Any

import numpy as np
import pytest
import torch

from comity._layout import Layout
from comity.rules import CALM, MGDA, CAGrad, ConFREE, FedMGDAPlus, Projection, Sketch, Updates, solvers
from comity.rules import _block as block
from comity.rules import _many as many
from comity.rules import _rows as rows
from comity.rules._folds import Folds
from comity.rules._many import MANY

RULES = [
    Projection(),
    ConFREE(),
    CAGrad(),
    CALM(scale="layer"),
    CALM(eps=1.0, C=0.05, scale="layer"),
    CALM(eps=1.0, C=100.0, scale="layer"),
    MGDA(),
    MGDA(0.01, normalise=True),
    FedMGDAPlus(),
]


def updates(kind: str, count: int, size: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(1)
    U = torch.randn(count, size, generator=draw, dtype=torch.float64)
    if kind == "agreeing":
        U += 0.3
    elif kind == "groups":
        U = 0.3 * U + torch.randn(4, size, generator=draw, dtype=torch.float64)[torch.arange(count) % 4]
    elif kind == "doubles":
        U[count // 2 :] = U[: count - count // 2]
        U[-3:] = -U[:3]
    return U


def compare(rule, U, monkeypatch):
    found = rule.coefficients(Updates(U))
    with monkeypatch.context() as patch:
        for module in (many, rows, block, solvers):
            patch.setattr(module, "MANY", 10**9)
        exact = rule.coefficients(Updates(U))
    assert found.residual <= rule.target
    assert found.residual >= -1e-14
    step, wanted = found.coefficients[0] @ U, exact.coefficients[0] @ U
    # where 0 is in the hull the shortest step is 0 and has no direction
    assert (step - wanted).norm() <= 1e-6 * wanted.norm() + 1e-7


@pytest.mark.parametrize("kind", ["random", "doubles"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_step_is_that_of_the_exact_solver(rule, kind, monkeypatch):
    compare(rule, updates(kind, MANY + 50, 60), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "agreeing", "groups", "doubles"])
@pytest.mark.parametrize("rule", RULES, ids=repr)
@pytest.mark.parametrize("size", [300, 3000])
def test_the_step_of_2000_clients_is_that_of_the_exact_solver(rule, kind, size, monkeypatch):
    compare(rule, updates(kind, 2000, size), monkeypatch)


def test_no_matrix_with_a_row_for_each_client_is_factored(monkeypatch):
    U, largest = updates("groups", MANY + 100, 50), 0

    def watched(K, *args, **kwargs):
        nonlocal largest
        largest = max(largest, len(K))
        return cholesky(K, *args, **kwargs)

    cholesky = torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", watched)
    monkeypatch.setattr(torch.linalg, "eigh", None)
    for rule in RULES:
        assert rule.coefficients(Updates(U)).residual <= rule.target
    assert 0 < largest <= 100  # twice the rank


def test_many_clients_behind_sketches_have_the_bits_of_any_number_of_threads():
    U = updates("groups", MANY + 30, 3000).float()
    found = [
        ConFREE().coefficients(Updates(U, sketch=Sketch(64), key=b"key", threads=threads)) for threads in (1, 2, 4)
    ]
    assert torch.equal(found[0].coefficients, found[1].coefficients)
    assert torch.equal(found[0].coefficients, found[2].coefficients)
    assert found[0].residual <= ConFREE.target


# Many clients whose rows are here are folded, not hidden.

LAYOUT = Layout([("wide", (30, 100)), ("bias", (7,)), ("narrow", (5, 80))])
KEY = b"key"


def folded(U: torch.Tensor, k: int = 64, key: bytes = KEY, **others: Any) -> Updates:
    return Updates(U, layout=LAYOUT, sketch=Sketch(k), key=key, **others)


@pytest.mark.parametrize("layout", [Layout([("model", (LAYOUT.size,))]), LAYOUT], ids=["one layer", "a sum of layers"])
def test_folded_products_are_unbiased_and_have_at_most_the_error_of_a_sketch(layout):
    a, b = updates("random", 2, LAYOUT.size)
    b, draws, k = b + 0.5 * a, 400, 64
    cosine = float(torch.cosine_similarity(a, b, dim=0))
    maps = (Folds([a, b], None, 2, layout, torch.ones(2), k, f"{i}".encode(), 1) for i in range(draws))
    found = torch.stack([seen[0] @ seen[1] for seen in (each.flat(None) for each in maps)]) / (a.norm() * b.norm())
    error = Sketch(k).error(cosine)
    assert abs(float(found.mean()) - cosine) < 4 * error / draws**0.5
    assert 0.5 * error < float(found.std()) < error * (1 + 4 / (2 * draws) ** 0.5)


def test_a_layer_of_at_most_k_numbers_is_folded_exactly():
    U = updates("agreeing", MANY + 10, LAYOUT.size)
    for layer, (start, stop) in {1: (3000, 3007), 2: (3007, 3407)}.items():
        flat, exact = folded(U, 400).flat(layer), U[:, start:stop]
        torch.testing.assert_close(flat @ flat.T, exact @ exact.T)
    seen = folded(U, LAYOUT.size)
    assert seen.flat(None) is None  # more than four times as long as there are clients: their products are smaller
    torch.testing.assert_close(seen.gram, U @ U.T)


def test_what_is_made_of_folded_rows_is_exact():
    U, base = updates("groups", MANY + 40, LAYOUT.size).float(), torch.randn(LAYOUT.size)
    U[5] = 0
    U[6] = U[7] - (U[7] @ U[8]) / (U[8] @ U[8]) * U[8]  # orthogonal to U[8] but for rounding
    given = [*(U + base)]
    given[9] = torch.full_like(base, torch.nan)
    exact = U[[i for i in range(len(U)) if i != 9]].double()
    x = torch.rand(3, len(exact), dtype=torch.float64) - 0.4
    seen = folded(given, base=base)
    with pytest.warns(match="client 9 is dropped"):
        assert len(seen) == len(exact)
    for own in (x, x[:1], seen.shares):
        rows = own.reshape(-1, len(exact)).expand(3, -1)
        wanted = torch.cat([r @ exact[:, p.start : p.stop] for r, p in zip(rows, LAYOUT.layers, strict=True)])
        torch.testing.assert_close(seen.combine(own).double(), wanted, rtol=1e-4, atol=1e-5)
        step = seen.combine(own).double()
        rounding = 1e-6 * step.norm() * exact.norm(dim=1)
        assert ((seen.gains(own) - exact @ step).abs() <= rounding + 1e-7).all()
        lengths = [step[p.start : p.stop].norm() for p in LAYOUT.layers]
        torch.testing.assert_close(seen.lengths(own), torch.stack(lengths), rtol=1e-6, atol=0)  # a float32 step
    torch.testing.assert_close(seen.squares, (exact**2).sum(1), rtol=1e-5, atol=1e-5)


def test_a_product_that_is_next_to_nothing_has_the_right_sign():
    U = updates("random", MANY + 10, LAYOUT.size).float()
    x = torch.zeros(len(U), dtype=torch.float64)
    x[0] = 1
    d = U[0].double()
    for i, wanted in ((1, 3e-7), (2, -3e-7)):  # cosines beside which float32 sums are rounding
        v = U[i].double()
        U[i] = (v + (wanted * v.norm() * d.norm() - v @ d) / (d @ d) * d).float()
    gains, exact = folded(U).gains(x), U.double() @ d
    assert torch.equal(gains[1:3].sign(), exact[1:3].sign())
    torch.testing.assert_close(gains[1:3], exact[1:3], rtol=1e-6, atol=0)


@pytest.mark.parametrize("rule", [ConFREE(), CALM(), CALM(eps=1.0, C=0.05, scale="layer"), Projection()], ids=repr)
@pytest.mark.parametrize("kind", ["agreeing", "groups", "doubles"])
def test_rules_on_folded_rows_are_those_on_their_products(rule, kind, monkeypatch):
    """Float32 tiles and few columns at a time change no step: the same folds through the exact way."""
    U = updates(kind, MANY + 60, LAYOUT.size)
    seen = rule.coefficients(folded(U, 128))
    assert -1e-14 <= seen.residual <= rule.target
    with monkeypatch.context() as patch:
        init = block.GramBlock.__init__
        patch.setattr(block.GramBlock, "__init__", lambda self, **fields: init(self, **fields | {"sketched": False}))
        exact = rule.coefficients(folded(U, 128))
    scopes = [None] if rule.scope == "model" else range(3)
    for row, layer in enumerate(scopes):
        flat = folded(U, 128).flat(layer)
        step, wanted = seen.coefficients[row] @ flat, exact.coefficients[row] @ flat
        assert (step - wanted).norm() <= 1e-4 * wanted.norm()


@pytest.mark.parametrize("C", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("kind", ["random", "agreeing", "groups", "doubles"])
def test_a_box_by_few_columns_has_the_optimum_of_all(kind, C):
    A = updates(kind, MANY + 100, 50).T.numpy().copy()
    A = A / np.sqrt((A * A).sum(0))
    q = np.linspace(-1.0, 0.3, A.shape[1])
    few, all_ = (solvers.box(many.Factored(A), q, np.full(A.shape[1], C), by_few=by_few) for by_few in (True, False))
    assert few.residual <= 1e-13
    value = [0.5 * float(np.square(A @ found.x).sum()) + float(q @ found.x) for found in (few, all_)]
    assert value[0] == pytest.approx(value[1], rel=1e-9)
    assert ((few.x >= 0) & (few.x <= C)).all()
    np.testing.assert_allclose(A @ few.x, A @ all_.x, atol=1e-8)
