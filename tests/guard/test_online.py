"""The online guard: what holds on every sequence, how often it alarms, and a state that survives restarts."""

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from comity import ComityError
from comity.guard import FEEDBACK, OnlineGuard, OnlineState, bets, log_capital, opened, read

Array = NDArray[np.float64]
CHANCE = 1e-4
"""How often a simulated level may be found too high although it is not."""
TOLERANCE = 1e-9


def of_labels(pairs: Array) -> Array:
    """Predictions (models, n, 2) with these probabilities (n, models) of label 0, which is the truth throughout."""
    return np.stack([pairs.T, 1 - pairs.T], axis=2)


def feed(guard: OnlineGuard, pairs: Array) -> OnlineState:
    guard.update(of_labels(pairs), np.zeros(len(pairs), dtype=int))
    return guard.record


def started(**options: Any) -> OnlineGuard:
    """One that does not alarm, as far as can be."""
    return OnlineGuard.start(**({"weights": [0.5, 0.5], "version": "1", "delta": 1e-9, "margin": 0.9} | options))


def extra(state: OnlineState) -> float:
    """What votes lost in expectation above the own model."""
    return state.losses[-1] - state.losses[0]


def worst(score: Callable[[Array], float], shape: tuple[int, int], values: list[float], seed: int, tries: int) -> float:
    """The greatest score that a search finds: single entries are changed as long as that helps, from several starts."""
    random, best = np.random.default_rng(seed), -math.inf
    for _ in range(tries):
        pairs = random.choice(values, shape)
        now = score(pairs)
        improved = True
        while improved:
            improved = False
            for place in np.ndindex(shape):
                for value in values:
                    changed = pairs.copy()
                    changed[place] = value
                    if (found := score(changed)) > now + 1e-12:
                        pairs, now, improved = changed, found, True
        best = max(best, now)
    return best


@pytest.mark.parametrize(("own", "share", "delay"), [(0.5, 0.0, 0), (0.1, 0.0, 0), (0.3, 0.05, 0), (0.5, 0.0, 2)])
def test_on_no_sequence_is_more_log_loss_lost_to_the_own_model(own: float, share: float, delay: int) -> None:
    """The worst sequence that a search finds loses as much as the bound, and no sequence more."""
    guards = []

    def score(pairs: Array) -> float:
        guard = started(weights=[own, 1 - own], share=share, delay=delay)
        feed(guard, pairs)
        guards.append(guard)
        assert guard.record.nats <= guard.nats_bound + TOLERANCE
        return guard.record.nats

    found = worst(score, (5, 2), [0.0, 0.5, 1.0], 1, 2)
    assert found == pytest.approx(guards[-1].nats_bound, abs=1e-6)
    if not share:
        spread = (delay + 1) * math.log(1 / own)
        assert guards[-1].nats_bound == pytest.approx(spread)


def test_over_any_rounds_the_own_models_floor_limits_the_loss() -> None:
    """However much the own model lost before: with a share s, ln(2/s) + a little for each label."""
    share, guard = 0.01, started(share=0.01)
    feed(guard, np.tile([1e-12, 1.0], (50, 1)))
    before, n = guard.record.nats, 30
    assert guard.weights[0] == pytest.approx(share / 2)
    feed(guard, np.tile([1.0, 0.0], (n, 1)))
    assert guard.record.nats - before <= math.log(2 / share) - n * math.log(1 - share / 2) + TOLERANCE


@pytest.mark.parametrize("delay", [0, 1])
def test_votes_make_at_most_so_many_extra_errors(delay: int) -> None:
    """Every sequence of eight samples on which one model, the other, or both are right: 1.39 extra errors at most."""
    most = 0.0
    for kinds in itertools.product([(0.9, 0.9), (0.9, 0.1), (0.1, 0.9)], repeat=6):
        state = feed(started(share=0.0, delay=delay), np.array(kinds))
        most = max(most, extra(state))
    assert 1.1 * (1 if delay == 0 else 1.5) < most <= (delay + 1) * 2 * math.log(2)


def test_the_worst_sequence_of_any_length_for_votes() -> None:
    """By dynamic programming over how often each model alone was right, which is all that votes depend on."""
    n, value = 400, np.zeros((402, 402))  # after a gains and b losses of the federated model: what can still be lost
    for total in range(n, -1, -1):
        for a in range(total + 1):
            b = total - a
            follows = 1 / (1 + math.exp(-a * math.log(1.5) - b * math.log(0.5)))
            value[a, b] = max(0.0, follows + value[a, b + 1], -follows + value[a + 1, b])
    assert value[0, 0] <= 2 * math.log(2)
    losing = feed(started(share=0.0), np.tile([0.9, 0.1], (60, 1)))
    assert extra(losing) <= value[0, 0] + TOLERANCE
    assert extra(losing) > 0.9 * value[0, 0]


@pytest.mark.parametrize("metric", ["brier", "log-loss", "accuracy", "balanced"])
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_bounds_across_versions_alarms_and_three_models(metric: str, share: float) -> None:
    """Random sequences that change sides, with alarms and new versions amid them."""
    random, alarms = np.random.default_rng(3), 0
    for delay in (0, 3):
        options = {"metric": metric, "share": share, "delay": delay, "margin": 0.01, "delta": 0.5}
        shares = [0.3, 0.7] if metric == "balanced" else ()
        guard = OnlineGuard.start([0.2, 0.5, 0.3], "0", **options, class_shares=shares)
        for version in range(12):
            guard.new_version(str(version))
            good = random.integers(0, 3)
            pairs = random.beta(0.5, 0.5, (random.integers(1, 40), 3))
            pairs[:, good] = np.maximum(pairs[:, good], 0.9)
            before = guard.record.nats
            feed(guard, pairs)
            alarms += guard.alarmed
            assert guard.record.nats <= guard.nats_bound + TOLERANCE
            assert extra(guard.record) <= guard.loss_bound + TOLERANCE
            if guard.alarmed:
                assert guard.weights.tolist() == guard.votes.tolist() == [1, 0, 0]
                after = feed(guard, pairs).nats
                assert after == feed(guard, pairs).nats != before
    assert alarms


def test_late_labels_need_interleaved_sequences() -> None:
    """While labels are D late, D + 1 interleaved sequences keep the bound; one sequence loses without limit."""
    late, x = 3, math.exp(-3)
    pairs = np.tile(np.repeat([[0.9, 0.9 * x], [0.9 * x, 0.9]], 2 * (late + 1), axis=0), (10, 1))[late + 1 :]
    given, labels = of_labels(pairs), np.zeros(len(pairs), dtype=int)
    lost = {}
    for delay in (0, late):
        guard, served = started(share=0.0, delay=delay), np.zeros(len(pairs))
        for t in range(len(pairs)):
            pending = min(t, late)
            served[t] = guard.predict(given[:, t : t + 1], pending)[0, 0]
            if t >= late:
                guard.update(given[:, t - late : t - late + 1], labels[:1])
        lost[delay] = float((np.log(pairs[:, 0]) - np.log(served)).sum())
    assert lost[late] <= (late + 1) * math.log(2) + TOLERANCE
    assert lost[0] > 100


def test_decisions_are_drawn_by_votes() -> None:
    guard, random = started(share=0.0), np.random.default_rng(0)
    feed(guard, np.tile([0.9, 0.1], (2, 1)))
    drawn = guard.decide(of_labels(np.tile([0.9, 0.1], (2000, 1))), random)
    assert guard.votes[1] == pytest.approx(0.2)
    assert CHANCE <= binom.cdf(int((drawn == 1).sum()), 2000, 0.2) <= 1 - CHANCE


