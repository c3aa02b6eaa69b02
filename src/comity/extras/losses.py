"""Losses of the model as received, for rules that ask for them."""

from typing import TYPE_CHECKING, Any

from comity.engine import Client, Extension, loss_as_received
from comity.methods import Payload

if TYPE_CHECKING:
    from comity.engine import Site


class Losses(Extension):
    """Each client reports the loss of the model as received on its training data, before it fits."""

    def before_fit(self, site: "Site", client: Client, received: Payload) -> None:
        client.notes["loss"] = loss_as_received(site, client, received, client.data.train)

    def after_fit(self, site: "Site", client: Client, received: Payload, reply: Any) -> Any:
        reply.loss = client.notes["loss"]
        return reply
