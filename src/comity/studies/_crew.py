"""Runs side by side: each in a process of its own, on a Ray cluster, or one after another in this process.

A process is fed one configuration after another through its standard input and answers in JSON lines. When the study
is killed, that input ends and the process ends with it; its run folder is as good as any that was killed.
"""

import json
import os
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from comity._errors import ComityError
from comity.config import Config
from comity.metrics import OWN
from comity.results import LOG, RoundRecord

Message = dict[str, Any]
"""``{"round": 3, "accuracy": 0.8}`` on the way; at the end ``{"end": "done"}``, ``{"end": "stopped"}`` or
``{"end": "failed", "error": ..., "traceback": ...}``."""


@dataclass(frozen=True, eq=False)
class Job:
    config: Config
    title: str
    needs: "Job | None" = None
    """What must be done before: the Local that this run is measured against."""
    callbacks: tuple[str, ...] = ()
    """Dotted names of ``Callback`` classes, which are made where the run is done."""

    @property
    def order(self) -> dict[str, Any]:
        """What ``work`` needs to know, in plain values."""
        return {"config": self.config.plain(), "callbacks": list(self.callbacks)}


Hear = Callable[[Job, Message], None]


class Worker(Protocol):
    """Who does one run after another somewhere, and tells of it by putting messages into an inbox."""

    tries: int
    """How often a run is begun whose worker is lost on the way."""

    def tell(self, order: Any) -> None:
        """A run's ``order``, or ``"stop"``."""

    def close(self) -> None:
        """It ends, whatever it is at."""


Inbox = SimpleQueue[tuple[Worker, Message]]
Hire = Callable[[Inbox], Worker]


class Crew:
    """Workers, hired when they are needed; they stay until the crew is closed, for it takes seconds to start one."""

    def __init__(self, hire: Hire) -> None:
        self.hire, self.inbox, self.idle = hire, Inbox(), list[Worker]()

    def worker(self) -> Worker:
        return self.idle.pop() if self.idle else self.hire(self.inbox)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


def execute(
    jobs: Sequence[Job], most: int, hear: Hear, stop: Callable[[], bool], crew: Crew | None
) -> dict[Job, Message]:
    """How each run ended; those that a stop kept from beginning are missing. Ready ones begin in their order.

    At most so many are done at a time, by workers of the crew; without a crew one after another, in this process.
    """
    ends: dict[Job, Message] = {}
    lost: Counter[Job] = Counter()
    waiting = list(jobs)

    def listen(job: Job, message: Message) -> None:
        if "end" in message:
            ends[job] = message
        hear(job, message)

    def following() -> Job | None:
        """The next run that may begin; those that wait for one that failed fail with it."""
        for job in list(waiting):
            before = None if job.needs is None or job.needs not in jobs else ends.get(job.needs, {"end": "waiting"})
            if before is None or before["end"] == "done":
                waiting.remove(job)
                return job
            if before["end"] == "failed":
                waiting.remove(job)
                listen(job, before | {"error": f"its Local failed: {before['error']}"})
        return None

    if crew is None:
        while not stop() and (job := following()):
            work(job.order, lambda message, job=job: listen(job, message), stop)  # type: ignore[misc]
        return ends
    busy: dict[Worker, Job] = {}
    told = False
    try:
        while True:
            while not stop() and (len(busy) < most) and (job := following()):
                worker = crew.worker()
                busy[worker] = job
                worker.tell(job.order)
            if not busy:
                return ends
            if stop() and not told:
                told = True
                for worker in busy:
                    worker.tell("stop")
            try:
                worker, message = crew.inbox.get(timeout=0.2)
            except Empty:
                continue
            if worker not in busy:  # it died while it had nothing to do
                crew.idle.remove(worker)
                worker.close()
                continue
            job = busy[worker]
            if "end" in message:
                del busy[worker]
                if message.get("gone"):
                    worker.close()
                    message = {"end": "stopped"} if stop() else message
                    lost[job] += 1
                    if lost[job] < worker.tries and not stop():
                        waiting.insert(0, job)
                        continue
                else:
                    crew.idle.append(worker)
            listen(job, message)
    finally:
        for worker in busy:
            worker.close()


def ray_address(on: str | None) -> tuple[bool, str | None]:
    """Whether runs are done on Ray, and where it is: ``ray``, ``ray:10.0.0.1:6379`` or ``ray://10.0.0.1:10001``."""
    if on is None:
        return False, None
    name, _, address = on.partition(":")
    if name != "ray":
        raise ComityError(f"on must be ray or ray:ADDRESS, got {on!r}")
    return True, on if address.startswith("//") else address or None


def work(order: dict[str, Any], tell: Callable[[Message], None], stop: Callable[[], bool]) -> None:
    """One run from where it was, with its end told whatever happens."""
    from comity.engine import Callback, Run, run

    class Tell(Callback):
        def on_round(self, run: Run, record: RoundRecord) -> None:
            own = record.metrics.get(OWN.key)
            tell({"round": record.round, "accuracy": own.mean if own is not None else None})

    try:
        callbacks = [Tell(), *order["callbacks"]]
        done = run(Config.of(order["config"]), resume=True, wait=True, callbacks=callbacks, stop=stop)
        tell({"end": "done" if done.done else "stopped"})
    except Exception as error:
        told = str(error) if isinstance(error, ComityError) else f"{type(error).__name__}: {error}"
        tell({"end": "failed", "error": told, "traceback": traceback.format_exc()})


def a_round(config: Config) -> tuple[float, float, float]:
    """Seconds to train and merge one round, to evaluate it, and to do so with S-acc and G-acc; without a guard."""
    from comity.engine import run

    quiet = {"track": (), "guard": None, "reference": "none", "out": None, "eval_every": 1}
    asked = count()
    done = run(config.with_(**quiet), stop=lambda: next(asked) > 0)
    seconds = copy(done.records[0].seconds)
    done.server.evaluate(general=True)
    return seconds.train + seconds.aggregate, seconds.evaluate, done.server.record.seconds.evaluate


class Process:
    """A process of this machine. One that dies (out of memory?) would die again."""

    tries = 1

    def __init__(self, inbox: Inbox, log: Path) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "comity.studies._worker"],  # -P: no module of the working directory's
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is the study's to answer
            )
        self.listener = Thread(target=self._listen, args=(inbox,), daemon=True)
        self.listener.start()

    def _listen(self, inbox: Inbox) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as answers:
            for line in answers:
                inbox.put((self, json.loads(line)))
        code = self.process.wait()
        error = f"the process ended with code {code}" + (" (killed; out of memory?)" if code == -9 else "")
        inbox.put((self, {"end": "failed", "gone": True, "error": error, "traceback": f"see {LOG}"}))

    def tell(self, order: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone, and _listen says so
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def close(self) -> None:
        """Its input ends, and so does the process, whatever it is at."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.listener.join()
