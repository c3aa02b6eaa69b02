"""The server's link over a Flower grid."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import NamedTuple

from flwr.app import Message, MessageType
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import log

from comity._errors import ComityError
from comity.engine import Link, Verb, brief
from comity.flower import _wire
from comity.flower._seats import POLL, Post, Seats, error_of
from comity.methods import Payload

AWAY = ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE
"""Errors that the SuperLink reports about a node; all others are the app's own."""


SEATS = 2**32
"""Larger than any number of clients."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Timeouts, in seconds."""

    answer: float = 3600.0
    """For the answer to any verb."""
    verbs: Mapping[str, float] = field(default_factory=dict)
    """For the answer to a verb with its own limit."""
    query: float = 120.0
    """For a new node to report which client it is."""
    start: float = 600.0
    """For enough clients to connect before the first question, and later for any client."""
    absent: float = 0.0
    """For a disconnected client, or one that left during a question, to connect and be asked (again)."""

    def of(self, verb: str) -> float:
        return self.verbs.get(verb, self.answer)


class Failure(NamedTuple):
    """Why a client gave no usable answer."""

    why: str
    away: bool = False
    """Whether it is disconnected, and may be asked again."""
    raised: bool = False
    """Whether the app itself failed."""


class Progress:
    """The server's count of its questions."""

    def __init__(self) -> None:
        self.step = self.saved = 0
        self.starts = [(time.time_ns(), 0)]
        """Each start of the server, with the last question before it."""

    def next(self, run: str) -> _wire.Place:
        """The place of a new question."""
        self.step += 1
        starts, begun = zip(*self.starts, strict=True)
        return _wire.Place(run, self.step, self.saved, starts, begun)

    def numbers(self) -> list[int]:
        """The numbers for a checkpoint."""
        return [self.step, *(number for start in self.starts for number in start)]

    def resume(self, numbers: list[int]) -> None:
        """Continue from a checkpoint with these ``numbers``."""
        if len(numbers) < 3 or len(numbers) % 2 == 0:
            raise ComityError("what the clients of this run kept is not at the sites: it was not on Flower")
        self.step = self.saved = numbers[0]
        earlier = zip(numbers[1::2], numbers[2::2], strict=True)
        self.starts = [*earlier, (max(numbers[-2] + 1, self.starts[-1][0]), self.step)]


