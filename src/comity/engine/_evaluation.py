"""How good each client's model is: for itself, for some others, for everybody."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from comity._random import generator
from comity.data import Federation, Split
from comity.engine._client import Client
from comity.engine._verbs import Scores
from comity.methods import Method, Question
from comity.results import schema

OTHERS = 0.1
"""Share of the other clients whose tests join a client's own in S-acc (FedPG's supplement leaves it open)."""
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


@dataclass
class TestPool:
    """The tests of all clients, one after another."""

    split: Split
    starts: tuple[int, ...]
    _last: tuple[Tensor, Tensor] | None = None
    """The last model that was tested, and which of its answers were right: all clients may have the same model."""

    @classmethod
    def of(cls, federation: Federation) -> "TestPool":
        tests = [client.test for client in federation.clients]
        starts = [0]
        for test in tests:
            starts.append(starts[-1] + len(test))
        x = torch.cat([test.x for test in tests]).contiguous(memory_format=torch.channels_last)
        return cls(Split(x, torch.cat([test.y for test in tests])), tuple(starts))

    def hits(self, client: Client, model: Tensor) -> Tensor:
        """Which answers of ``model`` are right; it must be in ``client.model``. The same model is tested once."""
        last = self._last
        if last is None or not torch.equal(last[0], model):
            self._last = last = model, client.losses(self.split)[1]
        return last[1]

    def mixed(self, cid: int, seed: int) -> Tensor:
        """Indices for S-acc: the client's own tests and as many of each of a few other clients, drawn once."""
        starts, random = self.starts, generator(seed, "S-acc", cid)
        own, clients = starts[cid + 1] - starts[cid], len(starts) - 1
        others = [other for other in torch.randperm(clients, generator=random).tolist() if other != cid]
        chosen = [torch.arange(starts[cid], starts[cid + 1])]
        for other in others[: max(1, round(OTHERS * (clients - 1)))]:
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
        hits = tests.hits(client, own)
        scores.all, scores.some = _share(hits), _share(hits[tests.mixed(client.id, seed)])
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
