"""Where the server may see no update: what travels instead, and what cannot run so."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from comity._errors import ComityError
from comity.config import Config
from comity.engine._verbs import ENGINE_VERBS, Verb, verbs_of
from comity.methods import Method, Payload, Reply, field_types
from comity.rules import Mean, Rule

UPDATES, AGAINST = 0, 1
"""The two masked sums of a round: of the weighted updates, and of the clients that the step is against."""


class MaskedReply(Payload):
    """What a client says openly after it fitted. The shared part that it trained stays with it."""

    keys: Tensor
    """The public half of its keys for this round, signed."""
    size: int
    train_loss: float = math.nan
    loss: float | None = None
    sketch: Tensor | None = None
    """Of its update, where the rule compares updates."""


class EveryonesKeys(Payload):
    ids: Tensor
    keys: Tensor


class SealedShares(Payload):
    """Of the sender's secrets, a row for each of its neighbours that only that one can open."""

    sealed: Tensor


class Coefficients(Payload):
    """How much each client counts, told alike to all, and what neighbours sealed for this one."""

    sealed: Tensor
    present: Tensor
    """Who masks together."""
    coefficients: Tensor
    """A row for the whole model, or one for each layer; a column for each client."""
    shares: Tensor
    """What each client counts for in the buffers."""


class TakenStep(Payload):
    """The shared part after the step, told alike to all."""

    present: Tensor
    theta: Tensor


class MaskedWords(Payload):
    words: Tensor


class Survivors(Payload):
    """Those whose masked words arrived."""

    total: int
    """Of which sum."""
    survivors: Tensor


class Revealed(Payload):
    """One share of each of the sender's neighbours and then of itself."""

    shares: Tensor


def masked_verbs(verbs: Mapping[str, Verb]) -> dict[str, Verb]:
    """A run's verbs where updates are masked; ``unmask`` is asked after each of the two before it."""
    masked = (
        Verb("fit", verbs["fit"].message, MaskedReply),
        Verb("share", EveryonesKeys, SealedShares),
        Verb("mask", Coefficients, MaskedWords),
        Verb("against", TakenStep, MaskedWords),
        Verb("unmask", Survivors, Revealed),
    )
    return dict(verbs) | {verb.name: verb for verb in masked}


def check_masked(config: Config, method: Method[Any, Any], rule: Rule, cohort: int) -> None:
    """Refuse what cannot run masked, for the reason that it declares itself."""
    name, kind = config.method, type(method)
    more = [field for field in field_types(method.reply_type) if field not in field_types(Reply)]
    asked = sorted(verbs_of(method).keys() - ENGINE_VERBS)
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
    elif config.attack != "none":
        why = "what malicious clients upload is not simulated there; leave attack out"
    elif config.clip_updates != "none":
        why = "the server cannot clip what it does not see; leave clip_updates out"
    elif config.save_models:
        why = "save_models would have clients send their models; leave it out"
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
