"""Made-up images: each number shifts what it says, and nothing else."""

from functools import partial

import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from comity._errors import ComityError
from comity.data import Synthetic, federate, load


def table(clients: int = 30, seed: int = 0, **options: float) -> np.ndarray:
    return federate(Synthetic(**options), clients=clients, seed=seed).counts  # type: ignore[arg-type]


@pytest.mark.parametrize(("channels", "size", "classes"), [(1, 2, 2), (1, 8, 10), (3, 17, 5), (3, 32, 100)])
def test_any_shape(channels: int, size: int, classes: int) -> None:
    federation = federate(load("synthetic", channels=channels, size=size, classes=classes, samples=9), clients=3)
    assert federation.shape == (channels, size, size)
    assert federation.classes == classes
    assert federation.counts.sum(1).tolist() == [9, 9, 9]
    assert federation.clients[0].train.x.std() > 0.1


def test_a_client_does_not_depend_on_the_others() -> None:
    few, many = (Synthetic().draw(clients, seed=3) for clients in (2, 5))
    assert np.array_equal(few.x, many.x[: len(few)])
    assert np.array_equal(few.y, many.y[: len(few)])
    assert not np.array_equal(few.x, Synthetic().draw(2, seed=4).x)


def test_label_shift() -> None:
    none, half, full = (table(label_shift=shift, samples=400) for shift in (0.0, 0.5, 1.0))
    assert none.max() < 80
    assert half.max(1) / 400 == pytest.approx(0.55, abs=0.1)  # half, and a tenth of the other half
    assert (full.max(1) == 400).all()


def client_means(**options: float) -> np.ndarray:
    data = Synthetic(label_shift=0.0, samples=500, noise=0.5, **options).draw(6, seed=0)
    flat = data.x.reshape(6, 500, -1).astype(float)
    y = data.y.reshape(6, 500)
    return np.stack([[flat[k][y[k] == c].mean(0) for c in range(10)] for k in range(6)])


def test_feature_shift_moves_images_of_the_same_class() -> None:
    spread = [client_means(feature_shift=shift).std(0).mean() for shift in (0.0, 0.5, 1.0)]
    assert spread[0] < 5 < 2 * spread[0] + 5 < spread[1] < spread[2]


def test_concept_shift_swaps_names_and_leaves_images() -> None:
    plain, swapped = (Synthetic(concept_shift=shift).draw(6, seed=0) for shift in (0.0, 0.3))
    assert np.array_equal(plain.x, swapped.x)
    maps = [
        dict(set(zip(a.tolist(), b.tolist(), strict=True)))
        for a, b in zip(plain.y.reshape(6, -1), swapped.y.reshape(6, -1), strict=True)
    ]
    for renamed in maps:
        assert len(set(renamed.values())) == len(renamed)
        assert sum(old != new for old, new in renamed.items()) <= 3
    assert sum(old != new for renamed in maps for old, new in renamed.items()) >= 12
    assert len({tuple(sorted(renamed.items())) for renamed in maps}) > 1


@pytest.mark.parametrize("size", [8, 28])
def test_it_can_be_learnt_but_is_not_trivial(size: int) -> None:
    """Difficulty comes from ``noise``, not from the number of pixels."""
    data = Synthetic(size=size, label_shift=0.0, feature_shift=0.0, samples=3000).draw(1, seed=0)
    x = data.x.reshape(3000, -1)[:, :: (size // 8) ** 2].astype(float)
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3).fit(x[:2000], data.y[:2000])
    assert 0.6 < model.score(x[2000:], data.y[2000:]) < 0.98


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"samples": 1}, r"^data\.samples must be at least 2, got 1$"),
        ({"classes": 1}, r"^data\.classes must be at least 2, got 1$"),
        ({"label_shift": 1.5}, r"^data\.label_shift must be at least 0 and at most 1, got 1\.5$"),
        ({"concept_shift": -0.1}, r"^data\.concept_shift must be at least 0 and at most 1, got -0\.1$"),
        ({"feature_shift": -1}, r"^data\.feature_shift must be at least 0, got -1\.0$"),
        ({"noise": float("nan")}, r"^data\.noise must be a finite number, got nan$"),
    ],
)
def test_bad_numbers(options: dict[str, float], line: str) -> None:
    for make in (Synthetic, partial(load, "synthetic")):
        with pytest.raises(ComityError, match=line):
            make(**options)  # type: ignore[operator]
