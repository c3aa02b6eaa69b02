"""When classes are uneven, so that balanced accuracy decides by default."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import comity
from comity.__main__ import main
from comity._uneven import imbalance
from comity.compare import load as load_run
from comity.data import Dataset, Pathological, Synthetic, federate


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([[50, 50], [50, 50]], ""),
        ([[60, 40]], ""),
        ([[61, 39]], "one class has over 60 % of all samples"),
        ([[50, 26, 24]], ""),
        ([[51, 25, 24]], "one of 3 classes has over 1.5 times an equal share of all samples"),
        ([[61, 20, 19]], "one class has over 60 % of all samples"),
        ([[15, *[10] * 8, 5]], ""),
        ([[16, *[10] * 8, 4]], "one of 10 classes has over 1.5 times an equal share of all samples"),
        ([[9, 9, 9, 0], [9, 9, 9, 0]], ""),  # a class without samples does not count
        ([[90, 10], [10, 90], [50, 50], [50, 50]], "in 2 of 4 clients, one class has over 60 % of the samples"),
        ([[90, 10], [45, 55], [45, 55], [45, 55]], ""),
        (
            [[70, 30], [42, 58], [0, 9]],
            "in 1 of 2 clients with at least 20 samples, one class has over 60 % of the samples",
        ),
        ([[7, 3], [3, 7], [3, 7], [50, 50]], ""),  # clients of ten have seven of one class by luck
        ([[0, 0], [0, 0]], ""),  # at a server that has no data
        ([[40, 0]], ""),  # one class has nothing to be balanced with
    ],
)
def test_how_classes_are_imbalanced(counts: list[list[int]], words: str) -> None:
    assert imbalance(counts) == words


def test_clients_that_a_partition_made_are_judged_by_the_whole_data_set() -> None:
    """Seeds of one study must agree: what they draw plays no part."""
    random = np.random.default_rng(0)
    x, y, owner = random.normal(size=(400, 2)), np.arange(400) % 2, np.repeat([0, 1, 2, 3], 100)
    y[random.permutation(200)[:90]], y[200 + random.permutation(200)[:90]] = 0, 1
    own, none = Dataset("mine", x, y, columns={"client": owner}), Dataset("mine", x, y)
    by_label = federate(none, Pathological(), clients=4)
    assert imbalance(by_label.counts.tolist())
    assert [bool(found) for found in (own.imbalance(True), own.imbalance(False))] == [True, False]
    assert (federate(own).uneven, by_label.uneven) == (True, False)
    assert replace(by_label, known_imbalance=None).uneven  # clients that were given are taken for natural ones
    assert federate(own).first(1).uneven
    assert not federate(Synthetic(classes=2, label_shift=0.9), clients=5).uneven


def test_a_run_notes_that_its_classes_are_uneven(tmp_path: Path) -> None:
    comity.run(data="heart", rounds=1, reference="none", out=tmp_path / "run")
    partition = load_run(tmp_path / "run").partition
    assert partition is not None
    assert partition.is_uneven


def test_a_run_prints_which_imbalance_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--data", "heart", "--rounds", "1", "--reference", "none"]) == 0
    words = "Classes are imbalanced: in 3 of 4 clients, one class has over 60 % of the samples."
    assert words in " ".join(capsys.readouterr().out.split())
