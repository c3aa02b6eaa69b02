"""What ``certified`` promises, against simulated clients with known risks."""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from comity.guard import certificate, certify, exact_test

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from certified_clients import simulate

MARGIN = 0.02


@pytest.mark.slow
@pytest.mark.parametrize("samples", [25, 50, 125])
def test_few_clients_are_more_than_the_margin_behind_the_local_baseline(samples: int) -> None:
    found = simulate(samples, 400, samples)
    assert (found["main"] > MARGIN).mean() > 0.1  # who falls back on the model without the held-out samples
    assert (found["built"] > MARGIN).mean() <= 0.005


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_the_bound_holds_for_the_candidate_that_was_selected(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All candidates pass with ease and are as good as each other, so that the luckiest is released."""
    monkeypatch.setattr(certificate, "exact_test", cache(exact_test))
    random, draws, samples, gain = np.random.default_rng(count), 3000, 50, 0.08
    broken = alone = 0
    for _ in range(draws):
        own = random.random(samples) < 0.3
        wrong = {str(k): random.random(samples) < 0.3 - gain for k in range(count)}
        found = certify(own, wrong, 0.3, 0.05)
        if found.released is not None:
            assert found.bound is not None
            broken += found.bound < -gain
            alone += found.verdicts[found.released].evidence.upper_bound < -gain
    assert broken / draws <= 0.05
    assert alone / draws > 0.05  # what holds for each candidate by itself does not hold for the one selected


def test_the_bound_is_the_margin_where_a_candidate_failed() -> None:
    random = np.random.default_rng(0)
    own, good, bad = (random.random(400) < p for p in (0.4, 0.1, 0.9))
    assert certify(own, {"good": good, "bad": bad}, 0.02, 0.05).bound == 0.02
    found = certify(own, {"good": good}, 0.02, 0.05)
    assert found.bound == found.verdicts["good"].evidence.upper_bound
    assert certify(own, {"bad": bad}, 0.02, 0.05).bound is None


def test_a_benefit_of_the_reference_is_part_of_the_test_and_of_the_bound() -> None:
    random = np.random.default_rng(1)
    own, good = (random.random(400) < p for p in (0.4, 0.2))
    plain, better = (certify(own, {"good": good}, 0.02, 0.05, benefit) for benefit in (0.0, 0.05))
    assert plain.bound is not None
    assert better.bound == pytest.approx(plain.bound + 0.05)
    assert certify(own, {"good": good}, 0.02, 0.05, 0.3).released is None
