"""What travels: declared fields and declared verbs."""

import pytest
import torch
from torch import Tensor

from comity import ComityError, Config
from comity.engine import RunPlan, run
from comity.methods import Client, Message, Method, Payload, Question, Reply, Server, verb
from comity.methods.fedpac import FedPACMessage, FedPACReply
from helpers import Options


def test_fields_that_are_none_do_not_travel() -> None:
    message = FedPACMessage(theta=torch.ones(3), known=torch.tensor([True]))
    assert message.tensors().keys() == {"theta", "known"}
    assert message.values().keys() == {"theta", "known", "general", "by_class"}
    assert message.bytes == 3 * 4 + 1


def test_a_subclass_is_a_dataclass_and_knows_its_fields() -> None:
    class More(Reply):
        weights: Tensor
        note: str = "none"

    reply = More(theta=torch.ones(1), size=2, weights=torch.zeros(2))
    assert reply.values().keys() == {"theta", "size", "train_loss", "weights", "note"}
    with pytest.raises(TypeError, match="unexpected keyword argument 'wieghts'"):
        More(theta=torch.ones(1), size=2, wieghts=torch.zeros(2))  # type: ignore[call-arg]


class ListReply(Reply):
    ids: list[int]


class Listing(Method[Message, ListReply]):
    pass


class BytesReply(Reply):
    bytes: int


class Counting(Method[Message, BytesReply]):
    pass


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (Listing, "ListReply.ids must be declared as one of Tensor, bool, int, float, str"),
        (Counting, "BytesReply.bytes needs another name"),
    ],
)
def test_a_field_that_cannot_travel_is_rejected_at_once(method: type[Method], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        RunPlan(Config(method=method)).verbs  # noqa: B018


def test_messages_and_replies_are_the_methods_own() -> None:
    verbs = RunPlan(Config(method="FedPAC")).verbs
    assert (verbs["fit"].message, verbs["fit"].reply) == (FedPACMessage, FedPACReply)
    assert verbs["evaluate"].message is FedPACMessage
    assert RunPlan(Config(method="FedCALM")).verbs["fit"].reply is Reply


class Forgetful(Method):
    """Returns nothing from ``fit``."""

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        return None  # type: ignore[return-value]


class SaysMore(Method):
    """Returns a reply that is not the declared one."""

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        return ListReply(theta=client.model.read(), size=1, ids=[1])


class SendsMore(Method):
    """Sends a message that is not the declared one."""

    def send(self, server: Server, cid: int) -> Message:
        return FedPACMessage(theta=server.theta)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        (Forgetful, "Forgetful.fit gave NoneType, not Reply"),
        (SaysMore, "SaysMore.fit gave ListReply, not Reply"),
        (SendsMore, "fit is sent FedPACMessage, not Message"),
    ],
)
def test_what_was_not_declared_does_not_travel(tiny: Options, method: type[Method], why: str) -> None:
    with pytest.raises(TypeError, match=why):
        run(**tiny, method=method)


class Hello(Payload):
    word: str


class Shy(Method):
    """Asks for something that it did not declare."""

    def begin(self, server: Server) -> None:
        server.ask(self.hello, {0: Question()})

    def hello(self, client: Client, received: Question) -> Hello:
        return Hello(word="hello")


class Vague(Shy):
    """Declares it without saying what travels."""

    @verb
    def hello(self, client, received):  # type: ignore[no-untyped-def]
        return Hello(word="hello")


class Polite(Shy):
    """Declares it."""

    @verb
    def hello(self, client: Client, received: Question) -> Hello:
        return Hello(word=f"hello from {client.id}")


def test_a_verb_is_declared_or_rejected(tiny: Options) -> None:
    with pytest.raises(ComityError, match="hello is no verb of Shy; declare it with @verb"):
        run(**tiny, method=Shy)
    with pytest.raises(ComityError, match="method Vague: the verb hello must say what travels by annotations"):
        run(**tiny, method=Vague)
    done = run(**tiny, method=Polite)
    answers = done.server.ask(done.server.method.hello, {cid: Question() for cid in (1, 3)})
    assert {cid: answer.word for cid, answer in answers.items()} == {1: "hello from 1", 3: "hello from 3"}
