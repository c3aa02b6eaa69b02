"""A Flower grid inside this process: Flower's own messages, without SuperLink, SuperNodes or network."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """Calls a ClientApp where a SuperNode would: ``server_app(config)(InProcessGrid(app, clients=5), context)``.

    Each node has a context of its own, with ``partition-id`` and ``num-partitions`` in its configuration, and an id
    that differs from run to run, as a real one does. With ``wire`` every message goes through Flower's serialisation,
    there and back; without, records are handed over as they are.
    """

    def __init__(
        self,
        app: ClientApp,
        clients: int,
        *,
        run_config: UserConfig | None = None,
        node_configs: Sequence[UserConfig] = (),
        workers: int = 1,
        wire: bool = True,
    ) -> None:
        self.app, self.wire, self.run_id = app, wire, secrets.randbits(62)
        self.run_config: UserConfig = dict(run_config or {})
        self.contexts: dict[int, Context] = {}
        for cid in range(clients):
            self.add_node(cid, clients, node_configs[cid] if node_configs else {})
        self._pool = ThreadPoolExecutor(workers)
        self._replies: dict[str, Future[Message]] = {}
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = self.run_id, 1, SUPERLINK_NODE_ID

    def add_node(self, cid: int, clients: int, node_config: Mapping[str, Any] | None = None) -> int:
        """A new node for client ``cid``, with nothing in its state."""
        node = secrets.randbits(63) + 2
        settings: UserConfig = {"partition-id": cid, "num-partitions": clients} | dict(node_config or {})
        self.contexts[node] = Context(self.run_id, node, settings, RecordDict(), self.run_config)
        return node

    def node_of(self, cid: int) -> int:
        """The newest node of a client."""
        return [node for node, context in self.contexts.items() if context.node_config["partition-id"] == cid][-1]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = message.object_id if self.wire else secrets.token_hex(16)
            self._replies[name] = self._pool.submit(self.answer, message)
            ids.append(name)
        return ids

    def answer(self, message: Message) -> Message:
        """What the node replies; overridden, it is a node that lies, fails or keeps silent."""
        context = self.contexts.get(message.metadata.dst_node_id)
        if context is None:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        try:
            return self._carried(self.app(self._carried(message), context))
        except Exception as error:  # what a SuperNode does: the app's failure is the reply
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        pending = {name: self._replies[name] for name in message_ids if name in self._replies}
        wait(pending.values(), timeout=0.01, return_when=FIRST_COMPLETED)
        return [self._replies.pop(name).result() for name, reply in pending.items() if reply.done()]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._replies.pop(name).result(timeout) for name in self.push_messages(messages)]

    def _carried(self, message: Message) -> Message:
        if not self.wire or message.has_error():
            return message
        number = message.metadata.message_id
        with no_object_id_recompute():
            name = message.object_id
            contents = {key: part.deflate() for key, part in get_all_nested_objects(message).items()}
        arrived = inflate_object_from_contents(name, contents)
        assert isinstance(arrived, Message)
        arrived.metadata.__dict__["_message_id"] = number
        return arrived

    # Abstract in Flower's interface, and not used here.

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    run = property(set_run)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError
