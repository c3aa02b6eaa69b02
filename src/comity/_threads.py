"""The same bits with any number of threads: splitting a sum over threads changes its rounding."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")


@contextmanager
def one_thread() -> Iterator[int]:
    """Run this thread's linear algebra unsplit inside the block; yields the previous number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[Task], Result], tasks: Sequence[Task], threads: int | None = None) -> Iterator[Result]:
    """Apply ``work`` to every task, unsplit, on ``threads`` threads (default torch's); yields results in order.

    At most two results per thread are buffered.
    """
    with one_thread() as usual:
        threads = threads or usual
        if threads == 1 or len(tasks) == 1:
            yield from map(work, tasks)
            return
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for task in tasks:
                    if len(waiting) == 2 * threads:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(work, task))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()
