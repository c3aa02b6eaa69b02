"""One masked round: coefficients from sketches, and sums without single terms."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from comity._layout import Layout
from comity.engine import Aggregation, MakeUpdates, record_step
from comity.methods import Combined, Payload
from comity.privacy._accountant import epsilon_of
from comity.privacy._clients import MaskedClients, Noise, from_rows, hash_of, hash_of_payload, to_rows
from comity.privacy._collector import Collector
from comity.privacy._fixed_point import DIGITS, FixedPoint
from comity.privacy._graph import LOST
from comity.privacy._keys import ANNOUNCEMENT, DIGEST, REASONS, SEALED, SECRETS, SIGNATURE, Rejected
from comity.privacy._messages import (
    AGAINST,
    UPDATES,
    Agreement,
    Coefficients,
    EveryonesKeys,
    KnownColumns,
    MaskedReply,
    MaskedWords,
    Revealed,
    SealedShares,
    Signatures,
    Survivors,
    TakenStep,
)
from comity.privacy._parties import place_of
from comity.privacy._shamir import SHARE
from comity.privacy._weights import objection_to_weights, within_bounds
from comity.results import Against
from comity.rules import Outcome, SketchedUpdates, Updates, against

if TYPE_CHECKING:
    from comity.engine import Server


class _Sum(NamedTuple):
    words: np.ndarray[Any, np.dtype[np.uint64]]
    clients: int  # number of terms
    left: list[int]  # clients that are left after it


class MaskedRound:
    """The server's side of one masked round."""

    def __init__(self, server: "Server", clients: MaskedClients, delta: float) -> None:
        self.server, self.clients, self.delta = server, clients, delta

    def combine(self, replies: Mapping[int, MaskedReply]) -> Combined:
        # 1. Clients share the secrets of their masks.
        sketched = {} if self.clients.sketch is None else {"sketch": (torch.float64, self.clients.sketch.k)}
        replies = self._of_form("fit", replies, keys=(torch.uint8, ANNOUNCEMENT), **sketched)
        self._check_left(len(replies), len(replies))
        present = self._share(replies, self.server.method.send(self.server, min(replies)))

        # 2. The rule computes coefficients, from sketches if it compares updates.
        updates = self._seen({cid: replies[cid] for cid in present})
        chosen = self.server.with_state("", self.server.rule.coefficients, updates)
        if list(chosen.ids) != present:
            raise Rejected("the rule leaves out sketches that are not finite")
        coefficients, shares = self._within_bounds(chosen.coefficients[0]), self._within_bounds(updates.shares)
        if lowered := int((coefficients != chosen.coefficients[0]).sum()):
            self.server.record.warnings.append(
                f"coefficients of {lowered} clients were moved toward their mean so that no client exceeds max_weight"
            )

        # 3. The sum of the updates with these coefficients.
        total = self._weighted_sum(present, coefficients, shares, len(self.server.theta))
        summed = torch.from_numpy(FixedPoint(len(present)).decode(total.words)).to(self.server.theta.dtype)
        size = self.server.layout.size
        for name, where in self.server.variances.items():
            if bool((self.server.theta[where] + summed[where] < 0).any()):
                raise Rejected(f"the sum has a negative {name}")
        theta = self.server.theta + torch.cat([self.server.take_step(summed[:size], ""), summed[size:]])
        outcome = Outcome(
            **vars(chosen) | {"coefficients": coefficients[None]},
            update=summed[:size],
            length_ratio=self._length_ratio(updates, summed[:size]),
        )
        if self.server.rule.needs_gram:
            record_step(self.server, "", updates, outcome)

        # 4. The number of clients whose loss the step increases, or the privacy guarantee of the noise.
        if self.clients.noise is None:
            self._count_against(total.left, theta, updates)
        else:
            self._account(self.clients.noise, {cid: replies[cid].spent for cid in present})
        return Combined(theta, outcome)

    def total(
        self, verb: str, question: Payload, replies: Mapping[int, MaskedReply], rows: int, columns: Sequence[str]
    ) -> Tensor:
        """The exact sum of numbers that clients were asked for outside training, rounded once to float64.

        First the number of clients that know each column is summed: a column known by fewer than ``min_clients`` is
        rejected.
        """
        replies = self._of_form(verb, replies, keys=(torch.uint8, ANNOUNCEMENT))
        self._check_left(len(replies), len(replies))
        present = self._share(replies, question)
        ones = torch.ones(len(present), dtype=torch.float64)
        counted = self._weighted_sum(present, ones, ones, len(columns))
        known, least = torch.from_numpy(counted.words.view(np.int64).copy()), self.clients.min_clients
        if few := [name for name, count in zip(columns, known.tolist(), strict=True) if 0 < count < least]:
            raise Rejected(
                f"fewer than {least} clients know {', '.join(few)}, and its sums would tell of single ones; leave it "
                "out of the schema and give another --seed"
            )
        left = KnownColumns(present=torch.tensor(counted.left), known=known)
        width = rows * len(columns) * DIGITS
        total = self._sum(AGAINST, "add", dict.fromkeys(counted.left, left), hash_of(known), width)
        return torch.from_numpy(FixedPoint(len(counted.left)).decode_exactly(total.words)).reshape(rows, -1)

    def _share(self, replies: Mapping[int, MaskedReply], sent: Payload) -> list[int]:
        """Let clients share their secrets with those that were sent the same; returns clients whose shares are held."""
        place = place_of(self.clients.run, self.server.round, hash_of_payload(sent))
        self._collector = Collector(place, {cid: from_rows(reply.keys[None])[0] for cid, reply in replies.items()})
        everyone, self._degree = self._collector.everyone, self._collector.degree
        keys = EveryonesKeys(ids=torch.tensor(list(everyone)), keys=to_rows(list(everyone.values())))
        shared: dict[int, SealedShares] = self._ask(
            "share",
            dict.fromkeys(everyone, keys),
            sealed=(torch.uint8, self._degree, SEALED),
            digests=(torch.uint8, self._degree + 1, SECRETS * DIGEST),
        )
        rejected = self._collector.receive(
            {cid: (from_rows(reply.sealed), from_rows(reply.digests)) for cid, reply in shared.items()}
        )
        self.server.record.failed |= {cid: f"share: {why}" for cid, why in rejected.items()}
        present = self._collector.present
        self._check_left(len(present), len(present))
        return present

    def _weighted_sum(self, present: list[int], coefficients: Tensor, shares: Tensor, width: int) -> "_Sum":
        """The weighted sum of the updates or numbers that these clients kept."""
        questions: dict[int, Payload] = {
            cid: Coefficients(
                sealed=to_rows(self._collector.sealed_for(cid)),
                present=torch.tensor(present),
                coefficients=coefficients,
                shares=shares,
            )
            for cid in present
        }
        return self._sum(UPDATES, "mask", questions, hash_of(coefficients, shares), width)

    def _seen(self, replies: Mapping[int, MaskedReply]) -> Updates:
        """The updates as the rule sees them: sketches and sizes."""
        clients, server = self.clients, self.server
        aggregation = Aggregation.of(replies, server.theta, server.layout)
        rows: Tensor = torch.zeros(len(replies), 1)  # for a rule that uses only sizes
        make: MakeUpdates = Updates
        if clients.sketch is not None:
            rows = torch.stack([replies[cid].sketch for cid in aggregation.cids])[:, None]  # type: ignore[misc]
            whole = Layout([("model", (server.layout.size,))])
            make = partial(SketchedUpdates, sketch=clients.sketch, layout=whole)
        make = server.extended(aggregation, make)
        return make(rows, sizes=aggregation.sizes, losses=aggregation.losses, ids=aggregation.cids)

    def _within_bounds(self, weights: Tensor) -> Tensor:
        """Weights that clients accept, even if some of them (at most a tenth) drop out later."""
        bounds, count = (self.clients.max_weight, self.clients.min_clients), len(weights)
        losses = min(math.ceil(LOST * count), count - self.clients.fewest(count))
        bounded = within_bounds(weights.double().numpy(), *bounds, losses)
        if (code := objection_to_weights(bounded, *bounds)) is not None:
            raise Rejected(f"clients would not lend their updates to the rule's coefficients: {REASONS[code]}")
        return torch.from_numpy(bounded)

    def _check_left(self, survivors: int, present: int) -> None:
        if survivors < (fewest := self.clients.fewest(present)):
            raise Rejected(f"{survivors} clients are left; {fewest} are the fewest")

    def _ask(self, verb: str, questions: Mapping[int, Payload], **form: tuple[Any, ...]) -> dict[int, Any]:
        return self._of_form(verb, self.server.ask_clients(verb, questions), **form)

    def _of_form(self, verb: str, replies: Mapping[int, Any], **form: tuple[Any, ...]) -> dict[int, Any]:
        """The replies whose tensors have these types and shapes; other clients are recorded as failed."""
        good = {}
        for cid, reply in replies.items():
            tensors = reply.tensors()
            wrong = [name for name, (dtype, *shape) in form.items() if not _is_of(tensors.get(name), dtype, shape)]
            if wrong:
                self.server.record.failed[cid] = f"{verb}: sent {wrong[0]} of another form"
            else:
                good[cid] = reply
        return good

    def _sum(self, which: int, verb: str, questions: Mapping[int, Payload], about: bytes, width: int) -> "_Sum":
        """The sum of the masked words of these clients, once they agree on what they were sent."""
        arrived: dict[int, MaskedWords] = self._ask(verb, questions, words=(torch.int64, width + 1))
        survivors = sorted(arrived)
        self._check_left(len(survivors), len(questions))
        left = Survivors(total=which, survivors=torch.tensor(survivors))
        signed: dict[int, Agreement] = self._ask(
            "agree", dict.fromkeys(survivors, left), signature=(torch.uint8, SIGNATURE)
        )
        if len(signed) < self._collector.quorum:
            raise Rejected(f"{len(signed)} clients signed what they were sent; {self._collector.quorum} are the fewest")
        seen = Signatures(
            total=which,
            ids=torch.tensor(list(signed)),
            signatures=torch.stack([reply.signature for reply in signed.values()]),
        )
        revealed: dict[int, Revealed] = self._ask(
            "unmask", dict.fromkeys(signed, seen), shares=(torch.uint8, self._degree + 1, SHARE)
        )
        try:
            words = self._collector.open(
                which,
                list(questions),
                about,
                {cid: reply.words.numpy().view(np.uint64) for cid, reply in arrived.items()},
                {cid: from_rows(reply.shares) for cid, reply in revealed.items()},
            )
        finally:
            self.server.record.failed |= dict.fromkeys(self._collector.false_sharers, "unmask: its shares are false")
        return _Sum(words, len(survivors), sorted(revealed))

    def _length_ratio(self, updates: Updates, update: Tensor) -> Tensor:
        """Length of the step relative to the plain mean, estimated by sketches."""
        if not self.server.rule.needs_gram:
            return torch.full((1,), math.nan, dtype=torch.float64)
        ratio: Tensor = torch.linalg.vector_norm(update.double())[None] / updates.lengths(updates.shares)
        return ratio

    def _count_against(self, clients: Sequence[int], theta: Tensor, updates: Updates) -> None:
        """Count the clients whose loss the step increases, exactly and without revealing who they are."""
        question = TakenStep(present=torch.tensor(clients), theta=theta)
        try:
            total = self._sum(AGAINST, "against", dict.fromkeys(clients, question), hash_of(theta), 1)
        except Rejected as why:
            self.server.record.warnings.append(f"the clients whose loss the step increases could not be counted: {why}")
            return
        count = int(total.words[0])
        by_mean = len(against(updates, updates.shares)) if self.server.rule.needs_gram else count
        self.server.record.against = Against(clients=total.clients, mean=by_mean, rule=count)

    def _account(self, noise: Noise, before: Mapping[int, float]) -> None:
        """Epsilon of the client with the largest total over all rounds, including other runs with the same secrets."""
        rounds = self.server.store.setdefault(
            "rounds with noise", torch.zeros(len(self.server.clients), dtype=torch.int64)
        )
        rounds[list(before)] += 1
        spent = self.server.store.setdefault("spent before", torch.zeros(len(self.server.clients), dtype=torch.float64))
        for cid, each in before.items():
            spent[cid] = max(float(spent[cid]), each)
        self.server.record.epsilon = epsilon_of(float((rounds / noise.multiplier**2 + spent).max()), self.delta)


def _is_of(tensor: Tensor | None, dtype: torch.dtype, shape: list[int]) -> bool:
    return tensor is not None and tensor.dtype == dtype and list(tensor.shape) == shape
