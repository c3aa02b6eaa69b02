"""Each partition's defining property, and that every one of them is a partition and ends."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from comity._errors import ComityError
from comity._random import numpy_generator
from comity.data import (
    IID,
    PARTITIONS,
    ByColumn,
    Dataset,
    Dirichlet,
    LabelShift,
    Natural,
    Partition,
    Pathological,
    Quantity,
    Rotated,
    Share,
    federate,
    load,
)


def toy(sizes: list[int], seed: int = 0, **columns: np.ndarray) -> Dataset:
    """1×1 images whose pixel is their class; ``sizes[c]`` samples of class c, in random order."""
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Dataset("toy", y.astype(np.float32)[:, None, None], y, len(sizes), columns)


def counts(partition: Partition, dataset: Dataset, clients: int, seed: int = 0) -> np.ndarray:
    shares = partition.share(dataset, clients, numpy_generator(seed, "partition"))
    return np.stack([np.bincount(dataset.y[share.index], minlength=dataset.classes) for share in shares])


def used(partition: Partition, dataset: Dataset, clients: int, seed: int = 0) -> np.ndarray:
    return np.concatenate([s.index for s in partition.share(dataset, clients, numpy_generator(seed, "partition"))])


WHOLE = [IID(), Quantity(), Rotated(), Dirichlet(), Dirichlet(self_balancing=True), Pathological()]


@pytest.mark.parametrize("partition", [*WHOLE, LabelShift()], ids=str)
def test_seed_decides_and_samples_are_used_once(partition: Partition) -> None:
    data = toy([100] * 10)
    first, again, other = (used(partition, data, 12, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    if partition in WHOLE:
        data = toy([100, 37, 251, 80, 64])
        assert np.array_equal(np.sort(used(partition, data, 7)), np.arange(len(data)))


@pytest.mark.parametrize("partition", [Dirichlet(alpha=1e6), Pathological(num_classes_per_partition=1)], ids=str)
def test_which_samples_of_a_class_a_client_gets_is_random(partition: Partition) -> None:
    data = Dataset("one class", np.zeros((100, 1, 1)), np.zeros(100, np.int64))
    first = partition.share(data, 2, numpy_generator(0))[0].index
    assert np.ptp(np.sort(first)) > len(first)  # no contiguous run


def test_iid_sizes_differ_by_one_and_mix_is_that_of_the_whole() -> None:
    table = counts(IID(), toy([4000, 2000, 1000]), 9)
    assert np.ptp(table.sum(1)) <= 1
    # chi-squared of homogeneity over 9 × 3 cells
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_sizes_and_big_clients() -> None:
    assert counts(Quantity(big=2, factor=5), toy([900, 900]), 5).sum(1).tolist() == [200, 200, 1000, 200, 200]
    assert counts(Quantity(big=(0, 3), factor=2.5), toy([350, 350]), 4).sum(1).tolist() == [250, 100, 100, 250]
    assert counts(IID(samples_per_client=30, big=1, factor=4), toy([500, 500]), 3).sum(1).tolist() == [30, 120, 30]


def test_dirichlet_follows_its_distribution() -> None:
    """A client's share of a class is Beta(alpha, (N - 1)·alpha) distributed."""
    clients, alpha = 8, 0.7
    shares = counts(Dirichlet(alpha=alpha, min_partition_size=2), toy([5000] * 60), clients) / 5000
    # one client's shares of 60 classes are independent draws
    for client in range(clients):
        assert stats.kstest(shares[client], stats.beta(alpha, alpha * (clients - 1)).cdf).pvalue > 1e-3


def test_dirichlet_favours_no_position() -> None:
    """Cutting at rounded cumulative sums would give the last client a sample of nearly every class."""
    held = np.mean([(counts(Dirichlet(alpha=0.05), toy([60] * 80), 10, seed) > 0).sum(1) for seed in range(10)], axis=0)
    assert np.abs(held[-1] - held[:-1].mean()) < 3 * held[:-1].std(ddof=1)


