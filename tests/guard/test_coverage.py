"""The promise of every guard, against clients whose risks are known exactly.

A world is a handful of kinds of samples with known shares, so the risk of any mixture is a finite sum. Each world is
diluted with samples on which the models are equal and right, until the federated model is worse than the own one by
just more than the margin: where a certificate is hardest. A level that is simulated is compared with the promise by
the exact binomial limit; an expectation is computed from all outcomes.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from comity.guard import GUARDS, Certified, HeldOut, Mixture, certificate, exact_test, excess_risk_bound, guards

Array = NDArray[np.float64]

DELTA = 0.2
"""Large, so that clients with five samples are certified now and then, and so could be wrongly."""
MARGINS = {5: 0.5, 10: 0.3, 20: 0.15, 50: 0.05}
"""By the number of held-out samples, of which a half is for the test: so small that some outcomes pass."""
JUST_TOO_BAD = 1e-4
CHANCE = 1e-4
"""How often a check may fail although the promise holds: one run in a hundred of the whole table at most."""


@dataclass(frozen=True)
class World:
    """Kinds of samples of one client."""

    shares: Array
    labels: NDArray[np.int64]
    own: Array
    federated: Array
    """(kinds, classes): predictions, as those of the own model."""

    @property
    def predictions(self) -> Array:
        return np.stack([self.own, self.federated])

    def held_out(self, kinds: NDArray[np.int64], metric: str) -> HeldOut:
        """Samples of these kinds; for balanced accuracy, a large training set with the shares of the world."""
        train = np.repeat(np.arange(len(self.shares)), np.ceil(1000 * self.shares).astype(int))
        seen = self.predictions[:, train], self.labels[train]
        return HeldOut(self.predictions[:, kinds], self.labels[kinds], metric, train=lambda: seen)

    def risk(self, weights: Array, metric: str) -> float:
        """The exact risk of a mixture, in the unit of the metric."""
        losses = guards.Losses(self.held_out(np.arange(len(self.shares)), metric))
        return float(self.shares @ losses(weights, self.predictions, self.labels)) * losses.scale

    def excess(self, weights: Array, metric: str) -> float:
        return self.risk(weights, metric) - self.risk(np.array([1.0, 0.0]), metric)

    def at(self, margin: float, metric: str) -> "World":
        """The same, so diluted that the federated model is worse by just more than the margin."""
        easy, margin = np.array([0.98, 0.02]), margin + JUST_TOO_BAD

        def diluted(share: float) -> World:
            shares = np.append(share * self.shares, 1 - share)
            own, federated = (np.vstack([each, easy]) for each in (self.own, self.federated))
            return World(shares, np.append(self.labels, 0), own, federated)

        low, high = 0.0, 1.0
        if diluted(high).excess(np.array([0.0, 1.0]), metric) <= margin:
            return self
        for _ in range(40):
            middle = (low + high) / 2
            too_bad = diluted(middle).excess(np.array([0.0, 1.0]), metric) > margin
            low, high = (low, middle) if too_bad else (middle, high)
        return diluted(high)


def by_input(weights: list[float], truth: list[float], own: list[float], federated: list[float]) -> World:
    """Two classes: how often each input occurs, and P(class 1) of it in truth and by either model."""
    p, q = np.array(weights), np.array(truth)
    shares, labels = np.concatenate([p * (1 - q), p * q]), np.repeat([0, 1], len(p))
    both = (np.tile(np.column_stack([1 - np.array(each), each]), (2, 1)) for each in (own, federated))
    return World(shares / shares.sum(), labels, *both)


def shifted(q: float) -> float:
    """The posterior of a model whose training data held class 1 sixteen times as often."""
    return 16 * q / (16 * q + 1 - q)


TRUTH = [0.04, 0.4]
SCENARIOS: dict[str, World] = {
    "label shift": by_input([0.5, 0.5], TRUTH, TRUTH, [shifted(q) for q in TRUTH]),
    "concept shift": by_input([0.5, 0.5], [0.1, 0.9], [0.1, 0.9], [0.1, 0.1]),
    "overconfident": by_input([0.6, 0.4], [0.2, 0.1], [0.3, 0.2], [1e-9, 1 - 1e-9]),
    "constant": by_input([0.5, 0.5], [0.1, 0.6], [0.2, 0.7], [0.35, 0.35]),
    "constant and certain": by_input([0.5, 0.5], [0.1, 0.9], [0.1, 0.9], [1.0, 1.0]),
    # better by log-loss, so that the mixture follows it, and worse by decisions
    "adversarial": by_input([0.5, 0.5], [0.0, 0.45], [0.4, 0.499], [0.001, 0.501]),
    "never better": by_input([1.0], [0.0], [0.1], [0.9]),
    "ties": by_input([0.4, 0.3, 0.3], [0.5, 0.2, 0.8], [0.5, 0.5, 0.5], [0.5, 0.7, 0.3]),
    "equal models": by_input([0.5, 0.5], [0.3, 0.5], [0.3, 0.5], [0.3, 0.5]),
}
USEFUL = by_input([0.5, 0.5], [0.02, 0.98], [0.6, 0.4], [0.02, 0.98])
"""A federated model that is right where the own one is wrong."""


def check_level(failures: int, trials: int, level: float) -> None:
    """The exact binomial lower limit of the failures' probability is not above the level."""
    assert binom.sf(failures - 1, trials, level) >= CHANCE, f"{failures} of {trials} at level {level}"


