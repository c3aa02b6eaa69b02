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
from comity.engine import Link, Verb
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

    def of(self, verb: str) -> float:
        return self.verbs.get(verb, self.answer)


class GridLink(Link):
    """Clients are nodes of a Flower grid; which node is which client, each says itself (its ``partition-id``).

    Clients are numbered and sampled by their partition, so it does not matter which ids nodes were given, or in which
    order they came. A client without a node, one that fails and one that keeps silent are named in ``failures`` and
    the round goes on. Before each question new nodes are asked who they are: one that was started again is in again.
    """

    def __init__(
        self, grid: Grid, clients: int, run: str = "", patience: Patience | None = None, at_least: int | None = None
    ) -> None:
        super().__init__()
        self.grid, self.clients, self.run = grid, range(clients), run
        self.patience = patience or Patience()
        self.at_least = clients if at_least is None else at_least
        """How many clients must be there before the first question."""
        self._who: dict[int, int] = {}
        """The client of each node that said so, in the order in which they did."""
        self._queries: dict[str, tuple[int, float]] = {}
        """Nodes that were asked who they are, and until when they may say."""
        self._silent: set[int] = set()
        """Nodes that owe us an answer: they are asked who they are like others, but nobody waits for them."""
        self._refused: dict[int, float] = {}
        """Nodes that gave no good answer, and until when they are not asked again."""

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that is there: where there are two, the one that came last."""
        return {cid: node for node, cid in self._who.items()}

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        self._gather()
        nodes, limit, arrays = self.nodes, self.patience.of(verb.name), _wire.Arrays()
        header = _wire.Header(self.run, round)
        there = [cid for cid in questions if cid in nodes]
        waiting = self._push(
            {
                cid: Message(
                    _wire.question(header, questions[cid], arrays),
                    dst_node_id=nodes[cid],
                    message_type=_message_type(verb),
                    ttl=limit,
                    group_id=str(round),
                )
                for cid in there
            }
        )
        self.failures = {cid: "is not connected" for cid in questions if cid not in there}
        replies: dict[int, Payload] = {}
        raised = 0
        for reply in self._replies(waiting, limit):
            cid = waiting.pop(reply.metadata.reply_to_message_id)
            if reply.has_error():
                self.failures[cid] = _error(reply)
                raised += reply.error.code not in AWAY
                continue
            try:
                replies[cid] = _wire.read_answer(reply.content, verb.reply)
            except (KeyError, TypeError, ValueError) as error:
                self.failures[cid] = f"sent what cannot be read: {error}"
        for cid in waiting.values():
            self.failures[cid] = f"did not answer within {limit:g} s"
            del self._who[nodes[cid]]  # it has to say again who it is before it is trusted
            self._silent.add(nodes[cid])
        if not replies and (verb.name != "fit" or raised == len(questions)):
            # A round without anybody may pass; a question that the method cannot do without, or a method that fails
            # everywhere, may not.
            first = min(self.failures)
            raise ComityError(
                f"no client answered {verb.name!r} in round {round}; client {first}: {self.failures[first]}"
            )
        return replies

    def _push(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Message ids, each with whom it was for."""
        names = list(self.grid.push_messages(list(messages.values())))
        if len(names) != len(messages) or None in names:
            raise ComityError("the SuperLink did not take all messages; its log says why")
        return dict(zip(names, messages, strict=True))

    def _replies(self, waiting: Mapping[str, object], seconds: float) -> Iterator[Message]:
        """Replies as they come, until whoever takes them out of ``waiting`` misses none, or time is up."""
        until, pause = time.monotonic() + seconds, POLL[0]
        while waiting:
            came = [reply for reply in self.grid.pull_messages(list(waiting)) if _asked_for(reply, waiting)]
            yield from came
            if came:
                pause = POLL[0]
            elif (left := until - time.monotonic()) > 0:
                time.sleep(min(pause, left))
                pause = min(1.5 * pause, POLL[1])
            else:
                return

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
        for reply in self._replies(self._queries, 0):
            self._introduce(reply)
        online, now = set(self.grid.get_node_ids()), time.monotonic()
        self._who = {node: cid for node, cid in self._who.items() if node in online}
        self._silent &= online
        self._refused = {node: until for node, until in self._refused.items() if node in online and until > now}
        self._queries = {name: (node, u) for name, (node, u) in self._queries.items() if node in online and u > now}
        asked = {node for node, _ in self._queries.values()}
        self._ask_who(online - self._who.keys() - asked - self._refused.keys())
        awaited = [until for node, until in self._queries.values() if node not in self._silent]
        for reply in self._replies(self._queries, max(awaited, default=now) - now):
            self._introduce(reply)
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

    def _introduce(self, reply: Message) -> None:
        node, _ = self._queries.pop(reply.metadata.reply_to_message_id)
        self._silent.discard(node)
        if reply.has_error():
            wrong = _error(reply)
        else:
            cid = next((record.get("partition-id") for record in reply.content.metric_records.values()), None)
            if cid in self.clients:
                assert isinstance(cid, int)
                log(INFO, "Client %d is node %d", cid, node)
                self._who[node] = cid
                return
            wrong = f"its partition-id is {cid}; clients are 0 to {len(self.clients) - 1}"
        log(WARNING, "Node %d takes no part: %s", node, wrong)
        self._refused[node] = time.monotonic() + self.patience.query


def _message_type(verb: Verb) -> str:
    return MessageType.EVALUATE if verb.name == "evaluate" else f"{MessageType.TRAIN}.{verb.name}"


def _asked_for(reply: Message, waiting: Mapping[str, object]) -> bool:
    return reply.metadata.reply_to_message_id in waiting


def _error(reply: Message) -> str:
    """A node's error in the words that a thread's would have."""
    reason = reply.error.reason or f"failed with code {reply.error.code}"
    raised = re.fullmatch(r"<class '(?:[\w.<>]+\.)?(\w+)'>:<'(.*)'>", reason, flags=re.DOTALL)
    return f"{raised[1]}: {raised[2]}" if raised else reason
