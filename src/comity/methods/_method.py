"""Base class of methods: a client half and a server half."""

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
    """A method: share some parts of the model, keep the others personal, and train them together.

    The base class itself is FedAvg if everything is shared and FedPer if only the body is; other methods override what
    differs. Annotated attributes of a subclass are options: ``lam: float = 1.0`` becomes ``--method.lam``.

    The client half (``start``, ``fit``, ``personal``) runs where the data is and sees one client; state that must
    survive until that client's next round goes into ``client.keep``. The server half (``begin``, ``send``, ``merge``)
    sees replies only. Clients get a ``Message`` and return a ``Reply``; a method that sends more declares both: ``class
    FedPAC(Method[FedPACMessage, FedPACReply])``. A client-side function declared with ``@verb`` is one more call that
    the server half can make.
    """

    shared: ClassVar[tuple[str, ...]] = WHOLE
    """Parts of the model that are sent; the rule acts on their updates. BatchNorm's statistics follow the body."""
    local_norm: ClassVar[bool] = False
    """Whether BatchNorm layers (parameters and statistics) stay with the client."""
    validation: ClassVar[float] = 0.0
    """Share of a client's training samples that the method uses for validation if the run holds out none."""
    sums_only: ClassVar[bool] = False
    """Whether ``merge`` uses replies only through ``server.aggregate``, as masked sums require."""
    own_steps: ClassVar[bool] = False
    """Whether the client half calls ``model.gradients`` for single batches; these may then be computed in C."""
    mixes_models: ClassVar[bool] = False
    """Whether the server mixes models itself: no rule is applied and there is no global model."""
    brings_rule: ClassVar[bool] = False
    """Whether the method has an ``own_rule``, so that no other rule can be chosen."""
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
    def eval_point(self) -> Literal["received", "fitted"]:
        """Evaluation point: with the newest shared part before fitting ("received"), or after fitting ("fitted").

        A method that leaves the choice to the user has the option ``personal_model``, with "post_local" as one value.
        """
        return "fitted" if getattr(self, "personal_model", None) == "post_local" else "received"

    def own_rule(self) -> Rule | None:
        """The rule that is part of the method, or None. A method with its own rule always returns it."""
        return Mean() if self.mixes_models else None

    def build(self, net: nn.Module) -> nn.Module:
        """Add the parts that this method needs beside body and head to the network."""
        return net

    # The client half.

    def start(self, client: Client) -> None:
        """Set up a client before its first round; ``client.model`` holds the common initial model."""
        client.keep["personal"] = client.model.read("personal")

    def load(self, client: Client, received: M) -> None:
        """Write the received shared part and the kept personal part into the model."""
        if not isinstance(received, Message):
            raise TypeError(f"{type(self).__name__} sends {type(received).__name__} and needs a `load` of its own")
        self.assemble(client, received.theta)

    def assemble(self, client: Client, theta: Tensor) -> None:
        """Write a shared part and the kept personal part into the model, as the start of fitting."""
        client.origin = theta
        client.model.write(theta, "shared")
        client.model.write(client.keep["personal"], "personal")

    def fit(self, client: Client, received: M) -> R:
        """Do one round of local work. Leaves the client's own model in ``client.model``."""
        self.load(client, received)
        client.sgd()
        return self.reply(client)

    def reply(self, client: Client, **more: Any) -> R:
        """Keep the personal part and return a reply with the shared part and the method's further fields."""
        client.keep["personal"] = client.model.read("personal")
        reply = self.reply_type(theta=client.model.read("shared"), size=len(client.data.train), **more)
        return cast(R, reply)

    def personal(self, client: Client, received: M) -> Tensor:
        """The whole model that this client would use now. Changes to ``client.keep`` are discarded."""
        plain = type(self).load is Method.load and isinstance(received, Message)
        if plain and not client.model.size("personal"):
            return cast(Message, received).theta  # equal for all clients: no copy, no comparison
        self.load(client, received)
        return client.model.read()

    def general(self, client: Client, received: M) -> Tensor | None:
        """The global model as this client received it, if the method has one."""
        if self.mixes_models or not set(WHOLE) <= set(self.shared):
            return None
        if isinstance(received, Message) and not client.model.size("personal"):
            return received.theta
        Method.load(self, client, received)  # with the client's own buffers if they are local
        return client.model.read()

    def join(self, client: Client, received: M) -> None:
        """``start`` for a client that joins after training: from the received model, not the initial one."""
        if isinstance(received, Message):
            client.model.write(received.theta, "shared")
        self.start(client)

    # The server half.

    def begin(self, server: Server) -> None:
        """Prepare the server, once before the first round."""

    def send(self, server: Server, cid: int) -> M:
        """The message to a client before it fits or is evaluated."""
        return self.message(theta=server.theta)

    def welcome(self, server: Server, cid: int, last: R | None) -> M:
        """The message to a client that joins after training; ``last`` is its latest reply, or ``None``.

        ``server.store`` is a copy here; a newcomer's changes to it are discarded.
        """
        return self.send(server, cid)

    def message(self, **fields: Any) -> M:
        """Build a message of the method's own type."""
        return cast(M, self.message_type(**fields))

    def objection(self, server: Server, cid: int, reply: R) -> str | None:
        """Reason to reject a well-formed reply ("sent a cluster that does not exist"), or None."""
        return None

    def merge(self, server: Server, replies: dict[int, R]) -> None:
        """Update the server's state from the replies of a round."""
        server.theta = server.aggregate(replies).theta
