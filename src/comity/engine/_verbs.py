"""What a client can be asked to do: what travels there and back, and who does the work."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from comity._errors import ComityError
from comity.engine._client import Client, ClientState
from comity.methods import Method, Payload, field_types
from comity.nn import Model

if TYPE_CHECKING:
    from comity.engine._site import Site


BESIDE = 2**32
"""Round numbers from this one on are questions outside of training."""


@dataclass(frozen=True)
class Call:
    """One question to one client, at the site where that client works."""

    site: "Site"
    model: Model
    cid: int
    state: ClientState | None
    """``None`` for a client that was never asked before."""
    received: Any
    round: int

    def client(self, verb: str) -> Client:
        """The client at work; its random numbers depend on ``verb``."""
        return self.site.client(self.cid, self.model, self.state, verb=verb, round=self.round)


Work = Callable[[Call], tuple[Payload, ClientState | None]]
"""Answers a question; what the client keeps afterwards, ``None`` for a client that the question does not start."""


@dataclass(frozen=True)
class Verb:
    """One thing that clients can be asked to do."""

    name: str
    message: type[Payload]
    reply: type[Payload]
    work: Work | None = None
    """``None`` for a verb that the method declares with ``@verb``."""
    objection: Callable[[Payload, Payload], str | None] | None = None
    """Why a well-formed reply to what was sent cannot be used, in words that follow "client 3"."""
    checks: frozenset[str] = frozenset()
    """Fields of the reply whose range ``objection`` checks; others must be finite."""
    read_only: bool = False
    """Whether it leaves what the client keeps as it was."""
    judges: bool = False
    """Whether it compares models; then its bytes are not counted as the method's."""
    summed: str | None = None
    """The tensor of the reply of which the server needs the sum over all clients alone: float64 numbers as int64, in
    columns; one of zeros says that the client has nothing to add there. (blocks, rows, columns) are several that count
    as questions of their own. Later extensions may hide the rest."""
    optional: frozenset[str] = frozenset()
    """Fields of the reply that one client may have and another not."""


def verbs_of(method: Method[Any, Any], own: Iterable[Verb] = ()) -> dict[str, Verb]:
    """By name: the engine's ``own`` verbs, and those that the method declares with ``@verb``."""
    verbs = list(own)
    for name, function in inspect.getmembers(type(method), inspect.isfunction):
        if getattr(function, "is_verb", False):
            hints = get_type_hints(function)
            message, reply = hints.get("received", object), hints.get("return", object)
            verbs.append(Verb(name, message, reply, partial(_ask_method, name)))
    for verb in verbs:
        for payload in (verb.message, verb.reply):
            if not issubclass(payload, Payload):
                raise ComityError(
                    f"method {type(method).__name__}: the verb {verb.name} must say what travels by annotations: "
                    f"def {verb.name}(self, client: Client, received: Question) -> MyReply"
                )
            field_types(payload)  # rejects a field that cannot travel
    return {verb.name: verb for verb in verbs}


def _ask_method(name: str, call: Call) -> tuple[Payload, ClientState]:
    """Have the method answer; the client keeps what the method left."""
    client, method = call.client(name), call.site.method
    reply: Payload = getattr(method, name)(client, call.received)
    declared = call.site.verbs[name].reply
    if type(reply) is not declared:
        raise TypeError(f"{type(method).__name__}.{name} gave {type(reply).__name__}, not {declared.__name__}")
    return reply, client.state()
