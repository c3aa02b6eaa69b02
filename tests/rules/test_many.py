"""Solvers for many clients: the same steps and certificates as those that factor the whole Gram matrix."""

import pytest
import torch

from comity.rules import CALM, MGDA, CAGrad, ConFREE, FedMGDAPlus, Projection, Sketch, Updates, solvers
from comity.rules import _block as block
from comity.rules import _many as many
from comity.rules import _rows as rows
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
