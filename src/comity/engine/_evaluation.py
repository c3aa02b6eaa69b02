"""How good each client's model is: for itself, for some others, for everybody."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from comity._random import generator
from comity.data import Federation, Split
from comity.engine._client import Client
from comity.engine._verbs import Scores
from comity.methods import Method, Question
from comity.results import schema

MOST_ANSWERS = 10_000_000
"""Answers of models to tests that G-acc, and S-acc likewise, may take; beyond, each model is tried on a sample."""
COLUMNS = {
    "n_train": "n_train",
    "n_test": "n_test",
    schema.OWN: "own",
    schema.LOSS: "loss",
    schema.VALIDATION: "validation",
    schema.VALIDATION_LOSS: "validation_loss",
    schema.SOME: "some",
    schema.ALL: "all",
    schema.COMMON: "common",
}
"""The names of a client's scores in tables and files, each with its field."""


def sample_size(federation: Federation) -> int | None:
    """On how many tests each model is tried for S-acc and for G-acc; ``None``: on all that there are."""
    clients, tests = len(federation), sum(len(client.test) for client in federation.clients)
    return None if clients * tests <= MOST_ANSWERS else max(1, MOST_ANSWERS // clients)


def general_error(federation: Federation) -> float:
    """The largest standard error that a client's S-acc or G-acc can have for the sake of its sample."""
    size = sample_size(federation)
    return 0.0 if size is None else 0.5 / math.sqrt(size)


@dataclass
class TestPool:
    """The tests of all clients, one after another, or a sample where there are too many."""

    federation: Federation
    starts: tuple[int, ...]
    sample: int | None
    others: float
    """Share of the other clients whose tests join a client's own in S-acc."""
    _last: tuple[Tensor, Tensor] | None = None
    """The last model that was tested, and which of its answers were right: all clients may have the same model."""

    @classmethod
    def of(cls, federation: Federation, others: float) -> "TestPool":
        starts = itertools.accumulate((len(client.test) for client in federation.clients), initial=0)
        return cls(federation, tuple(starts), sample_size(federation), others)

    @cached_property
    def split(self) -> Split:
        """Everybody's tests: put together when they are first asked for, which some runs never do."""
        tests = [client.test for client in self.federation.clients]
        x = torch.cat([test.x for test in tests]).contiguous(memory_format=torch.channels_last)
        return Split(x, torch.cat([test.y for test in tests]))

    @cached_property
    def sampled(self) -> Split:
        """The tests for G-acc, the same for all clients."""
        if self.sample is None:
            return self.split
        random = generator(self.federation.seed, "G-acc")
        return self._some(torch.randperm(self.starts[-1], generator=random)[: self.sample])

    def _some(self, chosen: Tensor) -> Split:
        chosen = chosen.to(self.split.y.device)
        return Split(self.split.x[chosen].contiguous(memory_format=torch.channels_last), self.split.y[chosen])

    def general(self, client: Client, model: Tensor, seed: int) -> tuple[float, float]:
        """S-acc and G-acc of ``model``, which must be in ``client.model``."""
        hits = self.hits(client, model)
        if self.sample is None:
            return _share(hits[self.mixed(client.id, seed)]), _share(hits)
        return _share(client.losses(self._some(self.drawn(client.id, seed)))[1]), _share(hits)

    def hits(self, client: Client, model: Tensor) -> Tensor:
        """Which answers of ``model`` are right; it must be in ``client.model``. The same model is tested once."""
        last = self._last
        if last is None or not torch.equal(last[0], model):
            self._last = last = model, client.losses(self.sampled)[1]
        return last[1]

    def drawn(self, cid: int, seed: int) -> Tensor:
        """Indices for S-acc, drawn one by one from the tests that ``mixed`` is about."""
        assert self.sample is not None
        starts, random = torch.tensor(self.starts), generator(seed, "S-acc", cid)
        sizes, clients = starts.diff(), len(starts) - 1
        others = torch.randperm(clients, generator=random)
        others = others[others != cid][: max(1, round(self.others * (clients - 1)))]
        whose = torch.cat([torch.tensor([cid]), others])
        ends = sizes[whose].clamp(max=int(sizes[cid])).cumsum(0)
        if int(ends[-1]) <= self.sample:
            return self.mixed(cid, seed)
        places = torch.randint(int(ends[-1]), (self.sample,), generator=random)
        whose = whose[torch.searchsorted(ends, places, right=True)]
        return starts[whose] + (torch.rand(self.sample, dtype=torch.float64, generator=random) * sizes[whose]).long()

    def mixed(self, cid: int, seed: int) -> Tensor:
        """Indices for S-acc: the client's own tests and as many of each of a few other clients, drawn once."""
        starts, random = self.starts, generator(seed, "S-acc", cid)
        own, clients = starts[cid + 1] - starts[cid], len(starts) - 1
        others = [other for other in torch.randperm(clients, generator=random).tolist() if other != cid]
        chosen = [torch.arange(starts[cid], starts[cid + 1])]
        for other in others[: max(1, round(self.others * (clients - 1)))]:
            size = starts[other + 1] - starts[other]
            chosen.append(starts[other] + torch.randperm(size, generator=random)[:own])
        return torch.cat(chosen)


def judged(
    client: Client, method: Method[Any, Any], received: Question, moment: Literal["received", "fitted"]
) -> Tensor:
    """The model that counts as the client's own. One that never fitted is judged as received."""
    fitted = client.engine_keep.get("fitted") if moment == "fitted" else None
    return method.personal(client, received) if fitted is None else fitted


def evaluate(
    client: Client,
    method: Method[Any, Any],
    received: Question,
    moment: Literal["received", "fitted"],
    tests: TestPool,
    seed: int,
) -> Scores:
    """All scores of one client. With ``received.general`` also S-acc and G-acc, which need other clients' tests."""
    own = judged(client, method, received, moment)
    client.model.write(own)
    data = client.data

    loss, hits = client.losses(data.test)
    scores = Scores(n_train=len(data.train), n_test=len(data.test), own=_share(hits), loss=float(loss.mean()))
    if len(data.val):
        loss, hits = client.losses(data.val)
        scores.validation, scores.validation_loss = _share(hits), float(loss.mean())
    if received.general:
        scores.some, scores.all = tests.general(client, own, seed)
    common = method.general(client, received)
    if common is not None and torch.equal(common, own):
        scores.common = scores.own
    elif common is not None:
        client.model.write(common)
        scores.common = _share(client.losses(data.test)[1])
    return scores


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def columns_of(scores: dict[int, Scores]) -> schema.Columns:
    """A list over clients for each score that all of them have."""
    columns: schema.Columns = {"client": list(scores)}
    for name, field in COLUMNS.items():
        values = [getattr(each, field) for each in scores.values()]
        if None not in values:
            columns[name] = values
    return columns


def summarise(columns: schema.Columns, name: str) -> schema.Summary:
    """One metric over all clients."""
    values = torch.tensor(columns[name], dtype=torch.float64)
    weights = torch.tensor(columns["n_test"], dtype=torch.float64)
    worst = values.sort(descending=name in (schema.LOSS, schema.VALIDATION_LOSS)).values
    return schema.Summary(
        mean=float(values.mean()),
        std=float(values.std(correction=0)),
        samples=float(values @ weights / weights.sum()),
        worst10=float(worst[: max(1, -(-len(values) // 10))].mean()),
    )
