"""The test samples of all clients, for S-acc and G-acc: accuracy on other clients' tests."""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from comity._random import generator
from comity.config import Config
from comity.data import Federation, Split, in_training_layout
from comity.engine._client import hits

if TYPE_CHECKING:
    from comity.engine._evaluation import Predict

MOST_ANSWERS = 10_000_000
"""Maximum number of predictions for G-acc, and for S-acc; beyond it, each model is evaluated on a sample."""
LEAST_SAMPLE = 400
"""Minimum size of such a sample: a standard error of at most 2.5 points."""


def sample_size(federation: Federation, training: float = math.inf) -> int | None:
    """Number of tests per personal model for S-acc and for G-acc; ``None`` means all.

    Both together cost at most a tenth of the ``training``, in passes of a sample through the network.
    """
    clients, tests = len(federation), sum(len(client.test) for client in federation.clients)
    sample = max(LEAST_SAMPLE, int(min(MOST_ANSWERS, training / 20) / clients))
    return None if sample >= tests else sample


def training_passes(config: Config, federation: Federation) -> float:
    """Passes of a sample through the network during training, per evaluation of S-acc and G-acc.

    A forward and backward pass counts as three.
    """
    samples = sum(len(client.train) for client in federation.clients)
    of_a_round = config.epochs * samples if config.steps is None else config.steps * config.batch_size * len(federation)
    times = sum(config.general_in(round) for round in range(1, config.last_round + 1))
    return 3 * config.rounds * config.participation * of_a_round / max(times, 1)


def general_error(sample: int | None) -> float:
    """Maximum standard error of a client's S-acc or G-acc due to sampling."""
    return 0.0 if sample is None else 0.5 / math.sqrt(sample)


@dataclass
class TestPool:
    """The tests of all clients in sequence, or a sample if there are too many."""

    federation: Federation
    starts: tuple[int, ...]
    sample: int | None
    others: float
    """Share of the other clients whose tests are added to a client's own in S-acc."""
    _last: tuple[Tensor, Tensor] | None = None
    """The last tested model and its hits: all clients may have the same model."""

    @classmethod
    def of(cls, federation: Federation, config: Config) -> "TestPool":
        starts = itertools.accumulate((len(client.test) for client in federation.clients), initial=0)
        sample = sample_size(federation, training_passes(config, federation))
        return cls(federation, tuple(starts), sample, config.s_acc_share)

    @cached_property
    def split(self) -> Split:
        """All tests, concatenated on first access, because some runs never need them."""
        tests = [client.test for client in self.federation.clients]
        x = in_training_layout(torch.cat([test.x for test in tests]))
        return Split(x, torch.cat([test.y for test in tests]))

    @cached_property
    def sampled(self) -> Split:
        """The tests for G-acc, equal for all clients: a random sample stratified by client and class."""
        if self.sample is None:
            return self.split
        random = generator(self.federation.seed, "G-acc")
        tests = zip(self.starts, self.federation.clients, strict=False)
        by_class = torch.cat([start + client.test.y.argsort(stable=True).cpu() for start, client in tests])
        one_per_stratum = torch.arange(self.sample) + torch.rand(self.sample, generator=random, dtype=torch.float64)
        return self._some(by_class[(one_per_stratum * (len(by_class) / self.sample)).long()])

    def _some(self, chosen: Tensor) -> Split:
        chosen = chosen.to(self.split.y.device)
        return Split(in_training_layout(self.split.x[chosen]), self.split.y[chosen])

    def general(
        self, cid: int, predict: "Predict", model: Tensor | None, seed: int, common: bool = False
    ) -> tuple[float, float]:
        """S-acc and G-acc of a client's predictions; ``model`` if they come from a single model.

        A ``common`` model of all clients is evaluated once on all tests; S-acc uses some of its hits.
        """
        if self.sample is None or common:
            right = self.right(predict, model, self.split)
            # drawing tests of every other client would take too long; use a sample
            many = len(right) * len(self.federation) * self.others > MOST_ANSWERS
            return _share(right[(self.drawn if many else self.mixed)(cid, seed)]), _share(right)
        some = self._some(self.drawn(cid, seed))
        return _share(hits(predict(some), some)), _share(self.right(predict, model, self.sampled))

    def right(self, predict: "Predict", model: Tensor | None, tests: Split) -> Tensor:
        """Which predictions are correct. The same model is evaluated once."""
        last = self._last
        if model is not None and last is not None and torch.equal(last[0], model):
            return last[1]
        right = hits(predict(tests), tests)
        if model is not None:
            self._last = model, right
        return right

    def drawn(self, cid: int, seed: int) -> Tensor:
        """Indices for S-acc, drawn one by one from the same tests as in ``mixed``."""
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


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())
