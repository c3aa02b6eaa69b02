"""The protocol by itself: whoever is lost or lies, the sum is that of those who are left, or there is none."""

import dataclasses
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cohorts import Cohort
from hypothesis import given, settings
from hypothesis import strategies as st

from comity import ComityError
from comity.privacy import (
    ANNOUNCEMENT,
    BOUND,
    FixedPoint,
    Party,
    Rejected,
    Secrets,
    degree,
    join,
    keystream,
    members_of,
    objection_to_weights,
    place_of,
    split,
    threshold,
    within_bounds,
    write_secrets,
)
from comity.privacy._fixed_point import EXACT_BOUND
from comity.privacy._masks import add_mask

STEPS = ("keys", "shares", "mask", "agree", "unmask")
few = settings(max_examples=25, deadline=None)


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    clients = draw(st.integers(2, 9))
    fates = draw(st.lists(st.sampled_from((None, None, None, *STEPS)), min_size=clients, max_size=clients))
    lost = {step: [cid for cid, fate in enumerate(fates) if fate == step] for step in STEPS}
    return Cohort(clients, seed=draw(st.integers(0, 99)), lost=lost)


@few
@given(cohorts())
def test_whoever_is_lost_in_whichever_step_costs_its_own_term_alone(cohort: Cohort) -> None:
    """Within the threshold the sum is exactly that of the clients whose words arrived; beyond it there is none."""
    announced = cohort.clients - len(cohort.lost["keys"])
    told = announced - sum(len(cohort.lost[step]) for step in STEPS[1:])
    if announced and told >= threshold(announced):
        assert np.array_equal(cohort.sum(), cohort.expected())
    elif announced and told:
        with pytest.raises(Rejected, match="too few"):  # they do not agree, or shares are missing
            cohort.sum()


