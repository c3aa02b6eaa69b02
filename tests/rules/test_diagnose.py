import pytest
import torch

from comity._layout import Layout
from comity.rules import (
    MGDA,
    ConFREE,
    Mean,
    Updates,
    against,
    conflict_rate,
    cosines,
    harm,
    improvement,
    loss_change,
    step_cosines,
)

U = torch.tensor([[1.0, 0.0, 2.0], [-1.0, 1.0, 1.0], [0.0, -3.0, 1.0]], dtype=torch.float64)
LAYOUT = Layout([("a", (2,)), ("b", (1,))])


def test_conflict_rate_is_definition_2():
    # layer a: (0, 1) and (1, 2) conflict, (0, 2) is exactly perpendicular; layer b: nobody
    rate = conflict_rate(Updates(U, layout=LAYOUT))
    assert rate.layers.tolist() == pytest.approx([2 / 3, 0])
    assert rate.overall == pytest.approx(2 / 6)
    assert rate.pairs.tolist() == [[0, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0]]


def test_rounding_is_no_conflict():
    almost = torch.tensor([[1.0, 0.0], [-1e-8, 1.0]], dtype=torch.float64)
    assert conflict_rate(Updates(almost)).overall == 0
    assert conflict_rate(Updates(torch.tensor([[1.0, 0.0], [-1e-6, 1.0]], dtype=torch.float64))).overall == 1
    assert conflict_rate(Updates(torch.tensor([[1.0, 0.0]]))).overall == 0


def test_cosines_and_harm():
    u = Updates(torch.cat((U, torch.zeros(1, 3, dtype=torch.float64))))
    expected = torch.nn.functional.cosine_similarity(U[:, None], U[None], dim=2)
    torch.testing.assert_close(cosines(u)[:3, :3], expected)
    assert not cosines(u)[3].any()
    torch.testing.assert_close(harm(Updates(U), lr=0.1), -U @ U.T / 0.1)


def test_improvement_is_the_first_order_prediction_of_the_step():
    u = Updates(U, layout=LAYOUT)
    for rule in (Mean(), ConFREE(), ConFREE(scope="layer")):
        outcome = rule.apply(u)
        torch.testing.assert_close(improvement(u, outcome.coefficients), U @ outcome.update)
    torch.testing.assert_close(improvement(u, torch.tensor([1.0, 0.0, 0.0]).double()), U @ U[0])


def test_loss_change_is_confrees_equation_8_and_fedcalms_equation_10():
    u, sizes, lr = Updates(U, layout=LAYOUT, sizes=[1, 2, 5]), torch.tensor([1.0, 2.0, 5.0]).double() / 8, 0.1
    change = loss_change(u, lr)
    total, layers = 0.0, [0.0, 0.0]
    for i in range(3):
        for j in range(3):
            total -= float(sizes[i] * sizes[j] * (U[i] @ U[j])) / lr
            for k, part in enumerate((slice(0, 2), slice(2, 3))):
                layers[k] -= (i != j) * float(sizes[i] * sizes[j] * (U[i, part] @ U[j, part])) / lr
    assert change.total == pytest.approx(total)
    assert change.layers.tolist() == pytest.approx(layers)
    assert change.others == pytest.approx(sum(layers))
    assert layers[0] > 0 > total  # in layer a the others harm, though the mean helps on the whole


def test_whom_a_step_points_against():
    # the mean of (1, 0), (1, 0) and (-1, 0.1) is a third of (1, 0.1): against the last client alone
    u = Updates(torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [0.0, 0.0]], dtype=torch.float64), ids=[5, 6, 9, 2])
    assert against(u, u.shares) == [9]
    assert against(u, torch.tensor([0.0, 0.0, 1.0, 0.0]).double()) == [5, 6]
    assert against(u, MGDA().apply(u).coefficients) == []  # the common descent direction is against nobody
    # pairs conflict, and yet the mean is against nobody: conflict is not harm
    spread = Updates(torch.tensor([[1.0, 1.2], [1.0, -1.2]], dtype=torch.float64))
    assert conflict_rate(spread).overall == 1
    assert against(spread, spread.shares) == []


def test_step_cosines_are_those_of_the_step_itself():
    still = torch.cat((U, torch.zeros(1, 3, dtype=torch.float64)))
    u = Updates(still, layout=LAYOUT)
    for rule in (Mean(), ConFREE(), ConFREE(scope="layer")):
        outcome = rule.apply(u)
        expected = torch.nn.functional.cosine_similarity(U, outcome.update[None], dim=1)
        found = step_cosines(u, outcome.coefficients)
        torch.testing.assert_close(found[:3], expected)
        assert found[3] == 0
    assert step_cosines(Updates(torch.zeros(2, 3)), torch.tensor([0.5, 0.5]).double()).tolist() == [0, 0]


def test_who_moves_the_others_way():
    """Nine that learn the same, one of them twice, and one of pure noise."""
    random = torch.Generator().manual_seed(0)
    common = torch.randn(2000, generator=random, dtype=torch.float64)
    noise = 0.3 * torch.randn(9, 2000, generator=random, dtype=torch.float64)
    stranger = torch.randn(1, 2000, generator=random, dtype=torch.float64)
    rows = torch.cat((common + noise, (common + noise[0])[None], stranger))
    cosines_with_step = step_cosines(Updates(rows), torch.full((11,), 1 / 11, dtype=torch.float64))
    parts = cosines_with_step / cosines_with_step.abs().sum()
    assert parts[9] == pytest.approx(float(parts[0]), rel=1e-12)  # the same update, the same part
    assert parts[:10].tolist() == pytest.approx([0.1] * 10, abs=0.005)
    assert abs(parts[10]) < 0.02  # what is left is its own part in the mean
