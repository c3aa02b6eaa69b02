"""Sending messages over a Flower grid and collecting the replies."""

import re
import time
from collections.abc import Iterator, Mapping
from logging import WARNING
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore import log

from comity._errors import ComityError
from comity.engine import brief

K = TypeVar("K")

POLL = 0.005, 1.0
"""Seconds between two polls for replies, at first and at most. Flower's own ``send_and_receive`` polls every 3 s."""


class Post:
    """Pushes messages and yields replies as they arrive."""

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


def error_of(reply: Message) -> str:
    """A node's error, worded as the same error in a thread of this process."""
    reason = reply.error.reason or f"failed with code {reply.error.code}"
    raised = re.fullmatch(r"<class '(?:[\w.<>]+\.)?(\w+)'>:<'(.*)'>", reason, flags=re.DOTALL)
    return f"{raised[1]}: {raised[2]}" if raised else reason