@pytest.mark.parametrize("lost", [{}, {"mask": [3, 9], "unmask": [14]}, {"shares": [20], "mask": [0], "unmask": [11]}])
def test_clients_that_mask_with_some_of_the_others_alone(
    lost: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.privacy._graph.degree", lambda _: 8)
    cohort = Cohort(24, lost=lost)
    assert np.array_equal(cohort.sum(), cohort.expected())


@pytest.mark.slow
def test_a_large_cohort_loses_a_tenth_in_each_of_two_steps() -> None:
    cohort = Cohort(130, lost={"mask": range(0, 130, 10), "unmask": range(5, 130, 10)})
    assert degree(130) < 129
    assert np.array_equal(cohort.sum(), cohort.expected())


def test_a_round_has_two_sums_that_do_not_open_each_other() -> None:
    cohort = Cohort(5, lost={})
    assert np.array_equal(cohort.sum(), cohort.expected())
    cohort.lost = {"mask": [2]}  # its key for the second sum is opened, beside its seed for the first
    cohort.mask(1)
    assert np.array_equal(cohort.open(1), cohort.expected())


def test_different_words_to_different_clients_open_nothing() -> None:
    cohort = Cohort(6, about=lambda cid: b"to some" if cid < 3 else b"to others")
    with pytest.raises(Rejected, match="agreement"):
        cohort.sum()


@few
@given(st.integers(4, 8) | st.integers(18, 24), st.data())
def test_false_shares_change_nothing_and_name_their_sender(clients: int, data: st.DataObject) -> None:
    """As long as two thirds of the holders tell the truth, in cohorts of any size."""
    false_sharers = data.draw(st.sets(st.integers(0, clients - 1), min_size=1, max_size=clients - threshold(clients)))
    byte = data.draw(st.integers(1, 65))

    def tamper(step: str, sent: dict[int, list[bytes]]) -> None:
        for cid in false_sharers if step == "unmask" else ():
            sent[cid] = [row[:byte] + bytes([row[byte] ^ 1]) + row[byte + 1 :] for row in sent[cid]]

    cohort = Cohort(clients, tamper=tamper)
    assert np.array_equal(cohort.sum(), cohort.expected())
    assert cohort.collector.false_sharers == sorted(false_sharers)


def test_too_many_false_shares_name_nobody_else() -> None:
    def tamper(step: str, sent: dict[int, list[bytes]]) -> None:
        for cid in (0, 1, 2) if step == "unmask" else ():
            sent[cid] = [bytes([row[0] ^ 1]) + row[1:] for row in sent[cid]]

    cohort = Cohort(6, tamper=tamper)
    with pytest.raises(Rejected, match="too few") as refused:
        cohort.sum()
    assert "client " not in str(refused.value)


def test_shares_that_were_changed_on_the_way_are_held_as_missing() -> None:
    def tamper(step: str, sent: dict[int, list[bytes]]) -> None:
        if step == "shares":  # what 0 sealed for 1 arrives changed
            sent[0][0] = sent[0][0][:-1] + bytes([sent[0][0][-1] ^ 1])

    cohort = Cohort(4, tamper=tamper)
    assert np.array_equal(cohort.sum(), cohort.expected())


def test_keys_that_the_list_does_not_know_keep_their_owner_out() -> None:
    cohort = Cohort(5)
    stranger = dataclasses.replace(cohort.secrets[3], identity=bytes(range(32)))
    cohort.parties[3] = Party(stranger, cohort.place, {})
    cohort.announce()
    assert cohort.share().keys() == {3}
    cohort.mask()
    assert np.array_equal(cohort.open(), cohort.expected())
    assert cohort.masked.keys() == {0, 1, 2, 4}


def test_keys_of_another_round_or_client_are_not_taken() -> None:
    for place, me in ((place_of("run", 2), 3), (place_of("other", 3), 3), (place_of("run", 3), 2)):
        cohort = Cohort(5)
        cohort.parties[3].place = place
        cohort.parties[3].secrets = dataclasses.replace(cohort.secrets[3], client=me)
        cohort.parties[3].me = me
        cohort.announce()
        replayed = cohort.collector.everyone
        cohort.parties[3] = Party(cohort.secrets[3], cohort.place, {})
        sealed = {cid: cohort.parties[cid].share(replayed)[0] for cid in (0, 1, 2, 4)}
        assert all(not any(rows[sorted(replayed.keys() - {cid}).index(3)]) for cid, rows in sealed.items())


def test_nothing_is_told_twice_or_out_of_turn() -> None:
    cohort = Cohort(4)
    party = cohort.parties[0]
    with pytest.raises(Rejected, match="turn: "):
        party.share({0: bytes(ANNOUNCEMENT)})
    cohort.announce()
    with pytest.raises(Rejected, match="turn: "):
        party.mask(0, cohort.words[0], [0, 1, 2, 3], b"")
    cohort.share()
    with pytest.raises(Rejected, match="turn: "):
        party.share(cohort.collector.everyone)
    stale = Party(cohort.secrets[0], place_of("run", 4), party.kept)
    with pytest.raises(Rejected, match="turn: "):
        stale.receive(cohort.collector.sealed_for(0))
    other = Party(cohort.secrets[0], cohort.place, dict(party.kept))
    other.receive(cohort.collector.sealed_for(0))
    for present in ([1, 2, 3], [0, 0, 1, 2], [0, 1, 2, 3, 9]):
        with pytest.raises(Rejected, match="cohort: "):
            other.mask(0, cohort.words[0], present, b"")
    cohort.mask()
    with pytest.raises(Rejected, match="turn: "):
        party.mask(0, cohort.words[0], [0, 1, 2, 3], b"another")
    with pytest.raises(Rejected, match="turn: "):
        party.agree(1, [0, 1, 2, 3])
    for impossible in ([1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 1, 2]):
        with pytest.raises(Rejected, match="survivors: "):
            party.agree(0, impossible)
    with pytest.raises(Rejected, match="turn: "):
        party.unmask(0, {})
    cohort.open()
    with pytest.raises(Rejected, match="turn: "):  # it would sign another story
        party.agree(0, [0, 1, 2])
    with pytest.raises(Rejected, match="turn: "):  # it would be asked for a key whose seed it told
        party.unmask(0, {})


def test_no_more_than_half_a_lie_opens_both_secrets_of_a_client() -> None:
    """A server that tells some holders that client 4 was lost, and others that it was not, misses a threshold."""
    for clients in range(3, 40):
        most = threshold(clients)
        assert 2 * most > clients
        assert clients - most >= clients // 3  # so many may be lost


def test_the_server_sees_no_words_but_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do any words lie open under a mask that it takes away from the sum."""
    taken: list[np.ndarray[Any, Any]] = []
    cohort = Cohort(6, lost={"mask": [2], "unmask": [4]})
    cohort.announce()
    cohort.share()
    cohort.mask()

    def noting(words: np.ndarray[Any, Any], key: bytes, sign: int) -> None:
        taken.append(keystream(key, len(words)))
        add_mask(words, key, sign)

    monkeypatch.setattr("comity.privacy._collector.add_mask", noting)
    total = cohort.open()
    assert len(taken) == 5 + 5  # five own masks, and those of client 2 with five others
    for cid, words in cohort.masked.items():
        for mask in taken:
            assert not (words - mask == np.append(cohort.words[cid], np.uint64(1))).any()
    seen = b"".join(cohort.seen)
    assert all(word.tobytes() not in seen for words in cohort.words.values() for word in words)
    masked = np.stack(list(cohort.masked.values()))
    bits = np.unpackbits(masked.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(8 * masked.nbytes)
    assert np.array_equal(total, cohort.expected())


# Shares.


@few
@given(st.binary(min_size=32, max_size=32), st.integers(1, 9), st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, count: int, data: st.DataObject) -> None:
    needed = data.draw(st.integers(1, count))
    shares = dict(enumerate(split(secret, count, needed), 1))
    places = data.draw(st.permutations(range(1, count + 1)))
    assert join({x: shares[x] for x in places[:needed]}) == secret
    if needed > 1:
        assert join({x: shares[x] for x in places[: needed - 1]}) != secret


# Who masks with whom.


@few
@given(st.integers(2, 400), st.binary(min_size=1, max_size=8))
def test_neighbours_are_mutual_and_hang_together(clients: int, seed: bytes) -> None:
    graph = members_of(range(clients), seed)
    assert {len(each) for each in graph.values()} == {degree(clients)}
    assert all(cid in graph[other] and other != cid for cid, each in graph.items() for other in each)
    reached, front = {0}, [0]
    while front:
        front = [other for cid in front for other in graph[cid] if other not in reached and not reached.add(other)]
    assert len(reached) == clients


def test_neighbours_grow_as_the_logarithm() -> None:
    assert [degree(n) for n in (2, 3, 60)] == [1, 2, 59]
    assert degree(10**6) - degree(10**5) == pytest.approx(degree(10**5) - degree(10**4), abs=2)
    assert degree(10**4) < 200


# Numbers.


@few
@given(st.integers(1, 10_000), st.lists(st.floats(-BOUND, BOUND), min_size=1, max_size=4))
def test_no_cohort_can_overflow(clients: int, values: list[float]) -> None:
    point = FixedPoint(clients)
    words = point.encode(np.array(values))
    assert np.abs(point.decode(words) - values).max() <= 0.5 * 2.0**-point.bits
    assert point.bits >= 36
    everybody = point.encode(np.array([BOUND, -BOUND])) * np.uint64(clients)
    assert np.array_equal(point.decode(everybody), [clients * BOUND, -clients * BOUND])


@pytest.mark.parametrize("value", [np.nextafter(BOUND, 2 * BOUND), -2 * BOUND, np.inf, np.nan])
def test_what_has_no_room_is_refused(value: float) -> None:
    with pytest.raises(Rejected, match="update: "):
        FixedPoint(3).encode(np.array([0.0, value]))


def why(*weights: float, losses: int = 0) -> str | None:
    return objection_to_weights(np.array(weights, dtype=np.float64), 0.5, 5, losses)


def test_which_weights_a_client_lends_itself_to() -> None:
    assert why(0.2, 0.2, 0.2, 0.2, 0.2) is None
    assert why(0, 0, 0, 0, 0) is None  # nobody moved
    assert why(0.33, *4 * (0.1675,)) is None
    assert why(0.34, *4 * (0.165,)) == "weights-share"
    assert why(0.5, 0.5, 0, 0, 0) == "weights-terms"  # nobody has more than half, but two are too few
    assert why(0.25, 0.25, 0.25, 0.25, 0) == "weights-terms"
    assert why(0.3, 0.3, 0.3, 0.1, -1e-9) == "weights-sign"
    assert why(np.nan, 0.3, 0.3, 0.3, 0.1) == "weights-form"
    assert why(*5 * (16.1,)) == "weights-size"
    assert objection_to_weights(np.full(5, 1), 0.5, 5) == "weights-form"  # whole numbers


@few
@given(st.lists(st.floats(0, 15), min_size=6, max_size=12).map(np.array), st.integers(0, 2))
def test_whoever_is_lost_the_weights_of_the_others_are_accepted(weights: Any, losses: int) -> None:
    bounded = within_bounds(weights, 0.5, 4, losses)
    assert bounded.sum() == pytest.approx(weights.sum())
    for lost in combinations(range(len(weights)), losses):
        assert objection_to_weights(np.delete(bounded, lost), 0.5, 4) is None
    if objection_to_weights(weights, 0.5, 4, losses) is None:
        assert np.array_equal(bounded, weights)


# Files.


def test_secrets_are_written_once_and_read_by_their_owner_alone(tmp_path: Path) -> None:
    files = write_secrets(tmp_path / "keys", 3)
    read = [Secrets.read(file, cid) for cid, file in enumerate(files)]
    assert len({each.group for each in read}) == 1
    assert len({each.identity for each in read}) == 3
    assert all(each.members == read[0].members for each in read)
    with pytest.raises(ComityError, match="never replaced"):
        write_secrets(tmp_path / "keys", 3)
    with pytest.raises(ComityError, match="are not those of client 1"):
        Secrets.read(files[0], 1)
    for text in ("", "[]", "{}", files[0].read_text().replace('"group": "', '"group": "z')):
        files[2].write_text(text)
        with pytest.raises(ComityError, match="cannot be read"):
            Secrets.read(files[2], 2)
    files[1].chmod(0o644)
    with pytest.raises(ComityError, match="can be read by others"):
        Secrets.read(files[1], 1)


# Sums without rounding.

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@few
@given(st.lists(st.lists(FLOATS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_sums_of_float32_and_of_their_squares_are_exact(rows: list[list[float]]) -> None:
    """Whichever their sizes: what comes out is the true sum, rounded once."""
    terms = [np.concatenate([row, np.square(row)]) for row in np.array(rows)]
    point = FixedPoint(len(terms))
    total = sum((point.encode_exactly(each) for each in terms), np.uint64(0))
    expected = [float(sum(map(Fraction, column))) for column in np.array(terms).T.tolist()]
    assert point.decode_exactly(total).tolist() == expected


def test_the_words_of_an_exact_sum_say_nothing_of_who_is_below_zero() -> None:
    """Two pairs with one sum: nothing that is the same for a pair tells it from the other, digit by digit."""
    point, shifts = FixedPoint(2), []
    for pair in ((3.0, 4.0), (-3.0, 10.0)):
        words = [sum(point.encode_exactly(np.array([each])) for each in pair).view(np.int64) for _ in range(200)]
        assert {float(point.decode_exactly(each.view(np.uint64))[0]) for each in words} == {7.0}
        above = np.array(words) >> 16
        assert all(len(set(column)) == 200 for column in above.T.tolist())  # what is above a digit never comes again
        shifts.append(above[:, -1].mean() / 2.0**point.hiding)
    assert abs(shifts[0] - shifts[1]) < 0.25  # of about 1, with a standard error of 0.04


@pytest.mark.parametrize("clients", [1, 2, 100, 10_000, 2**20])
def test_no_exact_sum_can_overflow(clients: int) -> None:
    point = FixedPoint(clients)
    assert clients * 2**16 * 2**point.hiding <= 2**62
    assert clients * int(EXACT_BOUND) * 2**298 < 2 ** (16 * 40 - 1)
    assert point.decode_exactly(
        point.encode_exactly(np.array([EXACT_BOUND, -EXACT_BOUND, 0.0, 2.0**-298]))
    ).tolist() == [
        EXACT_BOUND,
        -EXACT_BOUND,
        0.0,
        2.0**-298,
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**311, 2.0**-299], ids=str)
def test_numbers_that_would_not_be_exact_are_rejected(value: float) -> None:
    with pytest.raises(Rejected, match="sums: its sums are beyond what can be masked"):
        FixedPoint(3).encode_exactly(np.array([value]))
