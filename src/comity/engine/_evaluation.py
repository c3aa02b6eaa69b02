"""How good each client's model is: for itself, for some others, for everybody."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from comity import results
from comity._random import generator
from comity.data import Federation, Split
from comity.engine._client import Client
from comity.methods import Method, Payload

OTHERS = 0.1
"""Share of the other clients whose tests join a client's own in S-acc (FedPG's supplement leaves it open)."""


@dataclass
class TestPool:
    """The tests of all clients, one after another."""

    split: Split
    starts: tuple[int, ...]
    _newest: tuple[Tensor, Tensor] | None = None
    """The model that was tried last, and where it was right."""

    @classmethod
    def of(cls, federation: Federation) -> "TestPool":
        tests = [client.test for client in federation.clients]
        starts = [0]
        for test in tests:
            starts.append(starts[-1] + len(test))
        x = torch.cat([test.x for test in tests]).contiguous(memory_format=torch.channels_last)
        return cls(Split(x, torch.cat([test.y for test in tests])), tuple(starts))

    def hits(self, client: Client, model: Tensor) -> Tensor:
        """Where ``model``, which is in ``client.model``, is right. The same one for every client is tried once."""
        newest = self._newest
        if newest is None or not torch.equal(newest[0], model):
            self._newest = newest = model, client.losses(self.split)[1]
        return newest[1]

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


def judged(client: Client, method: Method, received: Payload, moment: Literal["received", "fitted"]) -> Tensor:
    """The model that counts as the client's own. One that never fitted is judged as received."""
    fitted = client.keep.get("fitted") if moment == "fitted" else None
    return method.personal(client, received) if fitted is None else fitted


def evaluate(
    client: Client,
    method: Method,
    received: Payload,
    moment: Literal["received", "fitted"],
    tests: TestPool,
    seed: int,
) -> Payload:
    """All numbers of one client. With ``received["general"]`` also S-acc and G-acc, which need other clients' tests."""
    own = judged(client, method, received, moment)
    client.model.write(own)
    data, metrics = client.data, {}

    loss, hits = client.losses(data.test)
    metrics["L-acc"], metrics["loss"] = _share(hits), float(loss.mean())
    metrics["n_train"], metrics["n_test"] = len(data.train), len(data.test)
    if len(data.val):
        loss, hits = client.losses(data.val)
        metrics["val-acc"], metrics["val-loss"] = _share(hits), float(loss.mean())
    if received.get("general"):
        hits = tests.hits(client, own)
        metrics["G-acc"] = _share(hits)
        metrics["S-acc"] = _share(hits[tests.mixed(client.id, seed)])
    common = method.general(client, received)
    if common is not None and torch.equal(common, own):
        metrics["global-acc"] = metrics["L-acc"]
    elif common is not None:
        client.model.write(common)
        metrics["global-acc"] = _share(client.losses(data.test)[1])
    return metrics


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def summarise(columns: dict[str, list[Any]], name: str) -> dict[str, float]:
    """One metric over all clients: mean, standard deviation, over samples, and the worst tenth of the clients."""
    values = torch.tensor(columns[name], dtype=torch.float64)
    weights = torch.tensor(columns["n_test"], dtype=torch.float64)
    worst = values.sort(descending="loss" in name).values[: max(1, -(-len(values) // 10))]
    return {
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "samples": float(values @ weights / weights.sum()),
        "worst10": float(worst.mean()),
    }


def transfer(clients: list[int], joined: list[float], alone: list[float]) -> dict[str, Any]:
    """What joining changed for each client: relative accuracy, positive-transfer ratio and who was harmed.

    FEDORA (Wu et al., KDD 2023). A client whose Local model has no hit at all has no relative accuracy and is left out
    of that mean.
    """
    known = results.transfer(dict(zip(clients, joined, strict=True)), dict(zip(clients, alone, strict=True)))
    assert known is not None
    return {
        "local": known.local,
        "relative-accuracy": known.relative_accuracy,
        "positive-transfer": known.positive_transfer,
        "harmed": known.harmed,
        "gain": {str(cid): gain for cid, gain in known.gain.items()},
    }
