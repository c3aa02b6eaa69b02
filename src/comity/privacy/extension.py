"""Masked sums in a run: the server sees sketches, masked words and shares, but never an update."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from comity._errors import ComityError
from comity.config import Config
from comity.engine import Call, Client, ClientState, Extension, Verb, cohort_size, verbs_of
from comity.methods import Combined, Message, Method, Payload, Reply, field_types
from comity.privacy._clients import MaskedClients, masked_clients
from comity.privacy._keys import Rejected
from comity.privacy._messages import (
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
from comity.privacy._round import MaskedRound
from comity.rules import Mean, Rule

if TYPE_CHECKING:
    from comity.engine import RunPlan, Server, Site


class MaskedSums(Extension):
    """Hide every update from the server, which learns only their sum with the rule's coefficients."""

    repeatable = False
    estimates = True

    delta: float

    @classmethod
    def of(cls, config: Config) -> Self | None:
        return cls(delta=config.dp_delta)

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        check_masked(plan, cohort_size(len(plan.federation), plan.config.participation))
        model = site.model()
        layout = model.layout("shared")
        self.clients: MaskedClients = masked_clients(plan, layout, len(model.read("shared")) > layout.size)

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        """Add the masked verbs; ``agree`` and ``unmask`` follow each of ``mask``, ``against`` and ``add``.

        If a verb asks for numbers of which the server needs only the sum, clients reply with keys instead.
        """
        summed = (verb for verb in verbs.values() if verb.summed is not None)
        masked = (
            replace(verbs["fit"], reply=MaskedReply),
            *(replace(verb, reply=MaskedReply, work=partial(self._ask, verb), objection=None) for verb in summed),
            Verb("share", EveryonesKeys, SealedShares, self._work),
            Verb("mask", Coefficients, MaskedWords, self._work),
            Verb("against", TakenStep, MaskedWords, self._work),
            Verb("add", KnownColumns, MaskedWords, self._work),
            Verb("agree", Survivors, Agreement, self._work),
            Verb("unmask", Signatures, Revealed, self._work),
        )
        return verbs | {verb.name: verb for verb in masked}

    def after_fit(self, site: "Site", client: Client, received: Payload, reply: Any) -> Any:
        assert isinstance(received, Message)
        return self.clients.fitted(client, received, reply)

    def _ask(self, verb: Verb, call: Call) -> tuple[Payload, ClientState]:
        assert verb.work is not None
        assert verb.summed is not None
        reply, state = verb.work(call)
        terms = reply.tensors()[verb.summed].view(torch.float64)
        return self.clients.asked(call.cid, state, call.received, terms, call.round)

    def _work(self, call: Call) -> tuple[Payload, ClientState]:
        try:
            return self.clients.work(call.cid, call.state, call.received, call.round)
        except ComityError:
            raise
        except Exception:  # a malformed message; reveal nothing about what happened at this client
            raise Rejected.because("form") from None

    def total(
        self,
        server: "Server",
        verb: str,
        question: Payload,
        replies: Mapping[int, Any],
        rows: int,
        columns: Sequence[str],
    ) -> torch.Tensor:
        try:
            return MaskedRound(server, self.clients, self.delta).total(verb, question, replies, rows, columns)
        except Rejected as why:
            failed = f" ({server.first_failure})" if server.record.failed else ""
            raise ComityError(f"the clients' {verb} cannot be added up behind masks: {why}{failed}") from why

    def combine(self, server: "Server", replies: Mapping[int, Any], is_whole: bool) -> Combined | None:
        """The step from a masked sum. If clients or the protocol reject it, the round is recorded without effect."""
        if not is_whole:
            raise ComityError(f"method {type(server.method).__name__} combines other things than updates: not masked")
        try:
            return MaskedRound(server, self.clients, self.delta).combine(replies)
        except ComityError as why:
            server.record.warnings.append(f"round {server.round} is rejected and changes nothing: {why}")
            return Combined(server.theta, None)


def check_masked(plan: "RunPlan", cohort: int) -> None:
    """Reject runs that cannot be masked, with the reason."""
    config, method, rule = plan.config, plan.method, plan.rule
    name, kind = config.method, type(method)
    more = [field for field in field_types(method.reply_type) if field not in field_types(Reply)]
    asked = sorted(verbs_of(method))
    if not method.shared:
        why = f"method {name} shares nothing"
    elif asked:
        why = f"clients of method {name} are also asked for {', '.join(asked)}, which the server would see"
    elif more:
        why = f"clients of method {name} also send {', '.join(more)}, which the server would see"
    elif kind.send is not Method.send:
        why = f"method {name} sends clients what its server half makes of single updates"
    elif kind.merge is not Method.merge and not method.sums_only:
        why = f"the server half of method {name} needs single updates, not their sum"
    elif kind.objection is not Method.objection:
        why = f"method {name} judges single replies"
    elif type(rule).remember is not Rule.remember:
        why = f"rule {type(rule).__name__} remembers updates"
    elif rule.tries_steps:
        why = f"rule {rule!r} tries steps before the sum is known"
    elif rule.scope == "layer" and rule.needs_gram:
        why = f"rule {type(rule).__name__} works by layer, and sketches of small layers hide nothing"
        why += "; take --rule.scope model" if "scope" in (config.rule.options if config.rule else ()) else ""
    elif config.attack != "none":
        why = "what malicious clients upload is not simulated there; leave attack out"
    elif config.clip_updates != "none":
        why = "the server cannot clip what it does not see; leave clip_updates out"
    elif config.newcomers:
        why = "newcomers are not served there; leave newcomers out"
    elif config.dp_noise and not (isinstance(rule, Mean) and rule.by == "uniform" and not rule.needs_gram):
        why = (
            f"with dp_noise weights must not depend on data, as those of {rule!r} do: their own sensitivity "
            "is not known; take --rule Mean --rule.by uniform"
        )
    elif cohort < config.min_clients:
        why = f"a round has {cohort} clients, and min_clients is {config.min_clients}"
    else:
        return
    raise ComityError(f"this cannot run masked: {why}")
