"""One masked round: coefficients from sketches, sums without terms."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity.engine import Aggregation, MakeUpdates, record_step
from comity.methods import Combined, Payload
from comity.privacy._accountant import epsilon
from comity.privacy._clients import MaskedClients, Noise, from_rows, hash_of, to_rows
from comity.privacy._fixed_point import FixedPoint
from comity.privacy._keys import Refused
from comity.privacy._messages import (
    AGAINST,
    UPDATES,
    Coefficients,
    EveryonesKeys,
    MaskedReply,
    MaskedWords,
    Revealed,
    SealedShares,
    Survivors,
    TakenStep,
)
from comity.privacy._parties import Collector, place_of
from comity.privacy._weights import objection_to_weights
from comity.results import Against
from comity.rules import Outcome, SketchedUpdates, Updates, against, capped

if TYPE_CHECKING:
    from comity.engine import Server


class _Sum(NamedTuple):
    words: np.ndarray[Any, np.dtype[np.uint64]]
    clients: int  # of so many
    left: list[int]  # who is still there after it


class MaskedRound:
    """The server's side of one masked round."""

    def __init__(self, server: "Server", clients: MaskedClients, delta: float) -> None:
        self.server, self.clients, self.delta = server, clients, delta

    def combine(self, replies: Mapping[int, MaskedReply]) -> Combined:
        # 1. Clients share the secrets of their masks out among each other.
        self.clients.check_left(len(replies), len(replies))
        place = place_of(self.clients.run, self.server.round)
        self._collector = Collector(place, {cid: from_rows(reply.keys[None])[0] for cid, reply in replies.items()})
        everyone = self._collector.everyone
        keys = EveryonesKeys(ids=torch.tensor(list(everyone)), keys=to_rows(list(everyone.values())))
        sealed: dict[int, SealedShares] = self.server.ask_clients("share", dict.fromkeys(everyone, keys))
        refused = self._collector.receive({cid: from_rows(reply.sealed) for cid, reply in sealed.items()})
        self.server.record.failed |= {cid: f"share: {why}" for cid, why in refused.items()}
        present = self._collector.present
        self.clients.check_left(len(present), len(present))

        # 2. The rule finds coefficients, from sketches if it compares updates.
        updates = self._seen({cid: replies[cid] for cid in present})
        chosen = self.server.with_state("", self.server.rule.coefficients, updates)
        if list(chosen.ids) != present:
            raise Refused("the rule leaves out sketches that are not finite")
        coefficients = self._within_bounds(chosen.coefficients)
        shares = self._within_bounds(updates.shares[None])[0]
        if lowered := int((coefficients != chosen.coefficients).any(0).sum()):
            self.server.record.warnings.append(
                f"coefficients of {lowered} clients were changed so that max_weight holds"
            )
        why = objection_to_weights(coefficients.numpy(), self.clients.max_weight, self.clients.min_clients)
        if why is not None:
            raise Refused(f"clients would not lend their updates to the rule's coefficients: {why}")

        # 3. The sum of the updates with these coefficients.
        questions: dict[int, Payload] = {
            cid: Coefficients(
                sealed=to_rows(self._collector.sealed_for(cid)),
                present=torch.tensor(present),
                coefficients=coefficients,
                shares=shares,
            )
            for cid in present
        }
        total = self._sum(UPDATES, "mask", questions, hash_of(coefficients, shares))
        summed = torch.from_numpy(FixedPoint(len(present)).decode(total.words)).to(self.server.theta.dtype)
        size = self.server.layout.size
        for name, where in self.server.variances.items():
            if bool((self.server.theta[where] + summed[where] < 0).any()):
                raise Refused(f"the sum has a negative {name}")
        theta = self.server.theta + torch.cat([self.server.take_step(summed[:size], ""), summed[size:]])
        outcome = Outcome(
            **vars(chosen) | {"coefficients": coefficients},
            update=summed[:size],
            stretch=self._stretch(updates, summed[:size]),
        )
        if self.server.rule.needs_gram:
            record_step(self.server, "", updates, outcome)

        # 4. How many clients the step is against, or what the noise promises.
        if self.clients.noise is None:
            self._count_against(total.left, theta, updates)
        else:
            self._account(self.clients.noise, present)
        return Combined(theta, outcome)

    def _seen(self, replies: Mapping[int, MaskedReply]) -> Updates:
        """The updates as the rule sees them."""
        clients, server = self.clients, self.server
        aggregation = Aggregation.of(replies, server.theta, server.layout)
        rows: Tensor = torch.zeros(len(replies), 1)  # for a rule that looks at sizes alone
        make: MakeUpdates = Updates
        if clients.sketch is not None:
            rows = torch.stack([replies[cid].sketch for cid in aggregation.cids])  # type: ignore[misc]
            make = partial(SketchedUpdates, sketch=clients.sketch, layout=clients.sketched)
        make = server.extended(aggregation, make)
        return make(rows, sizes=aggregation.sizes, losses=aggregation.losses, ids=aggregation.cids)

    def _within_bounds(self, weights: Tensor) -> Tensor:
        """Rows of weights with the largest ones lowered to what clients let one of them have, and their sums kept."""
        rows = []
        for row in weights:
            lower = capped(row.abs(), self.clients.max_weight)
            scale = row.abs().sum() / lower.sum() if not torch.equal(lower, row.abs()) else 1.0
            rows.append((scale * lower).copysign(row))
        return torch.stack(rows)

    def _sum(self, which: int, verb: str, questions: Mapping[int, Payload], about: bytes) -> "_Sum":
        """What the masked words of these clients come to."""
        arrived: dict[int, MaskedWords] = self.server.ask_clients(verb, questions)
        survivors = sorted(arrived)
        self.clients.check_left(len(survivors), len(questions))
        told = Survivors(total=which, survivors=torch.tensor(survivors))
        revealed: dict[int, Revealed] = self.server.ask_clients("unmask", dict.fromkeys(survivors, told))
        words = self._collector.open(
            which,
            list(questions),
            about,
            {cid: reply.words.numpy().view(np.uint64) for cid, reply in arrived.items()},
            {cid: from_rows(reply.shares) for cid, reply in revealed.items()},
        )
        return _Sum(words, len(survivors), sorted(revealed))

    def _stretch(self, updates: Updates, update: Tensor) -> Tensor:
        """By layer of the sketches: the step's length over that of the plain mean as the sketches have it."""
        if not self.server.rule.needs_gram:
            return torch.full((1,), math.nan, dtype=torch.float64)
        lengths = torch.stack([part.double().norm() for part in self.clients.sketched.split(update)])
        return lengths / updates.lengths(updates.shares)

    def _count_against(self, clients: Sequence[int], theta: Tensor, updates: Updates) -> None:
        """An exact count of those whom the step is against, without a word on who they are."""
        question = TakenStep(present=torch.tensor(clients), theta=theta)
        try:
            total = self._sum(AGAINST, "against", dict.fromkeys(clients, question), hash_of(theta))
        except Refused as why:
            self.server.record.warnings.append(f"how many clients the step is against could not be counted: {why}")
            return
        count = int(total.words[0])
        by_mean = len(against(updates, updates.shares)) if self.server.rule.needs_gram else count
        self.server.record.against = Against(clients=total.clients, mean=by_mean, rule=count)

    def _account(self, noise: Noise, present: Sequence[int]) -> None:
        """What all rounds so far say of the client that took part in most of them."""
        rounds = self.server.store.setdefault(
            "rounds with noise", torch.zeros(len(self.server.clients), dtype=torch.int64)
        )
        rounds[list(present)] += 1
        self.server.record.epsilon = epsilon(noise.multiplier, int(rounds.max()), self.delta)