def test_dirichlet_min_size_is_kept_and_the_draw_left_alone_where_it_suffices() -> None:
    data = toy([200] * 10)
    drawn, filled = (counts(Dirichlet(alpha=0.1, min_partition_size=least), data, 20) for least in (2, 40))
    assert drawn.sum(1).min() < 40 <= filled.sum(1).min()
    assert filled.sum() == len(data)
    calm = [counts(Dirichlet(alpha=100.0, min_partition_size=least), data, 20) for least in (2, 40)]
    assert np.array_equal(*calm)


def test_dirichlet_self_balancing_keeps_clients_near_the_average() -> None:
    data = toy([500] * 10)
    plain, balanced = (counts(Dirichlet(self_balancing=b), data, 10, seed=3).sum(1) for b in (False, True))
    assert balanced.max() < 2 * len(data) / 10
    assert balanced.std() < plain.std()
    assert counts(Dirichlet(alpha=1e6, self_balancing=True), toy([40, 40, 0]), 4).tolist() == [[10, 10, 0]] * 4


@pytest.mark.parametrize(("alpha", "largest"), [(1e-300, 46), (1e308, 25)])
def test_any_positive_alpha_will_do(alpha: float, largest: int) -> None:
    """The smallest give a class to one client whole, as far as all have their minimum; the largest are IID."""
    table = counts(Dirichlet(alpha=alpha, min_partition_size=2), toy([50, 50]), 2)
    assert table.max() >= largest
    assert np.ptp(table.sum(1)) == 0 or alpha < 1


@pytest.mark.parametrize(("clients", "each"), [(20, 2), (100, 2), (7, 3), (13, 1), (5, 10)])
def test_pathological_exact_classes(clients: int, each: int) -> None:
    table = counts(Pathological(num_classes_per_partition=each), toy([150] * 10), clients)
    assert ((table > 0).sum(1) == each).all()
    assert table[table > 0].min() >= 2
    assert np.ptp((table > 0).sum(0)) <= 1
    assert table.sum() == 1500


def test_pathological_sizes() -> None:
    sizes = counts(Pathological(), toy([500] * 10), 20).sum(1)
    assert sizes.max() > 2 * sizes.min()
    equal = counts(Pathological(equal=True), toy([500] * 10), 20)
    assert set(equal[equal > 0].tolist()) == {125}  # four clients hold each class
    few = counts(Pathological(num_classes_per_partition=2), toy([50] * 10), 3)  # some classes have no holder
    assert ((few.sum(0) > 0).sum(), few.sum()) == (6, 300)


def pfllib_holders(clients: int, classes: int, each: int) -> list[list[int]]:
    """Who holds each class by the definition: the first so many clients that may still take one."""
    places, most = [each] * clients, math.ceil(clients / classes * each)
    holders = []
    for _ in range(classes):
        chosen = [client for client in range(clients) if places[client] > 0][:most]
        for client in chosen:
            places[client] -= 1
        holders.append(chosen)
    return holders


@pytest.mark.parametrize(("clients", "each"), [(20, 2), (100, 2), (7, 3), (13, 1), (60, 10), (3, 2)])
def test_pathological_blocks_are_those_of_pfllib(clients: int, each: int) -> None:
    samples, classes = 400, 10
    partition = Pathological(num_classes_per_partition=each, blocks=True)
    table = counts(partition, toy([samples] * classes), clients)
    for label, holders in enumerate(pfllib_holders(clients, classes, each)):
        assert np.flatnonzero(table[:, label]).tolist() == holders
        if holders:
            average, (*first, last) = samples / len(holders), table[holders, label]
            assert all(max(int(average / 10), 2) <= count < max(average, 3) for count in first)
            assert last == samples - sum(first) >= average
    if clients > 3:  # otherwise every class has one holder
        assert not np.array_equal(table, counts(partition, toy([samples] * classes), clients, seed=1))


