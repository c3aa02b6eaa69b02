"""Which replies are taken, and what happens to the others."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from comity import ComityError, Config
from comity.engine import RunPlan, Scores, Verb, run
from comity.engine._admission import admit, brief
from comity.methods import METHODS, Client, Message, Method, Payload, Question, Reply, Server
from helpers import Options

VERBS = RunPlan(Config()).verbs
FIT, EVALUATE = VERBS["fit"], VERBS["evaluate"]
SENT = Message(theta=torch.ones(3))
GOOD = Reply(theta=torch.zeros(3), size=2, train_loss=0.5)
SCORES = Scores.of({"n_train": 3, "n_test": 2, "own": 0.5, "loss": 1.0})
TAKEN = "taken"


def refusal(verb: Verb, reply: Payload, good: Payload, sent: Payload = SENT) -> str:
    """Why one of four is rejected; the other three are always taken."""
    taken, rejected = admit(verb, dict.fromkeys(range(4), sent), {0: good, 1: good, 2: reply, 3: good})
    assert {0, 1, 3} == taken.keys() - {2}
    assert (2 in taken) != (2 in rejected)
    return rejected.get(2, TAKEN)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, TAKEN),
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
def test_which_replies_are_taken(change: Options, why: str) -> None:
    assert why in refusal(FIT, replace(GOOD, **change), GOOD)


def test_theta_is_of_the_servers_own_type_where_it_was_not_sent() -> None:
    asks = Verb("fit", Question, Reply)
    assert refusal(asks, replace(GOOD, theta=torch.zeros(4)), GOOD, Question()) != TAKEN  # unlike most
    everybody = dict.fromkeys(range(3), replace(GOOD, theta=torch.zeros(4)))
    assert admit(asks, dict.fromkeys(range(3), Question()), everybody)[1] == {}
    _, refused = admit(asks, dict.fromkeys(range(3), Question()), everybody, torch.zeros(3))
    assert refused.keys() == {0, 1, 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, TAKEN),
        ({"validation": 0.5, "validation_loss": 1.0}, TAKEN),
        ({"loss": math.nan}, TAKEN),
        ({"balanced": 0.5, "auc": 0.5}, TAKEN),  # the others' tests hold one class
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
def test_which_scores_are_taken(change: Options, why: str) -> None:
    assert why in refusal(EVALUATE, replace(SCORES, **change), SCORES)


def test_the_words_of_a_client_are_one_short_line() -> None:
    assert brief("a\x1b[2J\nb\x00") == "a?[2J b?"
    assert len(brief("x" * 10**6)) == 300


class Endless(Method):
    """Client 1's update is longer than float32 holds."""

    def fit(self, client: Client, received: Message) -> Reply:
        reply = super().fit(client, received)
        return replace(reply, theta=reply.theta * 0 + 1e25) if client.id == 1 else reply


@pytest.mark.parametrize("rule", ["Mean", "ConFREE"])
def test_an_update_beyond_float32_is_left_out_and_named(tiny: Options, rule: str) -> None:
    done = run(**tiny, method=Endless, rule=rule)
    for record in done.records:
        assert record.failed == {1: "fit: sent theta whose length is beyond float32"}
    assert float(done.server.theta.abs().max()) < 100


class Brittle(Method):
    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        raise KeyError("three")


def test_a_merge_that_fails_names_the_method(tiny: Options) -> None:
    with pytest.raises(ComityError, match=r"method Brittle could not merge the replies of round 1: KeyError: 'three'"):
        run(**tiny, method=Brittle)


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
def test_what_a_method_cannot_use_is_rejected(
    tiny: Options, monkeypatch: pytest.MonkeyPatch, method: str, field: str, value: Any
) -> None:
    fit = METHODS[method].fit

    def hostile(self: Any, client: Client, received: Any) -> Any:
        reply = fit(self, client, received)
        return replace(reply, **{field: value}) if client.id == 1 else reply

    monkeypatch.setattr(METHODS[method], "fit", hostile)
    done = run(**tiny, method=method)
    assert all(record.failed.keys() == {1} for record in done.records)


def test_a_negative_variance_is_rejected_by_its_name(tiny: Options, monkeypatch: pytest.MonkeyPatch) -> None:
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
