"""What every method is: a client half and a server half."""

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, cast, dataclass_transform, get_args, get_origin

from torch import Tensor, nn
from typing_extensions import TypeVar  # the standard one has no defaults before Python 3.13

from comity._options import check
from comity.methods._messages import Message, Payload, Question, Reply, verb
from comity.methods._sides import Client, Server
from comity.rules import Mean, Rule

__all__ = ["WHOLE", "Client", "Message", "Method", "Payload", "Question", "Reply", "Server", "verb"]

M = TypeVar("M", bound=Question, default=Message)
R = TypeVar("R", bound=Reply, default=Reply)

WHOLE = ("body", "head")


@dataclass_transform(kw_only_default=True)
class Method(Generic[M, R]):
    """Share some parts of the model, keep the others, train them together.

    As it stands this class is FedAvg when everything is shared and FedPer when only the body is; other methods say
    what differs. An annotated attribute of a subclass is an option: ``lam: float = 1.0`` becomes ``--method.lam``.

    The client half (``start``, ``fit``, ``personal``) runs where the data is and sees one client; what must survive
    until that client's next round goes into ``client.keep``. The server half (``begin``, ``send``, ``merge``) sees
    replies only. What travels is a ``Message`` there and a ``Reply`` back; a method that sends more declares both:
    ``class FedPAC(Method[FedPACMessage, FedPACReply])``. A client-side function that is declared with ``@verb`` is one
    more thing that the server half may ask for.
    """

    shared: ClassVar[tuple[str, ...]] = WHOLE
    """The parts that travel; a rule acts on their updates. BatchNorm's statistics follow the body."""
    local_norm: ClassVar[bool] = False
    """Whether BatchNorm's layers, parameters and statistics, stay with the client."""
    validation: ClassVar[float] = 0.0
    """Share of a client's training samples that the method needs for validation where the run keeps none."""
    sums_only: ClassVar[bool] = False
    """Whether a ``merge`` of the method's own looks at nothing but what ``server.aggregate`` makes of the replies."""
    mixes_models: ClassVar[bool] = False
    """Whether the server combines models in its own way: it applies no rule and keeps no model for everybody."""
    brings_rule: ClassVar[bool] = False
    """Whether the class has an ``own_rule``, so that no other can be chosen."""
    message_type: ClassVar[type[Question]] = Message
    reply_type: ClassVar[type[Reply]] = Reply

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Method):
                cls.message_type, cls.reply_type = get_args(base)
        cls.brings_rule = cls.mixes_models or cls.own_rule is not Method.own_rule
        dataclass(kw_only=True)(cls)

    def __post_init__(self) -> None:
        check(self, "method")

    @property
    def moment(self) -> Literal["received", "fitted"]:
        """When the personal model is judged: with the newest shared part, before fitting, or as fitting left it.

        A method that leaves the choice has the option ``personal_model``, of which "post_local" is one value.
        """
        return "fitted" if getattr(self, "personal_model", None) == "post_local" else "received"

    def own_rule(self) -> Rule | None:
        """The rule that is part of the method; a class that has one always returns it, and no other can be chosen."""
        return Mean() if self.mixes_models else None

    def build(self, net: nn.Module) -> nn.Module:
        """Add to the network the parts that this method needs beside body and head."""
        return net

    # The client half.

    def start(self, client: Client) -> None:
        """Before its first round; ``client.model`` holds the common initial model."""
        client.keep["personal"] = client.model.read("personal")

    def load(self, client: Client, received: M) -> None:
        """Put the received shared part and the kept personal part into the model."""
        if not isinstance(received, Message):
            raise TypeError(f"{type(self).__name__} sends {type(received).__name__} and needs a `load` of its own")
        self.assemble(client, received.theta)

    def assemble(self, client: Client, theta: Tensor) -> None:
        """Put a shared part and the kept personal part into the model, for fitting to start from."""
        client.origin = theta
        client.model.write(theta, "shared")
        client.model.write(client.keep["personal"], "personal")

    def fit(self, client: Client, received: M) -> R:
        """One round's work. Leaves the client's own model in ``client.model``."""
        self.load(client, received)
        client.sgd()
        return self.reply(client)

    def reply(self, client: Client, **more: Any) -> R:
        """Keep the personal part and send the shared one, with the further fields of the method's own reply."""
        client.keep["personal"] = client.model.read("personal")
        reply = self.reply_type(theta=client.model.read("shared"), size=len(client.data.train), **more)
        return cast(R, reply)

    def personal(self, client: Client, received: M) -> Tensor:
        """The whole model that this client would use now. What it changes in ``client.keep`` is forgotten."""
        plain = type(self).load is Method.load and isinstance(received, Message)
        if plain and not client.model.size("personal"):
            return cast(Message, received).theta  # one for all clients: no copy, and nothing to compare
        self.load(client, received)
        return client.model.read()

    def general(self, client: Client, received: M) -> Tensor | None:
        """The one model for everybody, as this client received it, where the method has one."""
        if self.mixes_models or not set(WHOLE) <= set(self.shared):
            return None
        if isinstance(received, Message) and not client.model.size("personal"):
            return received.theta
        Method.load(self, client, received)  # with the client's own buffers, where they are local
        return client.model.read()

    def join(self, client: Client, received: M) -> None:
        """``start`` of a client that joins after training: from what it received, not from the initial model."""
        if isinstance(received, Message):
            client.model.write(received.theta, "shared")
        self.start(client)

    # The server half.

    def begin(self, server: Server) -> None:
        """Once, before the first round."""

    def send(self, server: Server, cid: int) -> M:
        """What a client gets before it fits or is evaluated."""
        return self.message(theta=server.theta)

    def welcome(self, server: Server, cid: int, last: R | None) -> M:
        """What a client that joins after training gets: at first, and after its ``last`` reply.

        ``server.store`` is a copy here; what a newcomer changes in it is its own and is forgotten.
        """
        return self.send(server, cid)

    def message(self, **fields: Any) -> M:
        """A message of the method's own type."""
        return cast(M, self.message_type(**fields))

    def objection(self, server: Server, cid: int, reply: R) -> str | None:
        """Why a client's reply, well-formed as it is, cannot be used ("sent a cluster that does not exist")."""
        return None

    def merge(self, server: Server, replies: dict[int, R]) -> None:
        """The new state of the server, from the replies of a round's clients."""
        server.theta = server.aggregate(replies).theta
