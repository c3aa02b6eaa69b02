"""Rules that remember the updates of absent clients keep the rows that they were given."""

import copy

import pytest
import torch

from comity.rules import FairDescent, FedFV, Rule, Updates


@pytest.mark.parametrize("rule", [FedFV(tau=2), FairDescent()], ids=["FedFV", "FairDescent"])
def test_models_with_a_base_are_remembered_as_updates_are_and_nothing_is_copied(rule: Rule) -> None:
    """Clients come and go over rounds; rows of the last round are the very tensors that were given."""
    random = torch.Generator().manual_seed(3)
    plain, based = copy.deepcopy(rule), copy.deepcopy(rule)
    for present in ([0, 1, 2], [0, 3], [1, 3], [0, 2], [2, 3], [0, 1, 2, 3]):
        U = torch.randint(-8, 9, (len(present), 6), generator=random).float()  # whole numbers: base + U - base is U
        base = torch.randint(-8, 9, (6,), generator=random).float()
        about = {"ids": present, "losses": [1.0 + i for i in present]}
        models = [base + row for row in U]
        one, other = plain.apply(Updates(U, **about)), based.apply(Updates(models, base=base, **about))
        assert torch.equal(one.update, other.update)
        assert one.ids == other.ids
        kept = [based.state[f"row/{i}"] for i in range(len(present))]
        assert [row.data_ptr() for row in kept] == [model.data_ptr() for model in models]
        saved = {name: tensor.clone() for name, tensor in based.state.items()}
        based = copy.deepcopy(rule)  # killed, and resumed from its state
        based.state = saved


def test_what_a_caller_changes_afterwards_is_remembered_as_it_was() -> None:
    given, still, rule, other = torch.eye(3), torch.eye(3), FedFV(), FedFV()
    for each, rows in ((rule, given), (other, still)):
        each(rows, losses=[1.0, 2.0, 3.0])
    given.mul_(-7)
    later = -torch.eye(3)[:2]
    assert torch.equal(rule(later, losses=[1.0, 2.0]), other(later, losses=[1.0, 2.0]))