def first_crossings(differences: Array, margin: float, delta: float) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each stream (streams, n) ever alarms, and whether it is ever certified."""
    alarm, certificate = (log_capital(each.cumsum(1)).max(1) >= -math.log(delta) for each in bets(differences, margin))
    return alarm, certificate


def steady(random: np.random.Generator, streams: int, n: int, margin: float) -> Array:
    """One model errs where the other does not: on 10 % + margin, and on 10 %."""
    return np.asarray(random.choice([1.0, -1.0, 0.0], (streams, n), p=[0.1 + margin, 0.1, 0.8 - margin]))


def rare(random: np.random.Generator, streams: int, n: int, margin: float) -> Array:
    """In use is never better than the own model, and seldom worse."""
    return np.asarray(random.random((streams, n)) < margin, dtype=float)


def constant(_: np.random.Generator, streams: int, n: int, margin: float) -> Array:
    return np.full((streams, n), margin)


def banked(random: np.random.Generator, streams: int, n: int, margin: float) -> Array:
    """In use is better in the first half and much worse in the second, so that the mean is the margin in the end."""
    mean = np.where(np.arange(n) < n // 2, -0.2, 0.2 + 2 * margin)
    return np.asarray(random.random((streams, n)) < (1 + mean) / 2, dtype=float) * 2 - 1


def mirrored(random: np.random.Generator, streams: int, n: int, margin: float) -> Array:
    """The opposite: much worse first."""
    return banked(random, streams, n, margin)[:, ::-1]


MARGINAL = {"steady": steady, "rare": rare, "constant": constant, "better, then worse": banked}


def check_marginal(name: str, streams: int, n: int, margin: float, delta: float) -> None:
    """An exact binomial limit for both e-processes where the mean difference is the margin itself."""
    random = np.random.default_rng(len(name))
    alarm, _ = first_crossings(MARGINAL[name](random, streams, n, margin), margin, delta)
    assert binom.sf(int(alarm.sum()) - 1, streams, delta) >= CHANCE
    source = mirrored if MARGINAL[name] is banked else MARGINAL[name]
    _, certificate = first_crossings(source(random, streams, n, margin), margin, delta)
    assert binom.sf(int(certificate.sum()) - 1, streams, delta) >= CHANCE


@pytest.mark.parametrize("name", MARGINAL)
def test_at_the_margin_alarms_and_certificates_are_rare(name: str) -> None:
    check_marginal(name, 400, 300, 0.02, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MARGINAL)
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("delta", [0.05, 0.2])
def test_at_the_margin_with_long_streams(name: str, margin: float, delta: float) -> None:
    for _ in range(4):
        check_marginal(name, 1000, 2000, margin, delta)


def test_the_guard_bets_as_the_levels_were_simulated() -> None:
    """The federated model has the better log-loss and 20 points more errors; the mixture follows it until the alarm."""
    random, guard = np.random.default_rng(5), OnlineGuard.start([0.001, 0.999], "1", margin=0.05, share=0.0)
    right, better = random.random(300) < 0.6, random.random(300) < 0.8
    pairs = np.column_stack([np.where(better, 0.501, 0.001), np.where(right, 0.999, 0.499)])
    state = feed(guard, pairs)
    at = state.versions[-1].alarm_at
    assert at is not None
    wrong = 1.0 - right, 1.0 - better
    capital = log_capital(bets((wrong[0] - wrong[1])[:at], 0.05)[0].cumsum(0))
    assert capital[-1] >= math.log(20) > capital[:-1].max()
    assert log_capital(state.alarm) == pytest.approx(capital[-1])
    assert state.losses[-2] == pytest.approx(wrong[0][:at].sum() + wrong[1][at:].sum())
    assert "ALARM" in str(guard.report())
    guard.new_version("1")
    assert guard.alarmed
    guard.new_version("2")
    assert not guard.alarmed
    assert guard.report().alarm_evidence == pytest.approx(1)
    assert guard.weights[1] > 0.9


def test_a_good_model_is_certified_about_when_it_was_expected() -> None:
    """Estimates at a third of the way are within a factor of two, in most streams."""
    near, certified = 0, 0
    for seed in range(20):
        random, guard = np.random.default_rng(seed), OnlineGuard.start([0.05, 0.95], "1", margin=0.05)
        expected = []
        for _ in range(60):
            pairs = np.where(random.random((20, 2)) < [0.75, 0.85], 0.8, 0.2)
            report = guard.update(of_labels(pairs), np.zeros(20, dtype=int))
            assert not report.alarm
            if report.certified:
                break
            expected.append(report.samples + (report.labels_to_certificate or 10**6))
        certified += report.certified
        assert report.labels_to_certificate == (0 if report.certified else report.labels_to_certificate)
        middle = expected[len(expected) // 3] if expected else report.samples
        near += 0.5 <= middle / report.samples <= 2
    assert certified == 20
    assert near >= 14


def test_before_the_first_label_the_least_number_is_given() -> None:
    guard = OnlineGuard.start([0.5, 0.5], "1", margin=0.05)
    least = guard.report().labels_to_certificate
    same = np.full((2 * least, 2), 0.9)
    at = feed(guard, same).versions[-1].certified_at
    assert least / 2 < at <= least
    assert OnlineGuard.start([0.5, 0.5], "1", margin=0.0).report().labels_to_certificate is None


STREAM = np.random.default_rng(7).dirichlet(np.ones(3), (2, 1300))
LABELS = np.random.default_rng(8).integers(0, 3, 1300)


@pytest.mark.parametrize(("cut", "delay"), [(0, 0), (1, 2), (499, 0), (500, 2), (501, 0), (777, 2), (1300, 0)])
def test_a_restart_at_any_point_leaves_the_same_state(cut: int, delay: int, tmp_path: Path) -> None:
    def start() -> OnlineGuard:
        return OnlineGuard.start([0.3, 0.7], "a", metric="brier", margin=0.001, delay=delay)

    whole = start()
    whole.update(STREAM, LABELS)
    for part in (slice(0, cut), slice(cut, None)):
        with opened(tmp_path, start) as guard:
            guard.update(STREAM[:, part], LABELS[part])
    assert read(tmp_path / FEEDBACK).state() == whole.state()
    assert [path.name for path in tmp_path.iterdir()] == [FEEDBACK]
    assert json.loads(json.dumps(whole.state())) == whole.state()
    history = whole.record.history
    assert 250 < len(history) <= 500
    assert {b.samples - a.samples for a, b in itertools.pairwise(history)} == {whole.record.every} == {4}


def test_an_interrupted_update_writes_nothing(tmp_path: Path) -> None:
    def interrupted() -> None:
        with opened(tmp_path, lambda: started()) as guard:
            guard.update(STREAM, LABELS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not list(tmp_path.iterdir())
    with opened(tmp_path, lambda: started()), pytest.raises(ComityError, match="another process is giving feedback"):
        opened(tmp_path, lambda: started()).__enter__()


def with_change(**changes: Any) -> dict[str, Any]:
    guard = OnlineGuard.start([0.5, 0.5], "1")
    guard.update(STREAM[:, :5], LABELS[:5])
    return guard.state() | changes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 2}, r"Invalid enum value 2 - at `\$.format`"),
        ({"metric": "luck"}, "unknown metric 'luck'"),
        ({"metric": "balanced"}, "class_shares must sum to 1"),
        ({"margin": 1.0}, r"`float` < 1.0 - at `\$.margin`"),
        ({"margin": math.nan}, r"\$.margin"),
        ({"losses": [math.inf] * 4}, r"\$.losses"),
        ({"nats": math.nan}, r"\$.nats"),
        ({"delta": "0.05"}, r"Expected `float`, got `str` - at `\$.delta`"),
        ({"delay": 10**9}, r"\$.delay"),
        ({"delay": 1}, r"weights and votes must be there delay \+ 1 times"),
        ({"weights": [[-0.1, -0.1]]}, "weights must sum to 1"),
        ({"weights": [[0.0]]}, "weights must be there for each model"),
        ({"start": [0.0]}, "it must have 2 to 10 models"),
        ({"losses": [0.0]}, "losses must be there for each model"),
        ({"alarm": [0.0]}, r"\$.alarm"),
        ({"versions": []}, r"\$.versions"),
        ({"versions": [{"name": "1", "since": 99}]}, "it refers to labels that it has not seen"),
        ({"versions": [{"name": "1", "since": 0}] * 2}, "a version is there twice"),
        ({"samples": 3}, "it refers to labels that it has not seen"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_a_state_that_cannot_be_true_is_rejected(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    state = with_change(**changes)
    with pytest.raises(ComityError, match=says) as error:
        OnlineGuard.from_state(state)
    assert "\n" not in str(error.value)
    path = tmp_path / FEEDBACK
    path.write_text(json.dumps(state))
    with pytest.raises(ComityError, match=re.escape(str(path))):
        read(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"null", b"9" * 5000])
def test_a_damaged_file_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / FEEDBACK).write_bytes(content)
    with pytest.raises(ComityError, match=FEEDBACK), opened(tmp_path, lambda: started()):
        pass
    assert (tmp_path / FEEDBACK).read_bytes() == content


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / FEEDBACK).write_bytes(b" " * 8_000_001)
    with pytest.raises(ComityError, match="larger than"):
        read(tmp_path / FEEDBACK)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": [0.5, 0.6]}, "weights must be numbers of at least 0 with sum 1"),
        ({"weights": [math.nan, 1.0]}, "weights must be numbers of at least 0 with sum 1"),
        ({"margin": 1}, "margin must be at least 0 and below 1"),
        ({"delta": 0}, "delta must be above 0 and below 1"),
        ({"share": -0.1}, "share must be at least 0 and below 1"),
        ({"delay": 10**6}, "delay must be at least 0 and at most 1000"),
        ({"metric": "balanced"}, "class_shares must sum to 1"),
        ({"version": ""}, "online guard: .*name"),
    ],
)
def test_options_that_do_not_fit_are_rejected(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ComityError, match=says):
        OnlineGuard.start(**({"weights": [0.5, 0.5], "version": "1"} | options))


@pytest.mark.parametrize(
    ("probabilities", "labels", "says"),
    [
        (STREAM[:1], LABELS, r"probabilities must be 2 models × samples × classes"),
        (STREAM * 2, LABELS, "probabilities must be numbers from 0 to 1 that sum to 1"),
        (STREAM * math.nan, LABELS, "probabilities must be numbers from 0 to 1 that sum to 1"),
        (STREAM, LABELS[1:], "labels must be 1300 whole numbers"),
        (STREAM, LABELS + 0.5, "labels must be 1300 whole numbers"),
        (STREAM, LABELS + 1, "labels must be from 0 to 2"),
    ],
)
def test_labels_that_do_not_fit_change_nothing(probabilities: Array, labels: Array, says: str) -> None:
    guard = started()
    with pytest.raises(ComityError, match=says):
        guard.update(probabilities, labels)
    assert guard.state() == started().state()
    assert guard.update(np.zeros((2, 0, 3)), []).samples == 0
