"""Losses of the received model, for rules that need them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from comity.engine import Client, Extension, Verb, loss_as_received
from comity.methods import Payload, Reply

if TYPE_CHECKING:
    from comity.engine import Site


LARGEST = 1e38
"""Larger losses are rejected: their square would overflow."""


class Losses(Extension):
    """Each client reports the loss of the received model on its training data, before it fits."""

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        return verbs | {"fit": replace(verbs["fit"], objection=_objection)}

    def before_fit(self, site: "Site", client: Client, received: Payload) -> None:
        client.notes["loss"] = loss_as_received(site, client, received, client.data.train)

    def after_fit(self, site: "Site", client: Client, received: Payload, reply: Any) -> Any:
        reply.loss = client.notes["loss"]
        return reply


def _objection(_: Payload, reply: Payload) -> str | None:
    """Reject a reply without a valid loss, as a failure of this client only."""
    if not isinstance(reply, Reply) or (reply.loss is not None and 0 <= reply.loss < LARGEST):
        return None
    return f"sent the loss {reply.loss}; the rule needs a number, at least 0"
