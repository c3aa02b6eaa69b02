"""Trials: before a step is taken, clients report how it would change their losses."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.data import Split
from comity.engine import Aggregation, Call, Client, ClientState, Extension, MakeUpdates, Verb, loss_as_received
from comity.methods import Message, Payload
from comity.rules import TriedSteps

if TYPE_CHECKING:
    from comity.engine import Server, Site

MOST_TRIED = 128
"""Number of samples on which a client tries steps."""
DIVERGED = 1e6
"""The loss that represents a diverged model."""


class StepLosses(Payload):
    """Losses after several steps, on validation samples if there are any, otherwise on training samples."""

    before: float
    after: Tensor
    """One row per step, one column per length."""
    samples: int


class Trials(Extension):
    """Let a rule ask clients how steps would change their losses."""

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        verb = Verb("try_steps", verbs["fit"].message, StepLosses, _work, _objection)
        return verbs | {verb.name: verb}

    def after_fit(self, site: "Site", client: Client, received: Payload, reply: Any) -> Any:
        if isinstance(received, Message):
            client.engine_keep["origin"] = received.theta
        return reply

    def updates(self, server: "Server", aggregation: Aggregation, make: MakeUpdates) -> MakeUpdates:
        return partial(make, trial=partial(_try_steps, server, aggregation))


def _try_steps(
    server: "Server",
    aggregation: Aggregation,
    steps: Sequence[Tensor],
    factors: Sequence[float],
    dropped: Collection[object],
) -> TriedSteps:
    """Losses of the round's clients after multiples of each of these steps."""
    method = type(server.method).__name__
    if not aggregation.is_whole:
        raise ComityError(f"{method} combines several things a round: no step can be tried")
    ends = torch.stack([aggregation.moved(server.server_step.lr * step, dropped) for step in steps])
    questions = server.questions(aggregation.cids, factors=torch.tensor(factors, dtype=torch.float64))
    if not all(isinstance(question, Message) for question in questions.values()):
        raise ComityError(f"{method} sends no shared part: no step can be tried")
    tried = {cid: replace(question, theta=ends) for cid, question in questions.items()}  # type: ignore[call-arg]
    replies: list[StepLosses] = list(server.ask_clients("try_steps", tried).values())
    if not replies:
        raise ComityError(f"no client tried a step in round {server.round}; {server.first_failure}")
    return TriedSteps(
        before=torch.tensor([reply.before for reply in replies], dtype=torch.float64),
        after=torch.stack([reply.after for reply in replies]),
        samples=torch.tensor([reply.samples for reply in replies]),
    )


def _work(call: Call) -> tuple[Payload, ClientState]:
    """Losses on the way from the shared part that the client last started from to each received one."""
    site, received, client = call.site, call.received, call.client("try_steps")
    origin, size = client.engine_keep["origin"], site.parameters
    split = client.data.val if len(client.data.val) else client.data.train
    chosen = torch.randperm(len(split), generator=client.random("trial"))[:MOST_TRIED].to(split.y.device)
    split = Split(split.x[chosen], split.y[chosen])
    losses = [loss_as_received(site, client, replace(received, theta=origin), split)]
    for end, factor in product(received.theta, received.factors.tolist()):
        theta = end.clone()  # with the new buffers for every length
        theta[:size] = torch.lerp(origin[:size], end[:size], factor)
        losses.append(loss_as_received(site, client, replace(received, theta=theta), split))
    known = torch.tensor(losses, dtype=torch.float64).nan_to_num(DIVERGED).clamp(max=DIVERGED)
    after = known[1:].view(len(received.theta), -1)
    return StepLosses(before=float(known[0]), after=after, samples=len(split)), client.snapshot()


def _objection(sent: Payload, reply: Payload) -> str | None:
    assert isinstance(reply, StepLosses)
    steps, factors = (sent.tensors()[name] for name in ("theta", "factors"))
    if reply.after.shape != (len(steps), len(factors)) or reply.after.dtype != factors.dtype:
        return "sent after of another shape or type than what was to be tried"
    if not ((reply.after >= 0) & (reply.after <= DIVERGED)).all() or not 0 <= reply.before <= DIVERGED:
        return f"sent a loss that is not from 0 to {DIVERGED:g}"
    return None
