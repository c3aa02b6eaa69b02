"""Natural clients are held_out by the folds of a cross-validation, one per seed."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import comity
from comity import ComityError
from comity._random import numpy_generator
from comity.compare import load as load_run
from comity.data import ClientData, Dataset, Dirichlet, Federation, Natural, Synthetic, federate, load
from comity.data.federation import folds_for, split_fold


def owned(sizes: list[int], classes: int = 3) -> Dataset:
    """Clients of these sizes, whose images are the number of the sample."""
    n = sum(sizes)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x = np.arange(n, dtype=np.float32).reshape(n, 1, 1)
    return Dataset("owned", x, numpy_generator(1).integers(classes, size=n), classes, {"client": owner})


def held_out(federation: Federation) -> list[int]:
    return [int(sample) for client in federation.clients for sample in client.test_ids]


@given(labels=st.lists(st.integers(0, 4), min_size=2, max_size=60), folds=st.integers(2, 9), seed=st.integers(-50, 50))
def test_each_sample_is_in_one_balanced_fold(labels: list[int], folds: int, seed: int) -> None:
    y, index = np.array(labels), 100 + np.arange(len(labels))
    known = np.append(np.zeros(100, np.int64), y)
    splits = [split_fold(index, known, folds, fold, numpy_generator(seed)) for fold in range(folds)]
    assert all(len(train) and sorted([*train, *test]) == index.tolist() for train, test in splits)
    times = Counter(int(sample) for _, test in splits for sample in test)
    if len(labels) < folds:
        assert [len(test) for _, test in splits] == [1] * folds
        assert set(times) == {*index}
        return
    assert times == Counter(index.tolist())
    for label in (None, *range(5)):
        sizes = [len(test) if label is None else int((known[test] == label).sum()) for _, test in splits]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("test_share", "folds"), [(0.1, 10), (0.25, 4), (0.3, 3), (0.5, 2), (0.9, 2)])
def test_consecutive_seeds_test_each_sample_once(test_share: float, folds: int) -> None:
    data = owned([17, 40, 25])
    repetitions = []
    for repetition in range(3):
        federations = [federate(data, seed=folds * repetition + k, test_share=test_share) for k in range(folds)]
        assert {each.folds for each in federations} == {folds} == {folds_for(test_share)}
        assert sorted(sample for each in federations for sample in held_out(each)) == list(range(82))
        repetitions.append({frozenset(held_out(each)) for each in federations})
    assert all(one.isdisjoint(other) for one, other in pairwise(repetitions))  # another repetition has other folds


def test_tests_do_not_depend_on_validation_or_on_other_clients() -> None:
    data = owned([20, 30])
    for seed in range(4):
        alone, both = federate(owned([20]), seed=seed), federate(data, Natural(), seed=seed, val_share=0.3)
        assert alone.clients[0].test_ids.tolist() == both.clients[0].test_ids.tolist()
        assert len(both.clients[0].val)


def test_ids_are_the_places_of_the_tests_in_the_data_set() -> None:
    data = owned([20, 30])
    marked = replace(data, columns=dict(data.columns) | {"test": np.arange(50) % 5 == 0})
    for federation in (federate(data), federate(data, seed=5), federate(marked), federate(Synthetic(), clients=3)):
        for client in federation.clients:
            assert client.test_ids.dtype == np.int64
            if federation.name == "owned":
                assert client.test_ids.tolist() == client.test.x.flatten().tolist()
    digits = load("digits")
    for client in federate(digits, Dirichlet(), clients=4).first(3).clients:
        assert digits.y[client.test_ids].tolist() == client.test.y.tolist()


def test_ids_of_clients_made_by_hand() -> None:
    split = federate(owned([20, 30])).clients[0].test
    assert ClientData(0, split, split, split).test_ids.tolist() == list(range(len(split)))
    with pytest.raises(ComityError, match=f"^client 0: got 1 test_ids for {len(split)} test samples$"):
        ClientData(0, split, split, split, test_ids=np.array([4]))


def test_other_clients_have_no_folds() -> None:
    marked = owned([20, 30])
    marked = replace(marked, columns=dict(marked.columns) | {"test": np.arange(50) % 5 == 0})
    drawn = federate(load("digits"), Dirichlet(), clients=4), federate(Synthetic(), clients=3)
    assert [each.folds for each in (*drawn, federate(marked))] == [0, 0, 0]


def test_a_run_writes_its_folds_and_keeps_ids_of_newcomers(tmp_path: Path) -> None:
    run = comity.run(data="heart", rounds=1, newcomers=1, reference="none", out=tmp_path / "run")
    partition = load_run(tmp_path / "run").partition
    assert partition is not None
    assert partition.folds == run.federation.folds == 3
    everyone = federate(load("heart"), newcomers=1)
    for one, other in zip(run.plan.everyone.clients, everyone.clients, strict=True):
        assert one.test_ids.tolist() == other.test_ids.tolist()
