"""What a client decides from predictions on its held-out samples."""

import numpy as np
import pytest
from numpy.typing import NDArray

from comity import ComityError
from comity.guard import Certified, HeldOut, Mixture, Selection, mixture_weights


def predictions(right: NDArray[np.bool_], labels: NDArray[np.int64], classes: int = 3) -> NDArray[np.float64]:
    """Probabilities of a model that is right on some samples and as sure as ever on the others."""
    answers = np.where(right, labels, (labels + 1) % classes)
    return np.asarray(0.1 + 0.7 * np.eye(classes)[answers])


def test_without_samples_the_own_model_is_used() -> None:
    nothing, labels, random = np.zeros((3, 0, 4)), np.zeros(0, dtype=np.int64), np.random.default_rng(0)
    for guard in (Mixture(), Certified(), Selection()):
        assert guard.choose(HeldOut(nothing, labels), random).weights.tolist() == [1.0, 0.0, 0.0]


def test_the_mixture_is_the_posterior_mean() -> None:
    random = np.random.default_rng(1)
    probabilities, labels = random.dirichlet(np.ones(4), (2, 30)), random.integers(0, 4, 30)
    expected = mixture_weights(probabilities[:, np.arange(30), labels].T).weights
    assert Mixture().choose(HeldOut(probabilities, labels), random).weights == pytest.approx(expected)


def test_the_selection_is_the_model_with_the_lowest_log_loss() -> None:
    random = np.random.default_rng(7)
    for _ in range(20):
        probabilities, labels = random.dirichlet(np.ones(4), (3, 30)), random.integers(0, 4, 30)
        losses = [-np.log(each[np.arange(30), labels]).mean() for each in probabilities]
        chosen = Selection().choose(HeldOut(probabilities, labels), random).weights
        assert chosen.tolist() == np.eye(3)[np.argmin(losses)].tolist()
    same = np.stack([probabilities[0]] * 2)
    assert Selection().choose(HeldOut(same, labels), random).weights.tolist() == [1, 0], "the own one where equal"
    same[:, 0] = np.eye(4)[(labels[0] + 1) % 4]  # both give a true label no probability
    assert Selection().choose(HeldOut(same, labels), random).weights.tolist() == [1, 0]


def test_the_selection_weighs_classes_alike_where_balanced_accuracy_decides() -> None:
    labels = np.array([0] * 9 + [1])
    own, other = np.tile([0.9, 0.1], (10, 1)), np.tile([0.5, 0.5], (10, 1))
    held = HeldOut(np.stack([own, other]), labels)
    random = np.random.default_rng(0)
    assert Selection().choose(held, random).weights.tolist() == [1, 0]
    by_class = HeldOut(held.probabilities, labels, "balanced")
    assert Selection().choose(by_class, random).weights.tolist() == [0, 1]


def test_a_careful_mixture_asks_for_more_evidence() -> None:
    random = np.random.default_rng(6)
    labels = random.integers(0, 3, 40)
    held = HeldOut(np.stack([predictions(random.random(40) < p, labels) for p in (0.6, 0.8)]), labels)
    weights = [Mixture(own=own).choose(held, random).weights[0] for own in (0, 5, 20, 1000)]
    assert weights == sorted(weights)
    assert weights[-1] >= 1001 / 1042  # the prior's part alone
    with pytest.raises(ComityError, match=r"guard\.own must be at least 0"):
        Mixture(own=-1)


@pytest.mark.parametrize(("own", "joined", "wanted"), [(0.6, 0.95, "joined"), (0.9, 0.6, "own")])
def test_certified_uses_what_is_shown_to_be_better(own: float, joined: float, wanted: str) -> None:
    random = np.random.default_rng(2)
    labels = random.integers(0, 3, 400)
    probabilities = np.stack([predictions(random.random(400) < p, labels) for p in (own, joined)])
    choice = Certified().choose(HeldOut(probabilities, labels), random)
    assert (choice.weights[1] > 0.5) == (wanted == "joined")
    if wanted == "own":  # the local baseline itself
        assert choice.weights.tolist() == [1, 0]
        assert choice.bound is None
    else:
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
        weights = guard.choose(HeldOut(np.stack([own, joined]), labels), random).weights
        broken += bool(weights[1] > 0.5)
    assert broken / trials <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / trials)


def held_out(labels: NDArray[np.int64], *experts: NDArray[np.float64], metric: str) -> HeldOut:
    """The same samples stand for training samples, of which only shares and mean predictions matter here."""
    probabilities = np.stack(experts)
    return HeldOut(probabilities, labels, metric, 1.0, lambda: (probabilities, labels))


def test_certified_follows_balanced_accuracy() -> None:
    """The own model never finds the rare class. Right in nine of ten cases, by accuracy it is hard to beat."""
    random = np.random.default_rng(4)
    labels = (random.random(4000) < 0.1).astype(np.int64)
    constant = np.tile([0.9, 0.1], (4000, 1))
    found = np.where(random.random(4000) < 0.85, labels, 1 - labels)
    other = np.asarray(0.15 + 0.7 * np.eye(2)[found])
    by_accuracy, by_class = (
        Certified().choose(held_out(labels, constant, other, metric=metric), random)
        for metric in ("accuracy", "balanced")
    )
    assert by_accuracy.weights[0] > 0.5  # the mixture at most, which decides as the own model does
    assert by_class.weights[1] > 0.5
    assert by_class.bound is not None
    assert -0.5 < by_class.bound < 0


@pytest.mark.parametrize("metric", ["brier", "log-loss"])
def test_certified_bets_on_probabilities(metric: str) -> None:
    """Two models with the same decisions, of which the other is better calibrated; bounds are in the metric's unit."""
    random = np.random.default_rng(5)
    labels = random.integers(0, 3, 3000)
    right = random.random(3000) < 0.7
    answers = np.where(right, labels, (labels + 1) % 3)
    own, other = (np.asarray((1 - p) / 2 + (p - (1 - p) / 2) * np.eye(3)[answers]) for p in (0.99, 0.7))
    assert Certified().choose(held_out(labels, own, other, metric="accuracy"), random).weights[0] == 1
    choice = Certified().choose(held_out(labels, own, other, metric=metric), random)
    assert choice.weights[1] > 0.5
    assert choice.bound is not None
    expected = {
        "brier": lambda p, q: 0.7 * ((1 - p) ** 2 + 2 * q**2) + 0.3 * (p**2 + (1 - q) ** 2 + q**2),
        "log-loss": lambda p, q: -0.7 * np.log(p) - 0.3 * max(-5, np.log(q)),
    }[metric]
    difference = expected(0.7, 0.15) - expected(0.99, 0.005)
    assert difference < choice.bound < difference / 2