def test_pathological_blocks_of_equal_sizes_are_pat_2() -> None:
    table = counts(Pathological(equal=True, blocks=True), toy([700] * 10), 100)
    for client, row in enumerate(table):
        assert np.flatnonzero(row).tolist() == [2 * (client // 20), 2 * (client // 20) + 1]
    assert set(table[table > 0].tolist()) == {35}


@pytest.mark.parametrize(
    ("kind", "options", "sizes", "clients", "line"),
    [
        (Dirichlet, {"alpha": 0.0}, [50], 2, r"^partition\.alpha must be above 0, got 0\.0$"),
        (Dirichlet, {"alpha": -1}, [50], 2, r"^partition\.alpha must be above 0, got -1\.0$"),
        (Dirichlet, {"alpha": math.inf}, [50], 2, r"^partition\.alpha must be a finite number, got inf$"),
        (Dirichlet, {"alpha": math.nan}, [50], 2, r"^partition\.alpha must be a finite number, got nan$"),
        (Dirichlet, {}, [200, 200], 2000, "must be at most 0, got 10: 2000 clients need 20000 samples"),
        (IID, {"big": 5}, [50, 50], 5, r"^partition\.big must be at most 4, the last client, got 5$"),
        (IID, {"big": (0, 9)}, [50, 50], 5, r"^partition\.big must be at most 4, the last client, got 9$"),
        (IID, {"big": -1}, [50, 50], 5, r"^partition\.big must be at least 0, got -1$"),
        (IID, {"samples_per_client": 400}, [500, 500], 3, "smaller, got 400: 3 clients need 1200 samples, there"),
        (Pathological, {"num_classes_per_partition": 11}, [50] * 10, 3, "at most 10, the classes of toy, got 11"),
        (Pathological, {}, [50] * 2, 30, r"30 of 30 clients would share class \d, which has 50 samples"),
        (Pathological, {"blocks": True}, [50] * 2, 30, r"30 of 30 clients would share class \d, which has 50 samples"),
        (LabelShift, {"shift": 1.0}, [50], 2, r"^partition\.shift must be at least 0 and below 1, got 1\.0$"),
        (LabelShift, {"shift": 0.5}, [500, 500, 5], 10, "every client to hold every class"),
        (LabelShift, {"shift": 0.9, "samples_per_client": 166}, [250] * 2, 3, r"324 samples of class \d, toy has 250"),
        (ByColumn, {"column": "year"}, [4], 2, r"^unknown column 'year' of toy \(partition\.column\); there are none$"),
        (Rotated, {"groups": 11}, [100], 10, "groups must be at most 10, the number of clients, got 11"),
        (Natural, {}, [2, 2], 2, "does not say which client owns which sample"),
    ],
)
def test_the_impossible_is_one_clear_line(
    kind: type[Partition], options: dict[str, object], sizes: list[int], clients: int, line: str
) -> None:
    with pytest.raises(ComityError, match=line):
        counts(kind(**options), toy(sizes), clients)


@pytest.mark.parametrize(("clients", "classes"), [(10, 10), (20, 10), (4, 10), (7, 5)])
def test_label_shift_mix_size_and_presence(clients: int, classes: int) -> None:
    table = counts(LabelShift(shift=0.6), toy([400] * classes), clients)
    assert np.ptp(table.sum(1)) == 0
    assert (table > 0).all()
    favourites = -(-classes // clients)
    top = np.sort(table / table.sum(1, keepdims=True), axis=1)[:, ::-1][:, :favourites].sum(1)
    # floor or ceil(classes / clients) favourites share 0.6; they also take part in the remaining 0.4
    expected = 0.6 + 0.4 * favourites / classes
    assert top == pytest.approx(expected, abs=0.06)


def test_label_shift_with_groups_has_pairs_of_clients_with_the_same_favourites() -> None:
    table = counts(LabelShift(shift=0.8, groups=5, samples_per_client=320), toy([400] * 10), 10)
    assert (table.sum(1) == 320).all()
    favourites = [set(np.flatnonzero(row > 100)) for row in table]
    assert all(len(each) == 2 for each in favourites)
    assert favourites[:5] == favourites[5:]
    assert len(set.union(*favourites[:5])) == 10
    with pytest.raises(ComityError, match=r"groups must be at most 4, the clients or classes, got 5"):
        counts(LabelShift(groups=5), toy([400] * 10), 4)


def test_label_shift_uses_everything_when_it_can_and_zero_shift_is_the_mix_of_the_whole() -> None:
    assert counts(LabelShift(shift=0.5), toy([200] * 10), 10).sum() == 2000
    table = counts(LabelShift(shift=0.0), toy([600, 300, 100]), 5)
    uneven = counts(LabelShift(shift=0.5), toy([178, 182, 177, 183, 181, 182, 181, 179, 174, 180]), 20)
    # the rarest class allows 174 / (10·174/1797 + 1) = 88 samples each; rounding may cost a few
    assert 80 <= uneven.sum(1).min() == uneven.sum(1).max() <= 88
    assert table.tolist() == [[120, 60, 20]] * 5


def test_by_column_one_domain_a_client() -> None:
    domain = np.array(["sketch", "photo", "art"])[np.arange(90) % 3]
    data = toy([45, 45], domain=domain)
    for clients in (3, 7):
        shares = ByColumn(column="domain").share(data, clients, numpy_generator(0))
        assert [set(domain[s.index]) for s in shares] == [{["art", "photo", "sketch"][k % 3]} for k in range(clients)]
        assert sum(len(s.index) for s in shares) == 90


def test_by_column_sorted_years() -> None:
    year = np.random.default_rng(0).integers(1905, 2014, 400)
    shares = ByColumn(column="year").share(toy([200, 200], year=year), 8, numpy_generator(0))
    assert {len(s.index) for s in shares} == {50}
    spans = [(year[s.index].min(), year[s.index].max()) for s in shares]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_natural_takes_the_owners_word() -> None:
    owner = np.array([1, 0, 1, 0, 2, 2])
    data = toy([3, 3], client=owner, test=np.array([True, True, False, False, False, True]))
    shares = Natural().share(data, 3, numpy_generator(0))
    assert [(s.index.tolist(), s.test.tolist()) for s in shares] == [([3], [1]), ([2], [0]), ([4], [5])]
    with pytest.raises(ComityError, match=r"clients must be 3, got 4: toy comes with 3 clients"):
        Natural().share(data, 4, numpy_generator(0))
    with pytest.raises(ComityError, match=r"partition must be natural, or left out, .* comes with its clients"):
        federate(data, Dirichlet(), clients=3)


def test_rotated_angles() -> None:
    fedora = Rotated().share(toy([100, 100]), 36, numpy_generator(0))
    assert [s.transform.degrees for s in fedora] == [10.0 * k for k in range(36)]
    groups = Rotated(groups=4).share(toy([100, 100]), 10, numpy_generator(0))
    assert [s.transform.degrees for s in groups] == [0, 90, 180, 270, 0, 90, 180, 270, 0, 90]


@pytest.mark.parametrize("centred", [True, False])
def test_rotation_fills_corners_with_black_and_keeps_the_middle(centred: bool) -> None:
    white = Dataset("white", np.full((40, 9, 9), 255, np.uint8), np.zeros(40, np.int64), centred=centred)
    turned = federate(white, Rotated(), clients=8).clients[1].train.x  # by 45 degrees
    black = -1 if centred else 0
    assert (turned[:, 0, 0, 0] == black).all()
    assert (float(turned.min()), float(turned.max())) == (pytest.approx(black), pytest.approx(1))
    assert turned[0, 0, 4, 4] == pytest.approx(1)


def test_rotation_keeps_pixels_square_in_oblong_images() -> None:
    """A bar of 9 pixels along the width becomes a bar of 9 pixels along the height."""
    x = -torch.ones(1, 1, 15, 31)
    x[..., 7, 11:20] = 1
    turned = Rotated().share(toy([9]), 4, numpy_generator(0))[1].transform(x)  # by 90 degrees
    expected = -torch.ones(1, 1, 15, 31)
    expected[..., 3:12, 15] = 1
    assert torch.allclose(turned, expected, atol=1e-4)


def test_rotated_federation_holds_turned_images() -> None:
    data = load("digits")
    plain, turned = (federate(data, p, clients=4) for p in (IID(), Rotated()))
    assert torch.equal(plain.clients[0].train.x, turned.clients[0].train.x)
    for k in (1, 2, 3):
        for split in ("train", "test"):
            before, after = getattr(plain.clients[k], split).x, getattr(turned.clients[k], split).x
            assert torch.allclose(after, torch.rot90(before, k, (2, 3)), atol=1e-5)


@dataclass(frozen=True)
class EveryNth(Partition):
    """A partition of one's own, which keeps its promise unless it is told otherwise."""

    promise: str = "kept"

    def share(self, dataset: Dataset, clients: int, random: np.random.Generator) -> list[Share]:
        shares = [Share(np.arange(k, len(dataset), clients)) for k in range(clients)]
        broken = {"twice": [*shares[:-1], Share(np.arange(5))], "short": shares[1:]}
        broken["beyond"] = [Share(share.index + 1) for share in shares]
        return broken.get(self.promise, shares)


def test_a_partition_of_ones_own_is_held_to_its_promise() -> None:
    assert federate(toy([30, 30]), EveryNth(), clients=3).counts.sum() == 60
    for promise, line in (
        ("twice", "gave 4 samples out twice"),
        ("short", "made 2 shares for 3"),
        ("beyond", "not have"),
    ):
        with pytest.raises(ComityError, match=line):
            federate(toy([30, 30]), EveryNth(promise), clients=3)


def test_titles_tell_what_is_set() -> None:
    assert [str(p) for p in (IID(), Quantity(), Dirichlet(), Rotated(groups=4))] == [
        "IID()",
        "Quantity(big=(0,), factor=10.0)",
        "Dirichlet(alpha=0.1, min_partition_size=10)",
        "Rotated(groups=4)",
    ]
    assert {name: cls().__class__ for name, cls in PARTITIONS.items()} == PARTITIONS


SIZES = st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) > 0)
ANY = st.one_of(
    st.builds(
        Dirichlet,
        alpha=st.floats(-3, 3).map(lambda exponent: 10.0**exponent),
        min_partition_size=st.integers(2, 20),
        self_balancing=st.booleans(),
    ),
    st.builds(Pathological, num_classes_per_partition=st.integers(1, 13)),
    st.builds(LabelShift, shift=st.floats(0, 0.99), samples_per_client=st.none() | st.integers(2, 50)),
    st.builds(Quantity, big=st.integers(0, 30), factor=st.floats(0.1, 50)),
    st.builds(Rotated, groups=st.none() | st.integers(1, 40), samples_per_client=st.none() | st.integers(2, 50)),
)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(sizes=SIZES, clients=st.integers(1, 120), partition=ANY, seed=st.integers(0, 2**32))
def test_any_request_ends_in_a_partition_or_one_clear_line(sizes, clients, partition, seed) -> None:
    data = toy(sizes, seed)
    try:
        federation = federate(data, partition, clients=clients, seed=seed)
    except ComityError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert message.startswith(("partition", "clients"))
        assert "\n" not in message
        return
    index = used(partition, data, clients, seed)
    assert len(np.unique(index)) == len(index)
    # the pixel is the class, so the federation's own tensors tell where each sample went
    for client in federation.clients:
        assert len(client.train) >= 1
        assert len(client.test) >= 1
    assert (federation.counts.sum(0) == np.bincount(data.y[index], minlength=data.classes)).all()
    if isinstance(partition, Dirichlet):
        assert federation.counts.sum() == len(data)
        assert federation.counts.sum(1).min() >= partition.min_partition_size
