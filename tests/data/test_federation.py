"""From a data set to the tensors of every client."""

import numpy as np
import pytest
import torch

from comity._errors import ComityError
from comity._random import numpy_generator
from comity.data import IID, Dataset, Dirichlet, Federation, Partition, Pathological, Share, federate, load
from comity.data.federation import stratified


def identities(federation: Federation, *splits: str) -> list[int]:
    """The samples of a federation whose pixel is the sample's number."""
    return [int(v) for c in federation.clients for split in splits for v in getattr(c, split).x.flatten()]


def numbered(n: int, classes: int = 3) -> Dataset:
    return Dataset("numbered", np.arange(n, dtype=np.float32).reshape(n, 1, 1), np.arange(n) % classes)


def test_tensors_are_ready_to_train_on() -> None:
    rng = np.random.default_rng(0)
    dataset = Dataset("mine", rng.integers(0, 256, (60, 5, 4, 3), dtype=np.uint8), rng.integers(0, 4, 60))
    federation = federate(dataset, IID(), clients=3, val_share=0.2)
    assert federation.shape == (3, 5, 4)
    assert [client.id for client in federation.clients] == [0, 1, 2]
    for split in (split for client in federation.clients for split in (client.train, client.val, client.test)):
        assert (split.x.dtype, split.y.dtype) == (torch.float32, torch.int64)
        assert (split.x.shape, split.y.shape) == ((len(split), 3, 5, 4), (len(split),))
        assert split.x.is_contiguous(memory_format=torch.channels_last)


def test_pixels_are_normalised_and_stay_with_their_label() -> None:
    y = np.arange(200) % 5
    x = np.zeros((200, 2, 3, 3), np.uint8)
    x[:, 1, 2, 0], x[:, 0, 0, 2] = y * 51, 255
    federation = federate(Dataset("d", x, y), IID(), clients=2)
    for client in federation.clients:
        for split in (client.train, client.test):
            assert torch.allclose(split.x[:, 0, 1, 2], (split.y * 51 / 255 - 0.5) / 0.5)
            assert (split.x[:, 2, 0, 0] == 1).all()
            assert (split.x[:, 1] == -1).all()


def test_floats_are_taken_as_they_are() -> None:
    x = np.linspace(-3, 7, 40).reshape(40, 1, 1)
    federation = federate(Dataset("d", x, np.arange(40) % 2), IID(), clients=1)
    client = federation.clients[0]
    got = torch.cat([client.train.x, client.test.x]).flatten().sort().values
    assert torch.equal(got, torch.from_numpy(x.ravel().astype(np.float32)))


def test_splits_are_disjoint_complete_and_follow_the_seed() -> None:
    data = numbered(300)
    federation = federate(data, Dirichlet(alpha=1.0), clients=6, seed=4, val_share=0.25)
    assert sorted(identities(federation, "train", "val", "test")) == list(range(300))
    again, other = (federate(data, Dirichlet(alpha=1.0), clients=6, seed=s, val_share=0.25) for s in (4, 5))
    for split in ("train", "val", "test"):
        assert identities(again, split) == identities(federation, split)
        assert identities(other, split) != identities(federation, split)


def test_the_seed_decides_the_split_even_where_the_partition_is_fixed() -> None:
    numbers = np.arange(90)
    data = Dataset("owned", numbers.reshape(90, 1, 1).astype(float), numbers % 3, columns={"client": numbers % 3})
    first, again, other = (identities(federate(data, seed=seed), "test") for seed in (0, 0, 1))
    assert first == again != other


def test_validation_comes_from_train_and_leaves_test_alone() -> None:
    without, with_val = (federate(numbered(300), IID(), clients=4, val_share=v) for v in (0.0, 1 / 3))
    assert identities(without, "test") == identities(with_val, "test")
    assert all(len(client.val) == 0 for client in without.clients)
    assert sorted(identities(with_val, "train", "val")) == sorted(identities(without, "train"))
    assert [len(c.val) for c in with_val.clients] == [round(len(c.train) / 3) for c in without.clients]


@pytest.mark.parametrize("test_share", [0.1, 0.3, 0.5, 0.8])
def test_every_split_has_the_class_mix(test_share: float) -> None:
    federation = federate(load("digits"), Dirichlet(alpha=0.3), clients=8, test_share=test_share)
    both, test = federation.counts, federation.count("test")
    assert np.abs(test - test_share * both).max() <= 1
    assert np.abs(test.sum(1) - test_share * both.sum(1)).max() <= 1
    # whatever is tested is also trained on
    assert (federation.count("train")[both > 0] > 0).all()


@pytest.mark.parametrize(
    ("labels", "taken"),
    [
        ([0, 0, 0, 0, 0, 0, 0, 1, 2, 3], {0}),  # single samples stay
        ([0, 1, 1], {1}),
        ([0, 0], {0}),
        ([0, 1], {0, 1}),  # nothing but single samples: one of them must go
    ],
)
def test_stratified_with_rare_classes(labels: list[int], taken: set[int]) -> None:
    y = np.array(labels)
    for seed in range(20):
        stay, out = stratified(np.arange(len(y)), y, 0.3, numpy_generator(seed))
        assert len(stay) >= 1
        assert len(out) >= 1
        assert sorted([*stay, *out]) == list(range(len(y)))
        assert set(y[out]) <= taken


def test_counts() -> None:
    federation = federate(load("digits"), Pathological(), clients=10, val_share=0.1)
    assert federation.counts.shape == (10, 10)
    assert federation.counts.dtype == np.int64
    by_hand = [[int((client.val.y == label).sum()) for label in range(10)] for client in federation.clients]
    assert federation.count("val").tolist() == by_hand
    assert federation.counts.sum() == 1797
    assert repr(federation).startswith("Federation(digits, 1×8×8, 10 classes, 10 clients, Pathological(")


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"clients": 0}, "^clients must be at least 1, got 0$"),
        ({"clients": 31}, "^clients must be at most 30, got 31: numbered has 60 samples and a client needs 2"),
        ({"clients": 2, "test_share": 0.0}, r"^test_share must be above 0 and below 1, got 0\.0$"),
        ({"clients": 2, "test_share": 1.0}, r"^test_share must be above 0 and below 1, got 1\.0$"),
        ({"clients": 2, "test_share": float("nan")}, r"^test_share must be a finite number, got nan$"),
        ({"clients": 2, "val_share": 1.0}, r"^val_share must be at least 0 and below 1, got 1\.0$"),
        ({"clients": 30, "val_share": 0.5}, "val_share must be 0, got 0.5: client 0 has one train sample"),
    ],
)
def test_bad_requests_end_in_one_line(given: dict[str, float], line: str) -> None:
    with pytest.raises(ComityError, match=line):
        federate(numbered(60), IID(), **given)  # type: ignore[arg-type]


def test_a_client_without_samples_is_named() -> None:
    class Stingy(Partition):
        def share(self, dataset, clients, random):
            return [Share(np.arange(len(dataset) - 1)), Share(np.arange(len(dataset) - 1, len(dataset)))]

    with pytest.raises(ComityError, match="partition: client 1 got 1 samples; a client needs 2"):
        federate(numbered(60), Stingy(), clients=2)
