"""The evidence per client: exact cases, what must not change it, and its level and power by simulation."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from scipy.special import bdtr
from scipy.stats import binom, false_discovery_control

from comity.compare.evidence import Estimate, Evidence, Moments, estimate, luck, mean_estimate, state_of_mean, states
from comity.compare.harm import of_samples
from comity.results import ClientScores, LoadedRun

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from harm_test import Federation, examine, upper


def hits(lost: int, gained: int, tests: int, runs: int = 1) -> Evidence:
    """The same differences in each run."""
    d = np.repeat([-1.0, 1.0, 0.0], [lost, gained, tests - lost - gained])
    return Evidence.of(np.tile(np.arange(tests), runs), np.repeat(np.arange(runs), tests), np.tile(d, runs), 1.0)


def drawn(seed: int = 0, tests: int = 40, runs: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    sample, run = (each.ravel() for each in np.meshgrid(np.arange(tests), np.arange(runs)))
    kept = random.permutation(tests * runs)[: tests * runs * 3 // 4]
    return sample[kept], run[kept], random.choice([-1.0, 0.0, 1.0], len(kept), p=[0.3, 0.6, 0.1])


def moments(d: np.ndarray) -> Moments:
    size = np.abs(d[d != 0])
    return Moments(len(d), d.sum(), (d**2).sum(), size.sum(), (size**4).sum(), size.min())


def numbers(found: Estimate) -> tuple[float, ...]:
    return found.gain, found.low, found.high, found.p, found.detectable


def test_one_run_without_luck_is_close_to_the_exact_test_of_mcnemar() -> None:
    for lost in range(1, 40):
        for gained in range(lost):
            exact, p = float(bdtr(gained, lost + gained, 0.5)), estimate(hits(lost, gained, 100), 0.0).p
            assert abs(p - exact) < 0.015
            if exact < 0.1:
                assert p >= exact
            if lost + gained >= 10 and exact > 1e-5:
                assert p < 2.5 * exact


def test_a_client_that_loses_all_is_named_with_one_run_among_twenty() -> None:
    clients = [hits(36, 0, 36), *[hits(2, 2, 36)] * 19]
    for control in ([hits(2, 1, 36)] * 20, []):
        tau2 = luck(control, clients)
        found = states({c: estimate(each, tau2, 20) for c, each in enumerate(clients)}, 0.02)
        assert [c for c, state in found.items() if state == "worse"] == [0]


def test_order_and_names_change_nothing() -> None:
    sample, run, value = drawn()
    first = estimate(Evidence.of(sample, run, value, 1.0), 0.002, 20)
    order = np.random.default_rng(1).permutation(len(value))
    again = estimate(Evidence.of(1000 - 3 * sample[order], 7 - run[order], value[order], 1.0), 0.002, 20)
    assert numbers(again) == pytest.approx(numbers(first), rel=1e-12)
    clients = [Evidence.of(*drawn(seed), 1.0) for seed in range(5)]
    tau2 = luck(clients, clients)
    assert luck(clients[::-1], clients[::-1]) == pytest.approx(tau2)
    mean = mean_estimate(clients, tau2)
    assert numbers(mean_estimate(clients[::-1], tau2)) == pytest.approx(numbers(mean))


def test_gain_and_loss_mirror_each_other() -> None:
    sample, run, value = drawn()
    first, second = (estimate(Evidence.of(sample, run, sign * value, 1.0), 0.002) for sign in (1, -1))
    assert (first.low, first.high) == pytest.approx((-second.high, -second.low))
    assert first.gain < 0 < second.gain
    assert first.p < 0.2
    assert second.p == 1.0


def test_the_same_tests_again_are_no_evidence() -> None:
    once = estimate(hits(12, 3, 60), 0.0, 20)
    for runs in (2, 8):
        assert numbers(estimate(hits(12, 3, 60, runs), 0.0, 20)) == pytest.approx(numbers(once))


def test_a_client_without_differences_changes_no_other_client() -> None:
    clients = {c: Evidence.of(*drawn(c), 1.0) for c in range(4)}
    found = {c: estimate(each, 0.002, 4) for c, each in clients.items()}
    more = {c: estimate(each, 0.002, 5) for c, each in (clients | {9: hits(0, 0, 50)}).items()}
    assert all(numbers(found[c])[:4] == numbers(more[c])[:4] for c in found)
    assert more[9].p == 1.0


def test_equal_models_have_an_honest_interval() -> None:
    """Only from about 150 equal tests a loss of 2 points is excluded; one client loses 2 % of its hits, none gains."""
    assert estimate(hits(0, 0, 150), 0.0).low == pytest.approx(-0.02, abs=2e-4)
    assert states({0: estimate(hits(0, 0, 140), 0.0), 1: estimate(hits(0, 0, 160), 0.0)}, 0.02) == {
        0: "undecided",
        1: "not worse",
    }
    assert estimate(hits(0, 0, 160, runs=8), 0.0).low == pytest.approx(estimate(hits(0, 0, 160), 0.0).low)
    for tests in (20, 100, 150, 200, 300, 500, 1000):
        excluded = sum(
            binom.pmf(lost, tests, 0.02)
            for lost in range(tests // 10 + 1)
            if estimate(hits(lost, 0, tests), 0.0).low > -0.02
        )
        assert excluded <= 0.05


def test_sums_of_one_run_are_as_good_as_its_tests() -> None:
    sample, _, value = drawn(runs=1)
    value = value * np.where(sample % 2, 1.0, 3.0)
    full = Evidence.of(sample, np.zeros_like(sample), value, 3.0)
    short = Evidence.of_moments([moments(value)], unit=3.0)
    assert (short.gain, short.kappa, short.couples, short.together) == pytest.approx(
        (full.gain, full.kappa, full.couples, full.together)
    )
    exact, rough = estimate(full, 0.002), estimate(short, 0.002)
    assert (rough.low, rough.high) == pytest.approx((exact.low, exact.high))
    assert rough.p == pytest.approx(exact.p)


def test_sums_of_several_runs_give_wider_intervals() -> None:
    for seed in range(20):
        sample, run, value = drawn(seed)
        parts = [value[run == each] for each in range(3)]
        sums = [moments(d) for d in parts]
        full, short = (
            estimate(Evidence.of(sample, run, value, 1.0), 0.002),
            estimate(Evidence.of_moments(sums, unit=1.0), 0.002),
        )
        assert short.gain == pytest.approx(full.gain)
        assert short.low < full.low
        assert short.high > full.high
        apart = estimate(Evidence.of_moments(sums, repeats=1, unit=1.0), 0.002)
        alone = estimate(Evidence.of(np.arange(len(value)), run, value, 1.0), 0.002)
        assert (apart.low, apart.high) == pytest.approx((alone.low, alone.high))


def test_smaller_losses_are_detectable_with_more_data() -> None:
    by_tests = [estimate(hits(n // 10, n // 10, n), 0.0, 20).detectable for n in (20, 40, 60, 100, 300, 1000)]
    assert by_tests == sorted(by_tests, reverse=True)
    by_clients = [estimate(hits(6, 6, 60), 0.0, clients).detectable for clients in (1, 4, 20, 100)]
    assert by_clients == sorted(by_clients)
    by_luck = [estimate(hits(6, 6, 60), each, 20).detectable for each in (0.0, 0.001, 0.004)]
    assert by_luck == sorted(by_luck)
    assert estimate(hits(1, 1, 6), 0.0, 100).detectable == math.inf  # not even all six


def test_few_tests_and_no_tests_have_wide_intervals() -> None:
    assert (estimate(hits(0, 1, 3), 0.0).low, estimate(hits(0, 1, 3), 0.0).high) == (-1.0, 1.0)
    empty = estimate(Evidence.of([], [], [], 1.0), 0.0)
    assert math.isnan(empty.gain)
    assert (empty.low, empty.high, empty.p) == (-math.inf, math.inf, 1.0)
    assert math.isnan(mean_estimate([], 0.0).gain)
    assert luck([], []) == 0.0
    assert luck([hits(0, 0, 9)], [hits(2, 1, 9)]) == 0.0  # equal controls show no luck


def test_who_is_worse_is_by_benjamini_and_hochberg() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        p = random.uniform(size=random.integers(1, 12)) ** 4
        estimates = {c: Estimate(-0.2, -0.3, -0.1, float(each), 0.1) for c, each in enumerate(p)}
        named = [c for c, state in states(estimates, 0.02).items() if state == "worse"]
        assert named == np.flatnonzero(false_discovery_control(p) <= 0.05).tolist()
    assert states({}, 0.02) == {}
    wide = Estimate(-0.2, -0.5, 0.1, 0.0001, 0.1)
    assert states({0: wide}, 0.02) == {0: "undecided"}
    assert state_of_mean(replace(wide, low=-0.01), 0.02) == "not worse"
    assert state_of_mean(replace(wide, high=-0.01), 0.02) == "worse"


def test_luck_is_found_in_the_control_and_between_runs() -> None:
    random, setting = np.random.default_rng(0), Federation(clients=100, tests=300, repetitions=4, luck=0.05)
    joined, control, fold, unit, _ = setting.simulate(random)
    joined, control = setting.evidence(joined, fold, unit), setting.evidence(control, fold, unit)
    true = 2 * 0.05**2
    for found in (luck(control, joined), luck([], joined)):
        assert 0.8 * true < found < 2 * true
    calm = replace(setting, luck=0.0)
    joined, control, fold, unit, _ = calm.simulate(random)
    assert luck(calm.evidence(control, fold, unit), calm.evidence(joined, fold, unit)) < true / 10


@pytest.mark.parametrize("folds", [1, 3])
def test_the_simulation_makes_the_same_evidence_as_single_tests(folds: int) -> None:
    setting = Federation(clients=2, tests=20, repetitions=3, folds=folds, score="weighted")
    d, _, fold, unit, _ = setting.simulate(np.random.default_rng(0))
    for client, made in enumerate(setting.evidence(d, fold, unit)):
        sample, repetition = np.indices(d[client].shape)
        run = repetition * folds + fold[client]
        single = Evidence.of(sample.ravel(), run.ravel(), d[client].ravel(), unit)
        assert made.runs.tolist() == single.runs.tolist()
        assert made.sums == pytest.approx(single.sums)
        assert (*made.clusters, made.step, made.repeats) == pytest.approx(
            (*single.clusters, single.step, single.repeats)
        )


@pytest.mark.parametrize(
    "setting",
    [
        Federation(4, 100, 1, luck=0.05),
        Federation(4, 30, 8, luck=0.05),
        Federation(4, 60, 3, luck=0.03, folds=3),
        Federation(20, 60, 2, luck=0.03, shared=True),
        Federation(4, 60, 3, luck=0.03, score="traded"),
        Federation(4, 60, 3, luck=0.03, score="log-loss"),
    ],
    ids=lambda each: f"{each.clients} clients, {each.tests} tests, {each.score}",
)
def test_level_and_coverage(setting: Federation) -> None:
    federations = 2000 if setting.repetitions == 1 else 600 if setting.clients == 4 else 300
    found = examine(setting, federations)
    assert upper(found.wrong, federations) <= 0.06
    assert found.covered / (federations * setting.clients) >= 0.94
    assert found.below / (federations * setting.clients) <= 0.025
    assert found.mean_covered / federations >= 0.93


def test_the_local_model_a_few_rounds_later_is_not_harmed() -> None:
    for tests in (30, 300):
        assert examine(Federation(80, tests, 1, luck=0.03, churn=0.1), 20).wrong == 0


def test_power_grows_with_tests_and_repetitions() -> None:
    by_repetitions = [examine(Federation(repetitions=r, agree=0.2, loss=0.1), 60).named for r in (1, 3, 8)]
    assert by_repetitions == sorted(by_repetitions)
    assert by_repetitions[-1] >= 36
    by_tests = [examine(Federation(tests=n, repetitions=3, loss=0.1), 60).named for n in (30, 60, 200)]
    assert by_tests == sorted(by_tests)
    assert by_tests[-1] >= 36


def test_a_loss_of_the_margin_is_rarely_excluded() -> None:
    for setting in (
        Federation(4, 300, 2, luck=0.0, loss=0.02),
        Federation(4, 200, 1, 0.0, agree=1, differ=0.02, loss=0.02),
    ):
        assert examine(setting, 300).not_worse <= 0.05 * 300


def test_the_mean_covers_where_seeds_deal_the_same_samples_out_again() -> None:
    """Five seeds share 200 samples out to four clients and test 30 % of them: a sample is tested in several seeds.

    A sample has the same difference in each seed, so that its luck does not average out over seeds.
    """
    random, covered, ignored, trials = np.random.default_rng(3), 0, 0, 150
    for _ in range(trials):
        sample = random.choice([-1.0, 0.0, 1.0], p=[0.15, 0.7, 0.15], size=200)
        joined: dict[int, LoadedRun] = {}
        local: dict[int, LoadedRun] = {}
        for seed in range(5):
            deal = random.permutation(200).reshape(4, 50)[:, :15]
            scores = [
                {
                    c: ClientScores(ids, np.zeros(15, int), values)
                    for c, (ids, values) in enumerate(zip(deal, each, strict=True))
                }
                for each in (sample[deal], np.zeros((4, 15)))
            ]
            joined[seed], local[seed] = (
                cast(LoadedRun, SimpleNamespace(samples=each, deciding="accuracy")) for each in scores
            )
        evidence = of_samples(joined, local, pooled=True)
        assert len(evidence) == 20
        apart = {key: replace(each, overlap=1.0) for key, each in evidence.items()}
        for known, what in ((evidence, "covered"), (apart, "ignored")):
            mean = mean_estimate(list(known.values()), 0.0)
            if mean.low <= 0 <= mean.high:
                covered, ignored = covered + (what == "covered"), ignored + (what == "ignored")
    assert covered / trials >= 0.92
    assert ignored < covered - 0.05 * trials  # without the correction it would not


def test_the_mean_covers_where_the_joined_model_has_more_luck_than_local_training() -> None:
    """Six seeds with clients of their own; each moves the joined model by 5 points, and no control knows it."""
    random, covered, trials = np.random.default_rng(4), 0, 300
    for _ in range(trials):
        evidence = []
        for seed in range(6):
            gain = random.normal(0, 0.05)
            for _ in range(4):
                d = random.choice([-1, 0, 1], p=[0.1 - gain / 2, 0.8, 0.1 + gain / 2], size=100)
                evidence.append(Evidence.of(np.arange(100), np.full(100, seed), d, unit=1.0))
        mean = mean_estimate(evidence, 0.0)
        covered += mean.low <= 0 <= mean.high
    assert covered / trials >= 0.93