class GridLink(Link):
    """Clients as nodes of a Flower grid; each node reports which client it is (its ``partition-id``).

    Clients are numbered and sampled by their partition, so node ids and their order of arrival do not matter. Clients
    without a node, failed clients and those that do not answer are listed in ``failures``, and the round continues.
    Before each question new nodes are asked who they are, so a restarted node takes part again. `Seats` explains which
    node may be which client, and ``owners``.
    """

    def __init__(
        self,
        grid: Grid,
        clients: int,
        run: str = "",
        patience: Patience | None = None,
        at_least: int | None = None,
        owners: Mapping[int, int | bytes] | None = None,
        along: list[float] | None = None,
        taken: dict[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.along = [] if along is None else along
        self.clients, self.run = range(clients), run
        self.patience = patience or Patience()
        self.at_least = clients if at_least is None else at_least
        """Number of clients that must be connected before the first question."""
        self._post, self._progress = Post(grid), Progress()
        self._seats = Seats(self._post, clients, dict(owners or {}), self.patience.query, self._warn, taken)
        self._answered: set[str] = set()
        """Verbs that any client has answered."""
        self._largest = 0
        """Bytes of the largest question so far; it bounds replies, because a masked sum is as long as a model."""

    @property
    def nodes(self) -> dict[int, int]:
        """The node of each client that is connected and owes no answer."""
        return self._seats.nodes

    def place(self) -> list[int]:
        """The numbers of the progress, and a negative one for each taken seat."""
        taken = self._seats.taken or {}
        return [*self._progress.numbers(), *(-1 - (key * SEATS + cid) for cid, key in sorted(taken.items()))]

    def saved(self) -> None:
        self._progress.saved = self._progress.step

    def resume_at(self, place: list[int]) -> None:
        self._progress.resume([number for number in place if number >= 0])
        if self._seats.taken is not None:
            pairs = (divmod(-1 - number, SEATS) for number in place if number < 0)
            self._seats.taken |= {cid: key for key, cid in pairs if cid in self.clients}

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        header = _wire.Header(self.run, round, self._progress.next(self.run_id), tuple(self.along))
        self._largest = max([self._largest, *(question.bytes for question in questions.values())])
        outcomes: dict[int, Payload | Failure] = {}
        missing, until = dict(questions), time.monotonic() + self.patience.absent
        while True:
            self._gather()
            outcomes |= self._ask(verb, missing, header)
            failures = {cid: outcome for cid, outcome in outcomes.items() if isinstance(outcome, Failure)}
            missing = {cid: questions[cid] for cid, failure in failures.items() if failure.away}
            if not missing or time.monotonic() > until:
                break
            time.sleep(POLL[1])
        self.failures = {cid: failure.why for cid, failure in failures.items()}
        replies = {cid: outcome for cid, outcome in outcomes.items() if not isinstance(outcome, Failure)}
        if replies:
            self._answered.add(verb.name)
        elif self._is_hopeless(verb, failures):
            first = min(failures)
            raise ComityError(
                f"no client answered {verb.name!r} in round {round}; client {first}: {brief(failures[first].why)}"
            )
        return replies

    def _ask(self, verb: Verb, questions: Mapping[int, Payload], header: _wire.Header) -> dict[int, Payload | Failure]:
        """Ask the connected clients once."""
        nodes, limit, arrays = self.nodes, self.patience.of(verb.name), _wire.Arrays()
        kind = MessageType.EVALUATE if verb.name == "evaluate" else f"{MessageType.TRAIN}.{verb.name}"
        outcomes: dict[int, Payload | Failure] = {
            cid: Failure("is not connected", away=True) for cid in questions if cid not in nodes
        }
        messages = {
            cid: Message(
                _wire.question(header, question, arrays),
                dst_node_id=nodes[cid],
                message_type=kind,
                ttl=limit,
                group_id=str(header.round),
            )
            for cid, question in questions.items()
            if cid in nodes
        }
        waiting = self._post.push(messages)
        for name, reply in self._post.replies(waiting, limit):
            outcomes[waiting.pop(name)] = self._read(reply, verb)
        for cid in waiting.values():
            outcomes[cid] = Failure(f"did not answer within {limit:g} s")
            self._seats.silence(nodes[cid])
        return outcomes

    def _read(self, reply: Message | Exception, verb: Verb) -> Payload | Failure:
        try:
            if isinstance(reply, Exception):
                raise reply
            if reply.has_error():
                away = reply.error.code in AWAY
                return Failure(error_of(reply), away=away, raised=not away)
            return _wire.read_answer(reply.content, verb.reply, _wire.most_bytes(self._largest))
        except Exception as error:  # untrusted content fails only this client
            return Failure(f"sent an unreadable reply: {brief(error)}")

    def _is_hopeless(self, verb: Verb, failures: Mapping[int, Failure]) -> bool:
        """Whether to give up if no client has answered.

        A round without any client may pass, and so may one whose only client fails. A question that the method cannot
        do without, or a method that fails on all clients from the start, ends the run.
        """
        if len(failures) == 1 < len(self.clients):
            return False
        everywhere = all(failure.raised for failure in failures.values())
        return verb.name != "fit" or (everywhere and verb.name not in self._answered)

    def _gather(self) -> None:
        """Wait for enough clients before the first question, and later for any client."""
        until = time.monotonic() + self.patience.start
        while True:
            self._seats.look()
            if len(self.nodes) >= self.at_least:
                self.at_least = 1
                return
            if time.monotonic() > until:
                raise ComityError(
                    f"{len(self.nodes)} of {len(self.clients)} clients are connected after {self.patience.start:g} s; "
                    f"{self.at_least} were waited for"
                )
            time.sleep(POLL[1])

    def _warn(self, words: str) -> None:
        log(WARNING, "%s", words)
        self.warnings.append(words)
