"""Verbs: what a client can be asked to do, with the messages both ways and the implementation."""

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
"""Round numbers from this one on are questions outside training."""


@dataclass(frozen=True)
class Call:
    """One question to one client, at the site where the client works."""

    site: "Site"
    model: Model
    cid: int
    state: ClientState | None
    """``None`` for a client that was never asked before."""
    received: Any
    round: int

    def client(self, verb: str) -> Client:
        """The client, with random numbers that depend on ``verb``."""
        return self.site.client(self.cid, self.model, self.state, verb=verb, round=self.round)


Work = Callable[[Call], tuple[Payload, ClientState | None]]
"""Answers a question and returns the client's new state (``None`` if the question does not start the client)."""


@dataclass(frozen=True)
class Verb:
    """A remote function that the server can call on clients."""

    name: str
    message: type[Payload]
    reply: type[Payload]
    work: Work | None = None
    """``None`` for a verb that the method declares with ``@verb``."""
    objection: Callable[[Payload, Payload], str | None] | None = None
    """Reason to reject a well-formed reply, in words that follow "client 3"."""
    checks: frozenset[str] = frozenset()
    """Fields of the reply whose range ``objection`` checks; others must be finite."""
    read_only: bool = False
    """Whether the client's state stays unchanged."""
    judges: bool = False
    """Whether the verb evaluates models; its bytes do not count as the method's."""
    summed: str | None = None
    """Name of the reply's tensor of which the server needs only the sum over clients: float64 numbers as int64, in
    columns; a column of zeros means that the client adds nothing there. (blocks, rows, columns) are several tensors
    that count as separate questions. Later extensions may hide the rest."""
    optional: frozenset[str] = frozenset()
    """Fields that may be missing in some clients' replies."""


def verbs_of(method: Method[Any, Any], own: Iterable[Verb] = ()) -> dict[str, Verb]:
    """Verbs by name: the engine's ``own`` verbs, and those that the method declares with ``@verb``."""
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
            field_types(payload)  # rejects a field that cannot be sent
    return {verb.name: verb for verb in verbs}


def _ask_method(name: str, call: Call) -> tuple[Payload, ClientState]:
    """Let the method answer; the client keeps the state that the method leaves."""
    client, method = call.client(name), call.site.method
    reply: Payload = getattr(method, name)(client, call.received)
    declared = call.site.verbs[name].reply
    if type(reply) is not declared:
        raise TypeError(f"{type(method).__name__}.{name} gave {type(reply).__name__}, not {declared.__name__}")
    return reply, client.state()
