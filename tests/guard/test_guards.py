"""What a client decides from predictions on its held-out samples."""

import numpy as np
import pytest
from numpy.typing import NDArray

from comity.guard import Certified, Mixture, mixture_weights


def predictions(right: NDArray[np.bool_], labels: NDArray[np.int64], classes: int = 3) -> NDArray[np.float64]:
    """Probabilities of a model that is right on some samples and as sure as ever on the others."""
    answers = np.where(right, labels, (labels + 1) % classes)
    return np.asarray(0.1 + 0.7 * np.eye(classes)[answers])


def test_without_samples_the_own_model_is_used() -> None:
    nothing, labels, random = np.zeros((3, 0, 4)), np.zeros(0, dtype=np.int64), np.random.default_rng(0)
    for guard in (Mixture(), Certified()):
        assert guard.choose(nothing, labels, random).weights.tolist() == [1.0, 0.0, 0.0]


def test_the_mixture_is_the_posterior_mean() -> None:
    random = np.random.default_rng(1)
    probabilities, labels = random.dirichlet(np.ones(4), (2, 30)), random.integers(0, 4, 30)
    expected = mixture_weights(probabilities[:, np.arange(30), labels].T).weights
    assert Mixture().choose(probabilities, labels, random).weights == pytest.approx(expected)


@pytest.mark.parametrize(("own", "joined", "wanted"), [(0.6, 0.95, "joined"), (0.9, 0.6, "own")])
def test_certified_uses_what_is_shown_to_be_better(own: float, joined: float, wanted: str) -> None:
    random = np.random.default_rng(2)
    labels = random.integers(0, 3, 400)
    probabilities = np.stack([predictions(random.random(400) < p, labels) for p in (own, joined)])
    choice = Certified().choose(probabilities, labels, random)
    assert (choice.weights[1] > 0.5) == (wanted == "joined")
    assert choice.bound is not None
    assert choice.bound <= 0.02


@pytest.mark.slow
def test_certified_breaks_its_promise_no_more_often_than_it_says() -> None:
    """The federated model errs 4 points more often, the margin is 2; whoever uses it is worse off than promised."""
    random, guard, broken, trials = np.random.default_rng(3), Certified(delta=0.1, margin=0.02), 0, 400
    for _ in range(trials):
        labels = random.integers(0, 3, 200)
        luck = random.random(200)
        own, joined = predictions(luck < 0.84, labels), predictions(luck < 0.80, labels)
        weights = guard.choose(np.stack([own, joined]), labels, random).weights
        broken += bool(weights[1] > 0.5)
    assert broken / trials <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / trials)
