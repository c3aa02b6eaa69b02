"""The nodes of a Flower grid: messages and replies, and which node is which client."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from logging import INFO, WARNING
from typing import TypeVar

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from comity._errors import ComityError
from comity.engine import brief

K = TypeVar("K")

POLL = 0.005, 1.0
"""Seconds between two polls for replies, initially and at most. Flower's own ``send_and_receive`` polls every 3 s."""


class Post:
    """Sends messages and yields replies as they arrive."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._singly = False
        """Whether replies are fetched one by one, so that an unreadable one does not block the others."""

    def push(self, messages: Mapping[K, Message]) -> dict[str, K]:
        """Send the messages; returns the recipient by message id."""
        names = list(self.grid.push_messages(list(messages.values())))
        if len(names) != len(messages) or None in names:
            raise ComityError("the SuperLink did not take all messages; its log says why")
        return dict(zip(names, messages, strict=True))

    def replies(self, waiting: Mapping[str, object], seconds: float) -> Iterator[tuple[str, Message | Exception]]:
        """Yield replies until the caller has removed every id from ``waiting``, or the time is up."""
        until, pause = time.monotonic() + seconds, POLL[0]
        while waiting:
            came = {name: reply for name, reply in self._pull(list(waiting)) if name in waiting}  # each once
            yield from came.items()
            if came:
                pause = POLL[0]
            elif (left := until - time.monotonic()) > 0:
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, POLL[1])
            else:
                return

    def _pull(self, names: list[str]) -> list[tuple[str, Message | Exception]]:
        """Replies that have arrived; an exception for one that Flower itself cannot read."""
        if not self._singly:
            try:
                return [(reply.metadata.reply_to_message_id, reply) for reply in self.grid.pull_messages(names)]
            except Exception as error:
                log(WARNING, "A reply cannot be read; from now on replies are fetched one by one: %s", brief(error))
                self._singly = True
        came: list[tuple[str, Message | Exception]] = []
        for name in names:
            try:
                came += [(name, reply) for reply in self.grid.pull_messages([name])]
            except Exception as error:
                came.append((name, error))
        return came


class Seats:
    """Asks nodes for their ``partition-id`` and gives each client's seat to the first node that claims it.

    From then on the seat belongs to that node's key, in ``taken``, for the whole run and its continuations: a node with
    another key is rejected, even while the first is away. With ``owners`` the operator reserves or reassigns a seat for
    one node, by its id or its public key (PEM, as Flower has it). If nodes have no keys, or ``taken`` is None, a node
    keeps its seat while it is online, and later claimants wait.
    """

    def __init__(
        self,
        post: Post,
        clients: int,
        owners: Mapping[int, int | bytes],
        patience: float,
        warn: Callable[[str], None],
        taken: dict[int, int] | None = None,
    ) -> None:
        if strange := sorted(owners.keys() - set(range(clients))):
            raise ComityError(f"a seat is settled for client {strange[0]}; clients are 0 to {clients - 1}")
        self._post, self._owners, self._patience, self._warn = post, owners, patience, warn
        self.taken = taken
        """By client, a fingerprint of the key that owns the seat."""
        self._claims: dict[int, list[int]] = {cid: [] for cid in range(clients)}
        """The online nodes that claim to be each client, in order; the first has the seat."""
        self._last: dict[int, int] = {}
        """The last node of each client's seat."""
        self._queries: dict[str, tuple[int, float]] = {}
        """Pending queries: the node that was asked, and its deadline."""
        self._silent: set[int] = set()
        """Nodes that owe an answer. They are queried again, but not waited for."""
        self._rejected: dict[int, float] = {}
        """Nodes without a seat, and until when they are not queried again."""

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that is online and owes no answer."""
        return {cid: nodes[0] for cid, nodes in self._claims.items() if nodes and nodes[0] not in self._silent}

    def silence(self, node: int) -> None:
        """Mark a node without an answer: it must answer a query before it is asked again."""
        self._silent.add(node)

    def look(self) -> None:
        """Find the online nodes, and query new ones."""
        for name, reply in self._post.replies(self._queries, 0):
            self._introduce(name, reply)
        online, now = set(self._post.grid.get_node_ids()), time.monotonic()
        for cid, nodes in self._claims.items():
            nodes[:] = [node for node in nodes if node in online]
            self._seat(cid)
        self._silent &= online
        self._rejected = {node: until for node, until in self._rejected.items() if node in online and until > now}
        self._queries = {name: (node, u) for name, (node, u) in self._queries.items() if node in online and u > now}
        queried = {node for node, _ in self._queries.values()}
        known = {node for nodes in self._claims.values() for node in nodes} - self._silent
        new, wait = online - known - queried - self._rejected.keys(), self._patience
        queries = {
            node: Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, ttl=wait) for node in new
        }
        if queries:
            self._queries |= {name: (node, now + wait) for name, node in self._post.push(queries).items()}
        awaited = [until for node, until in self._queries.values() if node not in self._silent]
        for name, reply in self._post.replies(self._queries, max(awaited, default=now) - now):
            self._introduce(name, reply)
            if all(node in self._silent for node, _ in self._queries.values()):
                break
        self._silent |= {node for node, _ in self._queries.values()}

    def _introduce(self, name: str, reply: Message | Exception) -> None:
        node, _ = self._queries.pop(name)
        self._silent.discard(node)
        try:
            if isinstance(reply, Exception):
                raise reply
            if reply.has_error():
                raise ValueError(error_of(reply))
            self._claim(node, _partition_id(reply, len(self._claims)))
        except Exception as error:
            log(WARNING, "Node %d takes no part: %s", node, brief(error))
            self._reject(node)

    def _claim(self, node: int, cid: int) -> None:
        for seat, nodes in self._claims.items():
            if node in nodes and seat != cid:
                nodes.remove(node)
                self._warn(f"node {node} was client {seat} and now says that it is client {cid}")
                self._seat(seat)
        nodes = self._claims[cid]
        keys = {info.node_id: info.public_key for info in self._post.grid.get_nodes()}
        if (why := self._objection(node, cid, keys.get(node, b""))) is not None:
            self._warn(f"node {node} says that it is client {cid} and is rejected: {why}")
            self._reject(node)
        elif node not in nodes:
            nodes.append(node)
            if nodes[0] != node:
                self._warn(f"node {node} says that it is client {cid} and is rejected: node {nodes[0]} is")
            self._seat(cid)

    def _reject(self, node: int) -> None:
        self._rejected[node] = time.monotonic() + self._patience

    def _objection(self, node: int, cid: int, key: bytes) -> str | None:
        """Why a node with this key may not be this client; if it may, the seat belongs to its key from now on."""
        own = {seat for seat, owner in self._owners.items() if owner in (node, key or node)}
        if cid not in own if own else cid in self._owners:
            return "that seat is for another node"
        if self.taken is None or not key:
            return None
        mine, first = fingerprint(key), self.taken.setdefault(cid, fingerprint(key))
        if mine == first:
            return None
        if cid not in own:
            return "that seat belongs to the key that took it first; flower.seats reassigns it"
        self._warn(f"the seat of client {cid} is reassigned to node {node} by flower.seats")
        self.taken[cid] = mine
        return None

    def _seat(self, cid: int) -> None:
        """Report a seat that has changed to another node."""
        node, last = next(iter(self._claims[cid]), None), self._last.get(cid)
        if node is None or node == last:
            return
        log(INFO, "Client %d is node %d", cid, node)
        if last is not None:
            self._warn(f"client {cid} was node {last} and is node {node}")
        self._last[cid] = node


def fingerprint(key: bytes) -> int:
    """63 bits of a public key's hash."""
    return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") >> 1


def _partition_id(reply: Message, clients: int) -> int:
    given = [record["partition-id"] for record in reply.content.metric_records.values() if "partition-id" in record]
    cid = given[0] if len(given) == 1 else None
    if type(cid) is not int or not 0 <= cid < clients:
        raise ValueError(f"its partition-id is {cid}; clients are 0 to {clients - 1}")
    return cid


def error_of(reply: Message) -> str:
    """A node's error, in the same words as an error in a thread of this process."""
    reason = reply.error.reason or f"failed with code {reply.error.code}"
    raised = re.fullmatch(r"<class '(?:[\w.<>]+\.)?(\w+)'>:<'(.*)'>", reason, flags=re.DOTALL)
    return f"{raised[1]}: {raised[2]}" if raised else reason
