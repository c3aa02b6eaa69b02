"""Which replies are taken, what happens to the others, and how much one client may count."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from comity import ComityError, Config
from comity.engine import Scores, Verb, run, site_of
from comity.engine._admission import admit, brief
from comity.methods import Client, Message, Method, Payload, Question, Reply, Server
from comity.rules import Updates, capped

FIT, EVALUATE = Verb("fit", Message, Reply), Verb("evaluate", Message, Scores)
SENT = Message(theta=torch.ones(3))
GOOD = Reply(theta=torch.zeros(3), size=2, train_loss=0.5)
SCORES = Scores(n_train=3, n_test=2, own=0.5, loss=1.0)


def refusal(
    verb: Verb, reply: Payload, good: Payload, sent: Payload = SENT, shared: Tensor | None = None
) -> str | None:
    """Why one of four is refused; the other three are always taken."""
    taken, refused = admit(verb, dict.fromkeys(range(4), sent), {0: good, 1: good, 2: reply, 3: good}, shared)
    assert {0, 1, 3} <= taken.keys()
    return refused.get(2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"theta": torch.tensor([0.0, torch.inf, 0.0])}, "sent theta that is not finite"),
        ({"theta": torch.tensor([0.0, torch.nan, 0.0])}, "sent theta that is not finite"),
        ({"theta": torch.zeros(4)}, "sent theta of another shape"),
        ({"theta": torch.zeros(3, dtype=torch.float64)}, "sent theta of float64, not float32"),
        ({"theta": torch.zeros(3, dtype=torch.int64)}, "sent theta of int64, not float32"),
        ({"theta": torch.zeros(3, dtype=torch.complex64)}, "sent theta of torch.complex64"),
        ({"theta": torch.full((3,), 1e20)}, "sent theta whose length is beyond float32"),
        ({"theta": "theta"}, "theta is str, not Tensor"),
        ({"size": 0}, "sent size that is 0; it must be above 0"),
        ({"size": -1}, "sent size that is -1"),
        ({"size": math.nan}, "size is float, not int"),
        ({"size": "many"}, "size is str, not int"),
        ({"size": None}, "Reply is incomplete"),
        ({"size": 10**400}, "sent size that is too large a number"),
        ({"train_loss": math.nan}, "sent no number as train_loss, most others a value"),
        ({"train_loss": math.inf}, "sent train_loss that is inf"),
        ({"loss": math.nan}, "sent loss that is nan"),
        ({"loss": 1.0}, "sent a value as loss, most others nothing"),
    ],
    ids=repr,
)
def test_which_replies_are_taken(change: dict[str, Any], why: str | None) -> None:
    found = refusal(FIT, replace(GOOD, **change), GOOD)
    assert found is None if why is None else found is not None and why in found


def test_theta_is_of_the_servers_own_type_where_it_was_not_sent() -> None:
    asks = Verb("fit", Question, Reply)
    assert refusal(asks, replace(GOOD, theta=torch.zeros(4)), GOOD, Question()) is not None  # unlike most
    everybody = dict.fromkeys(range(3), replace(GOOD, theta=torch.zeros(4)))
    assert admit(asks, dict.fromkeys(range(3), Question()), everybody)[1] == {}
    _, refused = admit(asks, dict.fromkeys(range(3), Question()), everybody, torch.zeros(3))
    assert refused.keys() == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"validation": 0.5, "validation_loss": 1.0}, None),
        ({"loss": math.nan}, None),
        ({"balanced": 0.5, "auc": 0.5}, None),  # the others' tests hold one class
        ({"auc": 1.5}, "sent auc that is 1.5; it must be from 0 to 1"),
        ({"balanced": math.nan}, "sent balanced that is nan"),
        ({"own": 1e30}, "sent own that is 1e+30; it must be from 0 to 1"),
        ({"own": math.nan}, "sent own that is nan"),
        ({"own": "good"}, "own is str, not float"),
        ({"loss": -1.0}, "sent loss that is -1"),
        ({"n_test": 0}, "sent n_test that is 0"),
        ({"all": 0.5}, "sent a value as all, most others nothing"),
    ],
    ids=repr,
)
def test_which_scores_are_taken(change: dict[str, Any], why: str | None) -> None:
    found = refusal(EVALUATE, replace(SCORES, **change), SCORES)
    assert found is None if why is None else found is not None and why in found


def test_a_strangers_words_are_one_short_line() -> None:
    assert brief("a\x1b[2J\nb\x00") == "a?[2J b?"
    assert len(brief("x" * 10**6)) == 300


class Endless(Method):
    """Client 1's update is longer than float32 holds."""

    def fit(self, client: Client, received: Message) -> Reply:
        reply = super().fit(client, received)
        return replace(reply, theta=reply.theta * 0 + 1e25) if client.id == 1 else reply


@pytest.mark.parametrize("rule", ["Mean", "ConFREE"])
def test_an_update_beyond_float32_is_left_out_and_named(tiny: dict[str, Any], rule: str) -> None:
    done = run(**tiny, method=f"{__name__}.Endless", rule=rule)
    for record in done.records:
        assert record.failed == {1: "fit: sent theta whose length is beyond float32"}
    assert float(done.server.theta.abs().max()) < 100


class Brittle(Method):
    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        raise KeyError("three")