def check_share(successes: int, trials: int, least: float) -> None:
    """The exact binomial upper limit of the successes' probability is not below ``least``."""
    assert binom.cdf(successes, trials, least) >= CHANCE, f"{successes} of {trials} where {least} is expected"


def mixture_keeps_its_promise(world: World, metric: str, samples: int, _: int) -> None:
    """In expectation over all outcomes of n samples, computed exactly, not simulated; and for each weight."""
    pairs = np.round(world.predictions[:, np.arange(len(world.labels)), world.labels].T, 12)
    kinds, kind = np.unique(pairs, axis=0, return_inverse=True)  # what the log-loss can distinguish
    shares = np.bincount(kind.ravel(), world.shares)
    own, expected, total = -shares @ np.log(np.maximum(kinds[:, 0], 1e-12)), 0.0, 0.0
    for cuts in itertools.combinations(range(samples + len(kinds) - 1), len(kinds) - 1):
        counts = np.diff([-1, *cuts, samples + len(kinds) - 1]) - 1
        chance = math.factorial(samples) / math.prod(map(math.factorial, counts)) * math.prod(shares**counts)
        if chance > 1e-9:
            places = np.repeat([int(np.argmax(kind.ravel() == k)) for k in range(len(kinds))], counts)
            held = world.held_out(places, metric)
            weights = Mixture().choose(held, np.random.default_rng(0)).weights
            assert weights.min() >= 1 / (samples + 2) - 1e-9
            expected += chance * -(shares @ np.log(np.maximum(kinds, 1e-12) @ weights))
            total += chance
    left_out = (1 - total) * math.log(samples + 2)  # no weight is below 1/(n+2), so no outcome loses more than that
    assert left_out < 1e-3
    assert expected - total * own + left_out <= excess_risk_bound(samples, 2) + 1e-9


def certified_keeps_its_promise(world: World, metric: str, samples: int, trials: int) -> None:
    """It is wrong no more often than delta; so is its bound."""
    margin = MARGINS[samples]
    world = world.at(margin, metric)
    random, guard, wrong, bounds = np.random.default_rng(samples), Certified(delta=DELTA, margin=margin), 0, 0
    excess = cache(lambda *weights: world.excess(np.array(weights), metric))
    for _ in range(trials):
        held = world.held_out(random.choice(len(world.shares), samples, p=world.shares), metric)
        choice = guard.choose(held, random)
        if choice.bound is not None:
            difference = excess(*choice.weights)
            wrong += difference > margin
            bounds += difference > choice.bound
    check_level(wrong, trials, DELTA)
    check_level(bounds, trials, DELTA)


PROMISES: dict[str, Callable[[World, str, int, int], None]] = {
    "mixture": mixture_keeps_its_promise,
    "certified": certified_keeps_its_promise,
}


@pytest.fixture(autouse=True)
def _remembered_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact test is computed once for each pair of counts."""
    monkeypatch.setattr(certificate, "exact_test", EXACT)


EXACT = cache(exact_test)


def test_every_guard_has_its_promise_checked() -> None:
    assert PROMISES.keys() == GUARDS.keys() - {"selection"}  # which promises nothing, and is there for comparison


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("guard", "samples"), [("mixture", 5), ("mixture", 10), ("certified", 5), ("certified", 20)])
def test_promises(guard: str, scenario: str, samples: int) -> None:
    PROMISES[guard](SCENARIOS[scenario], "accuracy", samples, 300)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("samples", MARGINS)
def test_certified_with_many_clients(scenario: str, samples: int) -> None:
    certified_keeps_its_promise(SCENARIOS[scenario], "accuracy", samples, 4000)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("metric", ["balanced", "brier", "log-loss"])
def test_certified_by_betting(scenario: str, metric: str) -> None:
    certified_keeps_its_promise(SCENARIOS[scenario], metric, 50, 200)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("samples", [20, 50])
def test_mixture_with_more_samples(scenario: str, samples: int) -> None:
    mixture_keeps_its_promise(SCENARIOS[scenario], "accuracy", samples, 1)


def test_the_check_has_teeth() -> None:
    """A guard that uses the federated model whenever it looks better on the samples breaks the promise, visibly."""
    world, trials, wrong = SCENARIOS["never better"].at(MARGINS[20], "accuracy"), 300, 0
    random = np.random.default_rng(0)
    for _ in range(trials):
        held = world.held_out(random.choice(len(world.shares), 10, p=world.shares), "accuracy")
        own, federated = (float((each.argmax(1) != held.labels).mean()) for each in held.probabilities)
        wrong += federated <= own + MARGINS[20]
    with pytest.raises(AssertionError, match="of 300 at level"):
        check_level(wrong, trials, DELTA)


@pytest.mark.parametrize("samples", [20, 50])
def test_a_good_federated_model_is_used(samples: int) -> None:
    random, guard = np.random.default_rng(1), Certified(delta=DELTA, margin=MARGINS[samples])
    used = 0
    for _ in range(200):
        held = USEFUL.held_out(random.choice(len(USEFUL.shares), samples, p=USEFUL.shares), "accuracy")
        used += guard.choose(held, random).bound is not None
    check_share(used, 200, 0.98)
