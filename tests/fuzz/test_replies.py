"""Hostile replies to the engine: one client of four says anything, and the run goes on without it."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from comity import Config
from comity.engine import Run, Threads, Verb, run
from comity.methods import Payload
from fuzz.harness import attempt, fuzz
from helpers import TINY

NUMBERS = [0, -1, 1, 5, 2**53 + 1, 2**62, 10**400, math.nan, math.inf, -math.inf, 1e30, 1e200, 1e308, -1e308, -0.5, 2.5]
VALUES = [*NUMBERS, None, True, "x", "\x1b[2J", "x" * 20_000, [1], b"x"]
TENSORS: list[Any] = [
    lambda x: x * math.nan,
    lambda x: x + math.inf,
    lambda x: x * 0 + 1e30,
    lambda x: x * 0 + 3e38,
    lambda x: x.double(),
    lambda x: x.long(),
    lambda x: x.to(torch.complex64),
    lambda x: x.reshape(-1)[:-1],
    lambda x: x[None],
    lambda x: x.to_sparse() if x.layout == torch.strided else x,
    lambda x: x.new_zeros(0),
    lambda x: x * 0,
    lambda x: -x,
    lambda x: torch.stack([x, x]),
    lambda _: None,
    lambda _: "theta",
]
RUNS: list[dict[str, Any]] = [
    {"method": "FedAvg"},
    {"method": "FedPG"},
    {"method": "SFedPG"},
    {"method": "FedRep", "rule": "ConFREE", "metric": "balanced"},
    {"method": "FedAvg", "rule": "FedFV", "metric": "log-loss"},
    {"method": "FedAMP"},
    {"method": "FedProto"},
    {"method": "IFCA"},
    {"method": "FedFomo", "val_share": 0.2},
    {"method": "Ditto", "guard": "mixture", "val_share": 0.2},
    {"method": "FedPAC"},
    {"method": "FedAvg", "rule": "Auto"},
    {"method": "FedAvg", "model": "resnet4", "server_momentum": 0.5},
]
Plan = list[tuple[str, int, int]]


class Hostile(Threads):
    """Client 1 changes fields of its replies to some verbs."""

    def __init__(self, site: Any, plan: Plan) -> None:
        super().__init__(site, 1)
        self.plan = plan

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        replies = super().deliver(verb, questions, round)
        if 1 in replies:
            names = [field.name for field in fields(replies[1])]  # type: ignore[arg-type]
            for to, field, value in self.plan:
                name = names[field % len(names)]
                if to in (verb.name, "any"):
                    old = getattr(replies[1], name)
                    made = (
                        TENSORS[value % len(TENSORS)](old)
                        if isinstance(old, torch.Tensor)
                        else VALUES[value % len(VALUES)]
                    )
                    setattr(replies[1], name, made)
        return replies


def outcome(options: dict[str, Any], plan: Plan) -> Run:
    config = Config(**TINY | {"rounds": 1, "clients": 4, "reference": "auto", "control": "none"} | options)
    hostile = lambda c, site: Threads(site, 1) if c.is_local else Hostile(site, plan)  # noqa: E731
    return run(config, link=hostile)


PLANS = st.lists(
    st.tuples(st.sampled_from(["fit", "evaluate", "any"]), st.integers(0, 60), st.integers(0, 60)),
    min_size=1,
    max_size=2,
)


@fuzz("replies to the engine", st.sampled_from(RUNS), PLANS)
@pytest.mark.filterwarnings("ignore")
def test_one_hostile_client(options: dict[str, Any], plan: Plan) -> None:
    done = attempt(lambda: outcome(options, plan), seconds=60)
    assert isinstance(done, Run), done
    assert bool(done.server.theta.isfinite().all())
    assert done.result.transfer is not None
    for record in done.records:
        assert record.failed.keys() <= {1}, record.failed
    own = done.columns["L-acc"]
    assert len(own) in (3, 4)
    assert all(0 <= value <= 1 for value in own)


@pytest.mark.parametrize("method", ["FedPG", "SFedPG"])
@pytest.mark.parametrize("loss", [None, -1.0, math.nan, 1e308])
def test_a_reply_without_loss_is_its_clients_failure(method: str, loss: Any) -> None:
    """Of two clients the first sends none: what most others send does not decide."""

    class NoLoss(Threads):
        def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
            replies = super().deliver(verb, questions, round)
            if verb.name == "fit":
                replies[0].loss = loss  # type: ignore[attr-defined]
            return replies

    config = Config(**TINY | {"rounds": 1, "clients": 2, "method": method, "reference": "none"})
    done = run(config, link=lambda _, site: NoLoss(site, 1))
    assert done.records[0].failed.keys() == {0}
    assert "loss" in done.records[0].failed[0]