def test_a_merge_that_fails_names_the_method(tiny: dict[str, Any]) -> None:
    with pytest.raises(ComityError, match=r"method Brittle could not merge the replies of round 1: KeyError: 'three'"):
        run(**tiny, method=f"{__name__}.Brittle")


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        ("IFCA", "cluster", 99),
        ("IFCA", "cluster", -1),
        ("FedFomo", "ids", torch.tensor([0, 2, 3, 5])),
        ("FedFomo", "ids", torch.tensor([0, -1, 3, 4])),
        ("FedFomo", "ids", torch.tensor([0, 2, 3])),
        ("FedPAC", "counts", torch.tensor([3, 3, 3, -1])),
        ("FedPAC", "V", -0.1),
    ],
    ids=str,
)
def test_what_a_method_cannot_use_is_refused(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch, method: str, field: str, value: Any
) -> None:
    from comity.methods import METHODS

    fit = METHODS[method].fit

    def hostile(self: Any, client: Client, received: Any) -> Any:
        reply = fit(self, client, received)
        return replace(reply, **{field: value}) if client.id == 1 else reply

    monkeypatch.setattr(METHODS[method], "fit", hostile)
    done = run(**tiny, method=method)
    assert all(record.failed.keys() == {1} for record in done.records)


def test_a_negative_variance_is_refused_by_its_name(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """BatchNorm's buffers are averaged, and the root of a negative variance is no number."""
    fit = Method.fit

    def hostile(self: Any, client: Client, received: Any) -> Any:
        reply = fit(self, client, received)
        if client.id == 1:
            place = client.model.variances("shared")["body.bn1.running_var"]
            reply.theta[place.start] = -1e-3
        return reply

    monkeypatch.setattr(Method, "fit", hostile)
    done = run(**(tiny | {"model": "resnet4", "rounds": 1}))
    assert done.records[0].failed == {1: "fit: sent theta with a negative body.bn1.running_var"}


def test_variances_are_where_the_vector_has_them(tiny: dict[str, Any]) -> None:
    for buffers, shared in (("average", True), ("local", False)):
        model = site_of(Config(**(tiny | {"model": "resnet4", "buffers": buffers}))).model()
        vectors = {part: model.read(part) for part in ("all", "shared")}
        assert bool(model.variances("shared")) == shared
        state = model.state_dict()
        for part, vector in vectors.items():
            for name, place in model.variances(part).items():
                vector[place] += 5
                assert torch.equal(vector[place], state[name] + 5)
                assert name.endswith("running_var")


# How much a stranger counts.


@pytest.mark.parametrize(
    ("sizes", "share", "expected"),
    [
        ([1.0, 1.0, 1.0, 97.0], 1.0, [1, 1, 1, 97]),
        ([1.0, 1.0, 1.0, 97.0], 0.4, [1, 1, 1, 2]),
        ([3.0, 3.0, 2.0, 2.0], 0.3, [3, 3, 2, 2]),
        ([1.0, 1.0, 50.0, 90.0], 0.4, [1, 1, 4, 4]),
        ([1.0, 5.0, 9.0], 0.2, [1, 1, 1]),
        ([7.0], 0.5, [7]),
    ],
)
def test_no_size_is_more_than_its_share(sizes: list[float], share: float, expected: list[float]) -> None:
    found = capped(torch.tensor(sizes, dtype=torch.float64), share)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_updates_are_clipped_to_the_median_length() -> None:
    rows = torch.tensor([[3.0, 0.0], [0.0, 400.0], [1.0, 0.0], [2.0, 0.0], [0.0, 4.0]])
    expected = torch.tensor([[3.0, 0.0], [0.0, 3.0], [1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    base = torch.tensor([5.0, -7.0])
    for updates in (Updates(rows), Updates(list(rows + base), base=base)):
        clipped = updates.clipped()
        torch.testing.assert_close(torch.stack([clipped.row(i) for i in range(5)]), expected)
        torch.testing.assert_close(clipped.gram, (expected @ expected.T).double())


class Boastful(Method):
    """Client 2 says that it has a million samples and sends 100 times its update."""

    def fit(self, client: Client, received: Message) -> Reply:
        reply = super().fit(client, received)
        if client.id == 2:
            return replace(reply, size=10**6, theta=received.theta + 100 * (reply.theta - received.theta))
        return reply


def test_the_weight_and_length_of_a_stranger_are_bounded(tiny: dict[str, Any]) -> None:
    options = tiny | {"method": f"{__name__}.Boastful", "rounds": 1}
    start = run(**(options | {"epochs": 0})).server.theta
    free, shared, clipped, both = (
        float((run(**options, **more).server.theta - start).norm())
        for more in ({}, {"max_share": 0.2}, {"clip_updates": "median"}, {"max_share": 0.2, "clip_updates": "median"})
    )
    assert shared < 0.3 * free
    assert clipped < 0.03 * free
    assert both <= 1.1 * clipped
    done = run(**options)
    assert [words for words in done.records[0].warnings if "client 2 says that it has 1,000,000 samples" in words]


def test_a_method_without_a_rule_says_that_bounds_change_nothing(tiny: dict[str, Any]) -> None:
    done = run(**tiny, method="FedAMP", clip_updates="median")
    assert "method FedAMP uses no rule: max_share, clip_updates and sketch change nothing" in done.records[0].warnings
