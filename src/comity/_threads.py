"""The same bits with one thread or eight: a sum that is split over threads is another sum."""

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
    """Inside, the linear algebra of this thread is not split; yields how many threads it had before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)


def in_order(work: Callable[[Task], Result], tasks: Sequence[Task], threads: int | None = None) -> Iterator[Result]:
    """``work`` of every task, unsplit, on as many threads as torch has here; results in the order of the tasks.

    Of what is done or under way at most two for each thread wait to be taken, so that results do not pile up.
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
