"""Numbers of a server's questions, by which a client finds the state that a question starts from."""

import time
from typing import NamedTuple

from comity._errors import ComityError


class Place(NamedTuple):
    """Where in a run a question is asked."""

    run: str = ""
    """The run's id, which stays the same when the server resumes it."""
    step: int = 1
    """The question's number."""
    saved: int = 0
    """The last question before the newest checkpoint."""
    starts: tuple[int, ...] = (0,)
    """When the server was started and restarted; the last start asks this question."""
    begun: tuple[int, ...] = (0,)
    """For each start, the last question before the checkpoint that it resumed from."""

    def follows(self, start: int, step: int) -> bool:
        """Whether question ``step`` of the server's ``start`` is part of this question's history.

        Of an earlier start, only questions before the checkpoint from which the next start resumed are.
        """
        if start not in self.starts:
            return False
        later = self.starts.index(start) + 1
        return step < self.step if later == len(self.starts) else step <= self.begun[later]


class Progress:
    """The server's own count of its questions."""

    def __init__(self) -> None:
        self.step = self.saved = 0
        self.starts = [(time.time_ns(), 0)]
        """Each start of the server, with the last question before it."""

    def next(self, run: str) -> Place:
        """The place of a new question."""
        self.step += 1
        starts, begun = zip(*self.starts, strict=True)
        return Place(run, self.step, self.saved, starts, begun)

    def numbers(self) -> list[int]:
        """For a checkpoint."""
        return [self.step, *(number for start in self.starts for number in start)]

    def resume(self, numbers: list[int]) -> None:
        """Continue from a checkpoint with these ``numbers``."""
        if len(numbers) < 3 or len(numbers) % 2 == 0:
            raise ComityError("what the clients of this run kept is not at the sites: it was not on Flower")
        self.step = self.saved = numbers[0]
        earlier = zip(numbers[1::2], numbers[2::2], strict=True)
        self.starts = [*earlier, (max(numbers[-2] + 1, self.starts[-1][0]), self.step)]
