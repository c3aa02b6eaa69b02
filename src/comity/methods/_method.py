"""What every method is: a client half and a server half."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, dataclass_transform

from torch import Tensor, nn

from comity.rules import Rule

if TYPE_CHECKING:
    from comity.engine import Client as Client
    from comity.engine import Server as Server
else:  # names for annotations only: the engine imports methods, not the other way round
    Client = Server = object

Payload = dict[str, Any]
"""A message: tensors, whose bytes are counted, and plain numbers, which ride in its header."""

WHOLE = ("body", "head")


@dataclass_transform(kw_only_default=True)
class Method:
    """Share some parts of the model, keep the others, train them together.

    As it stands this class is FedAvg when everything is shared and FedPer when only the body is; other methods say
    what differs. An annotated attribute of a subclass is an option: ``lam: float = 1.0`` becomes ``--method.lam``.

    The client half (``start``, ``fit``, ``personal``) runs where the data is and sees one client; what must survive
    until that client's next round goes into ``client.keep``. The server half (``begin``, ``send``, ``merge``) sees
    replies only. Every other public method with the arguments ``(client, received)`` is a verb: the server half asks
    for it with ``server.ask``.
    """

    shared: ClassVar[tuple[str, ...]] = WHOLE
    """The parts that travel; a rule acts on their updates. BatchNorm's statistics follow the body."""
    validation: ClassVar[float] = 0.0
    """Share of a client's training samples that the method needs for validation where the run keeps none."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True)(cls)

    @property
    def moment(self) -> Literal["received", "fitted"]:
        """When the personal model is judged: with the newest shared part, before fitting, or as fitting left it."""
        return "received"

    def check(self) -> None:
        """Refuse options that make no sense, with a ``ComityError``, before anything starts."""

    def own_rule(self) -> Rule | None:
        """The rule that is part of the method; then the run's own must be left alone."""
        return None

    def build(self, net: nn.Module) -> nn.Module:
        """Add to the network the parts that this method needs beside body and head."""
        return net

    # The client half.

    def start(self, client: Client) -> None:
        """Before its first round; ``client.model`` holds the common initial model."""
        client.keep["personal"] = client.model.read("personal")

    def load(self, client: Client, received: Payload) -> None:
        """Put the received shared part and the kept personal part together."""
        client.origin = received["theta"]
        client.model.write(received["theta"], "shared")
        client.model.write(client.keep["personal"], "personal")

    def fit(self, client: Client, received: Payload) -> Payload:
        """One round's work. Leaves the client's own model in ``client.model``."""
        self.load(client, received)
        client.sgd()
        return self.reply(client)

    def reply(self, client: Client) -> Payload:
        """Keep the personal part and send the shared one."""
        client.keep["personal"] = client.model.read("personal")
        return {"theta": client.model.read("shared"), "size": len(client.data.train)}

    def personal(self, client: Client, received: Payload) -> Tensor:
        """The whole model that this client would use now. What it changes in ``client.keep`` is forgotten."""
        self.load(client, received)
        return client.model.read()

    def general(self, client: Client, received: Payload) -> Tensor | None:
        """The one model for everybody, as this client received it, where the method has one."""
        if not set(WHOLE) <= set(self.shared):
            return None
        Method.load(self, client, received)  # with the client's own buffers, where they are local
        return client.model.read()

    # The server half.

    def begin(self, server: Server) -> None:
        """Once, before the first round."""

    def send(self, server: Server, cid: int) -> Payload:
        return {"theta": server.theta}

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        server.theta = server.aggregate({cid: reply["theta"] for cid, reply in replies.items()}, replies)
