import pytest
import torch

from comity._layout import Layout
from comity.rules import MGDA, ConFREE, Mean, Updates, against, conflict_rate, cosines, harm, improvement, loss_change

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
