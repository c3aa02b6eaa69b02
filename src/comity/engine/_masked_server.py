"""The server's side where updates are masked: coefficients from sketches, sums without terms, and who may run so."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity._errors import ComityError
from comity._layout import Layout
from comity.engine._masked_clients import MaskedClients, Noise, from_rows, hash_of, to_rows
from comity.engine._masked_verbs import (
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
    masked_verbs,
)
from comity.engine._server import Server
from comity.methods import Combined, Payload, Reply
from comity.privacy import Collector, FixedPoint, Refused, epsilon, objection_to_weights, place_of
from comity.results import Against
from comity.rules import Outcome, Rule, SketchedUpdates, Updates, against, capped


class _Sum(NamedTuple):
    words: np.ndarray[Any, np.dtype[np.uint64]]
    clients: int  # of so many
    left: list[int]  # who is still there after it


class MaskedServer(Server):
    """A server that sees sketches, masked words and shares, and never an update."""

    def __init__(self, *args: Any, masked: MaskedClients, delta: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.masked, self.delta, self.sketch = masked, delta, masked.sketch
        self.verbs = masked_verbs(self.verbs)

    def aggregate(
        self,
        replies: Mapping[int, Reply],
        rows: Mapping[int, Tensor] | None = None,
        *,
        base: Tensor | None = None,
        layout: Layout | None = None,
        rule: Rule | None = None,
        group: str = "",
    ) -> Combined:
        """The step from a masked sum. Where the protocol refuses, the round is named and ``theta`` stays."""
        if any(each is not None for each in (rows, base, layout, rule)) or group:
            raise ComityError(f"method {type(self.method).__name__} combines other things than updates: not masked")
        try:
            return self._step(replies)  # type: ignore[arg-type]
        except Refused as why:
            self.record.warnings.append(f"round {self.round} is refused and changes nothing: {why}")
            return Combined(self.theta, None)

    def _step(self, replies: Mapping[int, MaskedReply]) -> Combined:
        # 1. Clients share the secrets of their masks out among each other.
        self.masked.check_left(len(replies), len(replies))
        self._bounded = True
        place = place_of(self.masked.run, self.round)
        self._collector = Collector(place, {cid: from_rows(reply.keys[None])[0] for cid, reply in replies.items()})
        everyone = self._collector.everyone
        keys = EveryonesKeys(ids=torch.tensor(list(everyone)), keys=to_rows(list(everyone.values())))
        sealed: dict[int, SealedShares] = self._ask("share", dict.fromkeys(everyone, keys))
        refused = self._collector.receive({cid: from_rows(reply.sealed) for cid, reply in sealed.items()})
        self.record.failed |= {cid: f"share: {why}" for cid, why in refused.items()}
        present = self._collector.present
        self.masked.check_left(len(present), len(present))

        # 2. The rule finds coefficients, from sketches if it compares updates.
        updates = self._seen({cid: replies[cid] for cid in present})
        self.rule.state = self.rule_states.setdefault("", dict(self._fresh))
        chosen = self.rule.coefficients(updates)
        self.rule_states[""] = self.rule.state
        if list(chosen.ids) != present:
            raise Refused("the rule leaves out sketches that are not finite")
        coefficients = self._within_bounds(chosen.coefficients)
        shares = self._within_bounds(updates.shares[None])[0]
        if lowered := int((coefficients != chosen.coefficients).any(0).sum()):
            self.record.warnings.append(f"coefficients of {lowered} clients were changed so that max_weight holds")
        why = objection_to_weights(coefficients.numpy(), self.masked.max_weight, self.masked.min_clients)
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
        summed = torch.from_numpy(FixedPoint(len(present)).decode(total.words)).to(self.theta.dtype)
        size = self.layout.size
        for name, where in self.variances.items():
            if bool((self.theta[where] + summed[where] < 0).any()):
                raise Refused(f"the sum has a negative {name}")
        self.server_step.state = self.step_states.setdefault("", {})
        theta = self.theta + torch.cat([self.server_step(summed[:size]), summed[size:]])
        outcome = Outcome(
            **vars(chosen) | {"coefficients": coefficients},
            update=summed[:size],
            stretch=self._stretch(updates, summed[:size]),
        )
        if self.rule.needs_gram:
            self._note("", updates, outcome)

        # 4. How many clients the step is against, or what the noise promises.
        if self.masked.noise is None:
            self._count_against(total.left, theta, updates)
        else:
            self._account(self.masked.noise, present)
        return Combined(theta, outcome)

    def _seen(self, replies: Mapping[int, MaskedReply]) -> Updates:
        """The updates as the rule sees them."""
        sketch, cids = self.masked.sketch, sorted(replies)
        sizes = torch.tensor([float(replies[cid].size) for cid in cids], dtype=torch.float64)
        losses = [replies[cid].loss for cid in cids]
        about: dict[str, Any] = {
            "sizes": capped(sizes, self.max_share),
            "losses": None if None in losses else torch.tensor(losses, dtype=torch.float64),
            "ids": cids,
        }
        if sketch is None:  # the rule looks at sizes alone
            return Updates(torch.zeros(len(cids), 1), **about)
        sketches = [replies[cid].sketch for cid in cids]
        return SketchedUpdates(sketches, sketch, self.masked.sketched, **about)  # type: ignore[arg-type]

    def _within_bounds(self, weights: Tensor) -> Tensor:
        """Rows of weights with the largest ones lowered to what clients let one of them have, and their sums kept."""
        rows = []
        for row in weights:
            lower = capped(row.abs(), self.masked.max_weight)
            scale = row.abs().sum() / lower.sum() if not torch.equal(lower, row.abs()) else 1.0
            rows.append((scale * lower).copysign(row))
        return torch.stack(rows)

    def _sum(self, which: int, verb: str, questions: Mapping[int, Payload], about: bytes) -> "_Sum":
        """What the masked words of these clients come to."""
        arrived: dict[int, MaskedWords] = self._ask(verb, questions)
        survivors = sorted(arrived)
        self.masked.check_left(len(survivors), len(questions))
        told = Survivors(total=which, survivors=torch.tensor(survivors))
        revealed: dict[int, Revealed] = self._ask("unmask", dict.fromkeys(survivors, told))
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
        if not self.rule.needs_gram:
            return torch.full((1,), math.nan, dtype=torch.float64)
        lengths = torch.stack([part.double().norm() for part in self.masked.sketched.split(update)])
        return lengths / updates.lengths(updates.shares)

    def _count_against(self, clients: Sequence[int], theta: Tensor, updates: Updates) -> None:
        """An exact count of those whom the step is against, without a word on who they are."""
        question = TakenStep(present=torch.tensor(clients), theta=theta)
        try:
            total = self._sum(AGAINST, "against", dict.fromkeys(clients, question), hash_of(theta))
        except Refused as why:
            self.record.warnings.append(f"how many clients the step is against could not be counted: {why}")
            return
        count = int(total.words[0])
        by_mean = len(against(updates, updates.shares)) if self.rule.needs_gram else count
        self.record.against = Against(clients=total.clients, mean=by_mean, rule=count)

    def _account(self, noise: Noise, present: Sequence[int]) -> None:
        """What all rounds so far say of the client that took part in most of them."""
        rounds = self.store.setdefault("rounds with noise", torch.zeros(len(self.clients), dtype=torch.int64))
        rounds[list(present)] += 1
        self.record.epsilon = epsilon(noise.multiplier, int(rounds.max()), self.delta)

    def _objection(self, cid: int, reply: Reply) -> str | None:
        return None  # neither the model nor the method has anything to look at
