"""Clients that train as one although each runs a method's own code.

Every client of a group works in a thread of its own. Only one of these threads runs at a time. A client that calls
``client.sgd`` pauses there; when all that are left have paused, their trainings are done as one.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from comity.engine._trainer import Trainer, TrainingRequest, train_as_one


class ClientThread:
    """One client's work, as a thread that runs until it is done or the client asks to be trained.

    To that client it is the trainer.
    """

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[Trainer], None]) -> None:
        self.request: TrainingRequest | None = None
        """The training that the client waits for; ``None`` when its work is done."""
        self.loss = math.nan
        self.error: Exception | None = None
        self._may_run, self._has_paused = Lock(), Lock()
        self._may_run.acquire()
        self._has_paused.acquire()
        self._end = pool.submit(self._run, work)

    def _run(self, work: Callable[[Trainer], None]) -> None:
        self._may_run.acquire()
        try:
            work(self)
        finally:
            self.request = None
            self._has_paused.release()

    def resume(self) -> None:
        """Let the client work until it pauses or is done."""
        self._may_run.release()
        self._has_paused.acquire()
        if self.request is None:
            self._end.result()

    def train(self, request: TrainingRequest) -> float:
        self.request = request
        self._has_paused.release()
        self._may_run.acquire()
        if self.error is not None:
            raise self.error
        return self.loss


def work_together(pool: ThreadPoolExecutor, works: Sequence[Callable[[Trainer], None]]) -> None:
    """Do all works in turn; whenever all that are left wait for training, they are trained as one."""
    threads = [ClientThread(pool, work) for work in works]
    while threads:
        for thread in threads:
            thread.resume()
        threads = [thread for thread in threads if thread.request is not None]
        kinds: dict[tuple[object, ...], list[tuple[ClientThread, TrainingRequest]]] = defaultdict(list)
        for thread in threads:
            if thread.request is not None:
                kinds[thread.request.kind].append((thread, thread.request))
        for waiting in kinds.values():
            try:
                losses = train_as_one([request for _, request in waiting])
                for (thread, _), loss in zip(waiting, losses, strict=True):
                    thread.loss, thread.error = loss, None
            except Exception as error:  # each client fails with it; otherwise it would wait for ever
                for thread, _ in waiting:
                    thread.error = error
