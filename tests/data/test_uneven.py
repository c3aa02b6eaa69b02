"""When classes are uneven, so that balanced accuracy decides by default."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import comity
from comity._uneven import are_uneven
from comity.compare import load as load_run
from comity.data import Dataset, Pathological, Synthetic, federate


@pytest.mark.parametrize(
    ("counts", "uneven"),
    [
        ([[50, 50], [50, 50]], False),
        ([[60, 40]], False),
        ([[61, 39]], True),  # of two classes over 60 %
        ([[50, 26, 24]], False),
        ([[51, 25, 24]], True),  # of more over 1.5 times an equal share
        ([[15, *[10] * 8, 5]], False),
        ([[16, *[10] * 8, 4]], True),
        ([[9, 9, 9, 0], [9, 9, 9, 0]], False),  # a class that nobody has is none
        ([[90, 10], [10, 90], [50, 50], [50, 50]], True),  # half of the clients
        ([[90, 10], [45, 55], [45, 55], [45, 55]], False),
        ([[7, 3], [3, 7], [3, 7], [50, 50]], False),  # clients of ten have seven of one class by luck
        ([[0, 0], [0, 0]], False),  # at a server that has no data
        ([[40, 0]], False),  # one class has nothing to be balanced with
    ],
)
def test_when_classes_are_uneven(counts: list[list[int]], uneven: bool) -> None:
    assert are_uneven(counts) is uneven


def test_clients_that_a_partition_made_are_judged_by_the_whole_data_set() -> None:
    """Seeds of one study must agree: what they draw plays no part."""
    random = np.random.default_rng(0)
    x, y, owner = random.normal(size=(400, 2)), np.arange(400) % 2, np.repeat([0, 1, 2, 3], 100)
    y[random.permutation(200)[:90]], y[200 + random.permutation(200)[:90]] = 0, 1
    own, none = Dataset("mine", x, y, columns={"client": owner}), Dataset("mine", x, y)
    by_label = federate(none, Pathological(), clients=4)
    assert are_uneven(by_label.counts.tolist())
    assert (federate(own).uneven, by_label.uneven, own.uneven(True), own.uneven(False)) == (True, False, True, False)
    assert replace(by_label, known_uneven=None).uneven  # clients that were given are taken for natural ones
    assert federate(own).first(1).uneven
    assert not federate(Synthetic(classes=2, label_shift=0.9), clients=5).uneven


def test_a_run_notes_that_its_classes_are_uneven(tmp_path: Path) -> None:
    comity.run(data="heart", rounds=1, reference="none", out=tmp_path / "run")
    partition = load_run(tmp_path / "run").partition
    assert partition is not None
    assert partition.is_uneven
