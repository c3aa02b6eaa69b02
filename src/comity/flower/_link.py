"""The server's questions over a Flower grid."""

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from comity._errors import ComityError
from comity.engine import Link, Verb, brief
from comity.flower import _wire
from comity.methods import Payload

POLL = 0.005, 1.0
"""Seconds between two looks for replies, at first and at most. Flower's own ``send_and_receive`` looks every 3."""
AWAY = ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE
"""Errors that the SuperLink reports of a node; all others are the app's own."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait, in seconds."""

    answer: float = 3600.0
    """For an answer to any verb."""
    verbs: Mapping[str, float] = field(default_factory=dict)
    """For an answer to this verb, where it is another."""
    query: float = 120.0
    """For a node that has just appeared to say which client it is."""
    start: float = 600.0
    """For enough clients to be there at first, and later on for anybody at all."""
    absent: float = 0.0
    """For a client that is not there, or that left with its question, to come and be asked (again)."""

    def of(self, verb: str) -> float:
        return self.verbs.get(verb, self.answer)


class GridLink(Link):
    """Clients are nodes of a Flower grid; which node is which client, each says itself (its ``partition-id``).

    Clients are numbered and sampled by their partition, so it does not matter which ids nodes were given, or in which
    order they came. A client without a node, one that fails and one that keeps silent are named in ``failures`` and
    the round goes on. Before each question new nodes are asked who they are: one that was started again is in again.

    Who says first that it is client 3 has that seat for as long as it is online; others who say so are refused. With
    ``owners`` a seat is for one node alone, by its id or its public key (PEM, as Flower has it).
    """

    def __init__(
        self,
        grid: Grid,
        clients: int,
        run: str = "",
        patience: Patience | None = None,
        at_least: int | None = None,
        owners: Mapping[int, int | bytes] | None = None,
    ) -> None:
        super().__init__()
        self.grid, self.clients, self.run = grid, range(clients), run
        self.patience = patience or Patience()
        self.at_least = clients if at_least is None else at_least
        """How many clients must be there before the first question."""
        self.owners = dict(owners or {})
        """Which node alone may be this client, where that is settled."""
        if strange := sorted(self.owners.keys() - set(self.clients)):
            raise ComityError(f"a seat is settled for client {strange[0]}; clients are 0 to {clients - 1}")
        self._seats: dict[int, int] = {}
        """The node of each client, for as long as it is online."""
        self._last: dict[int, int] = {}
        """The node that each client had last."""
        self._claims: dict[int, int] = {}
        """Nodes that say they are a client whose seat another one has, in the order in which they said so."""
        self._queries: dict[str, tuple[int, float]] = {}
        """Nodes that were asked who they are, and until when they may say."""
        self._silent: set[int] = set()
        """Nodes that owe us an answer: they are asked who they are like others, but nobody waits for them."""
        self._refused: dict[int, float] = {}
        """Nodes that gave no good answer, and until when they are not asked again."""
        self._answered: set[str] = set()
        """Verbs that somebody has answered."""
        self._step = self._saved = 0
        """The newest question's number, and that of the last one before the newest checkpoint."""
        self._starts = [(time.time_ns(), 0)]
        """When this run was started, and started again, each with the last question before that."""
        self._largest = 0
        """Bytes of the largest question so far, which a reply's bound goes by: a masked sum is as long as a model."""
        self._singly = False
        """Whether replies are fetched one by one, so that one that Flower cannot read takes no other with it."""

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that is there and does not owe an answer."""
        return {cid: node for cid, node in self._seats.items() if node not in self._silent}

    # Where the run is: clients keep what they keep themselves, and have to find the right state after a restart.

    def place(self) -> list[int]:
        return [self._step, *(number for start in self._starts for number in start)]

    def saved(self) -> None:
        self._saved = self._step

    def go_on(self, place: list[int]) -> None:
        if len(place) < 3 or len(place) % 2 == 0:
            raise ComityError("what the clients of this run kept is not at the sites: it was not on Flower")
        self._step = self._saved = place[0]
        earlier = zip(place[1::2], place[2::2], strict=True)
        self._starts = [*earlier, (max(place[-2] + 1, self._starts[-1][0]), self._step)]

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        self._step += 1
        starts, begun = zip(*self._starts, strict=True)
        header = _wire.Header(self.run, round, _wire.Place(self.run_id, self._step, self._saved, starts, begun))
        replies: dict[int, Payload] = {}
        self._largest = max([self._largest, *(question.bytes for question in questions.values())])
        missing, raised, until = dict(questions), 0, time.monotonic() + self.patience.absent
        self.failures = {}
        while True:
            self._gather()
            away, failed = self._ask_those_there(verb, missing, header, replies)
            raised += failed
            missing = {cid: questions[cid] for cid in away}
            if not missing or time.monotonic() > until:
                break
            time.sleep(POLL[1])
        if replies:
            self._answered.add(verb.name)
        elif self._hopeless(verb, questions, raised):
            first = min(self.failures)
            raise ComityError(
                f"no client answered {verb.name!r} in round {round}; client {first}: {brief(self.failures[first])}"
            )
        return replies

    def _ask_those_there(
        self, verb: Verb, questions: Mapping[int, Payload], header: _wire.Header, replies: dict[int, Payload]
    ) -> tuple[list[int], int]:
        """Add the ``replies`` of clients that are there; who is away, and how many failed in the app itself."""
        nodes, limit, arrays = self.nodes, self.patience.of(verb.name), _wire.Arrays()
        away = [cid for cid in questions if cid not in nodes]
        waiting = self._push(
            {
                cid: Message(
                    _wire.question(header, questions[cid], arrays),
                    dst_node_id=nodes[cid],
                    message_type=_message_type(verb),
                    ttl=limit,
                    group_id=str(header.round),
                )
                for cid in questions
                if cid in nodes
            }
        )
        self.failures |= dict.fromkeys(away, "is not connected")
        raised = 0
        for name, reply in self._replies(waiting, limit):
            cid = waiting.pop(name)
            try:
                if isinstance(reply, Exception):
                    raise reply
                if not reply.has_error():
                    most = _wire.most_bytes(self._largest)
                    replies[cid] = _wire.read_answer(reply.content, verb.reply, most)
                    self.failures.pop(cid, None)
                    continue
                self.failures[cid] = _error(reply)
                if reply.error.code in AWAY:
                    away.append(cid)
                else:
                    raised += 1
            except Exception as error:  # whatever a stranger sent, it is this client's failure alone
                self.failures[cid] = f"sent what cannot be read: {brief(error)}"
        for cid in waiting.values():
            self.failures[cid] = f"did not answer within {limit:g} s"
            self._silent.add(nodes[cid])  # it has to say again who it is before it is asked again
        return away, raised

    def _hopeless(self, verb: Verb, questions: Mapping[int, Payload], raised: int) -> bool:
        """Whether to give up when nobody answers.

        A round without anybody may pass, and so may one whose only client fails. A question that the method cannot do
        without, or a method that fails everywhere, may not.
        """
        if len(questions) == 1 < len(self.clients):
            return False
        return verb.name != "fit" or (raised == len(questions) and verb.name not in self._answered)

    def _push(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Message ids, each with whom it was for."""
        names = list(self.grid.push_messages(list(messages.values())))
        if len(names) != len(messages) or None in names:
            raise ComityError("the SuperLink did not take all messages; its log says why")
        return dict(zip(names, messages, strict=True))

    def _replies(self, waiting: Mapping[str, object], seconds: float) -> Iterator[tuple[str, Message | Exception]]:
        """Replies as they come, until whoever takes them out of ``waiting`` misses none, or time is up."""
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
        """What has arrived; an exception where Flower itself cannot read a reply."""
        if not self._singly:
            try:
                return [(reply.metadata.reply_to_message_id, reply) for reply in self.grid.pull_messages(names)]
            except Exception as error:
                log(WARNING, "A reply cannot be read; from here on each is fetched by itself: %s", brief(error))
                self._singly = True
        came: list[tuple[str, Message | Exception]] = []
        for name in names:
            try:
                came += [(name, reply) for reply in self.grid.pull_messages([name])]
            except Exception as error:
                came.append((name, error))
        return came

    # Who is there.

    def _gather(self) -> None:
        """Find out which nodes there are; wait for enough of them at first, and later on for anybody at all."""
        until = time.monotonic() + self.patience.start
        while True:
            self._look()
            if len(self.nodes) >= self.at_least:
                self.at_least = 1
                return
            if time.monotonic() > until:
                raise ComityError(
                    f"{len(self.nodes)} of {len(self.clients)} clients are connected after {self.patience.start:g} s; "
                    f"{self.at_least} were waited for"
                )
            time.sleep(POLL[1])

    def _look(self) -> None:
        for name, reply in self._replies(self._queries, 0):
            self._introduce(name, reply)
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        self._seats = {cid: node for cid, node in self._seats.items() if node in online}
        self._claims = {node: cid for node, cid in self._claims.items() if node in online}
        for node, cid in list(self._claims.items()):
            if cid not in self._seats:
                del self._claims[node]
                self._seat(cid, node)
        self._silent &= online
        self._refused = {node: until for node, until in self._refused.items() if node in online and until > now}
        self._queries = {name: (node, u) for name, (node, u) in self._queries.items() if node in online and u > now}
        asked = {node for node, _ in self._queries.values()}
        self._ask_who(online - set(self.nodes.values()) - asked - self._refused.keys() - self._claims.keys())
        awaited = [until for node, until in self._queries.values() if node not in self._silent]
        for name, reply in self._replies(self._queries, max(awaited, default=now) - now):
            self._introduce(name, reply)
            if not any(node not in self._silent for node, _ in self._queries.values()):
                break
        self._silent |= {node for node, _ in self._queries.values()}

    def _ask_who(self, nodes: set[int]) -> None:
        wait = self.patience.query
        questions = {
            node: Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY, ttl=wait) for node in nodes
        }
        if questions:
            until = time.monotonic() + wait
            self._queries |= {name: (node, until) for name, node in self._push(questions).items()}

    def _introduce(self, name: str, reply: Message | Exception) -> None:
        node, _ = self._queries.pop(name)
        self._silent.discard(node)
        try:
            if isinstance(reply, Exception):
                raise reply
            if not reply.has_error():
                self._claim(node, _partition_id(reply, len(self.clients)))
                return
            wrong = _error(reply)
        except Exception as error:
            wrong = str(error)
        log(WARNING, "Node %d takes no part: %s", node, brief(wrong))
        self._refused[node] = time.monotonic() + self.patience.query

    def _claim(self, node: int, cid: int) -> None:
        """A node says which client it is."""
        for seat in [seat for seat, its in self._seats.items() if its == node and seat != cid]:
            del self._seats[seat]
            self._warn(f"node {node} was client {seat} and now says that it is client {cid}")
        if not self._may_be(node, cid):
            self._warn(f"node {node} says that it is client {cid} and is refused: that seat is for another node")
            self._refused[node] = time.monotonic() + self.patience.query
        elif self._seats.get(cid, node) != node:
            self._warn(f"node {node} says that it is client {cid} and is refused: node {self._seats[cid]} is")
            self._claims[node] = cid
        else:
            self._seat(cid, node)

    def _may_be(self, node: int, cid: int) -> bool:
        if not self.owners:
            return True
        keys = {info.node_id: info.public_key for info in self.grid.get_nodes()}
        own = {seat for seat, owner in self.owners.items() if owner in (node, keys.get(node) or node)}
        return cid in own if own else cid not in self.owners

    def _seat(self, cid: int, node: int) -> None:
        if self._seats.get(cid) == node:
            return
        self._seats[cid] = node
        log(INFO, "Client %d is node %d", cid, node)
        if self._last.get(cid, node) != node:
            self._warn(f"client {cid} was node {self._last[cid]} and is node {node}")
        self._last[cid] = node

    def _warn(self, words: str) -> None:
        log(WARNING, "%s", words)
        self.warnings.append(words)


def _partition_id(reply: Message, clients: int) -> int:
    given = [record["partition-id"] for record in reply.content.metric_records.values() if "partition-id" in record]
    cid = given[0] if len(given) == 1 else None
    if type(cid) is not int or not 0 <= cid < clients:
        raise ValueError(f"its partition-id is {cid}; clients are 0 to {clients - 1}")
    return cid


def _message_type(verb: Verb) -> str:
    return MessageType.EVALUATE if verb.name == "evaluate" else f"{MessageType.TRAIN}.{verb.name}"


def _error(reply: Message) -> str:
    """A node's error in the words that a thread's would have."""
    reason = reply.error.reason or f"failed with code {reply.error.code}"
    raised = re.fullmatch(r"<class '(?:[\w.<>]+\.)?(\w+)'>:<'(.*)'>", reason, flags=re.DOTALL)
    return f"{raised[1]}: {raised[2]}" if raised else reason
