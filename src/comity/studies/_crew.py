"""Run jobs in parallel: in processes of this machine, as tasks on a Ray cluster, or in this process."""

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from comity._errors import ComityError
from comity.config import Config
from comity.metrics import OWN
from comity.results import RoundRecord

if TYPE_CHECKING:
    from comity.engine import RunPlan

Message = dict[str, Any]
"""``{"round": 3, "accuracy": 0.8}`` after a round; at the end ``{"end": "done"}``, ``{"end": "stopped"}`` or
``{"end": "failed", "error": ..., "traceback": ...}``, with ``gone`` if the worker died."""


@dataclass(frozen=True, eq=False)
class Job:
    config: Config
    title: str
    needs: "tuple[Job, ...]" = ()  # local baselines that must be done before this run
    callbacks: tuple[str, ...] = ()  # dotted names of `Callback` classes, created in the process of the run

    @property
    def order(self) -> dict[str, Any]:
        """The arguments of ``work`` as plain values."""
        return {"config": self.config.plain(), "callbacks": list(self.callbacks)}


class Worker(Protocol):
    """Does one run after another and puts messages about them into an inbox."""

    tries: int  # how often a run is started if its worker dies

    def tell(self, order: Any) -> None:
        """Send a run's ``order``, or ``"stop"``."""

    def close(self) -> None:
        """End the worker, whatever it is doing."""


Inbox = SimpleQueue[tuple[Worker, Message]]


class Crew:
    """A pool of workers, started when needed and kept until the crew is closed, because starting one takes seconds."""

    def __init__(self, hire: Callable[[Inbox], Worker]) -> None:
        self.hire, self.inbox, self.idle = hire, Inbox(), list[Worker]()

    def worker(self) -> Worker:
        return self.idle.pop() if self.idle else self.hire(self.inbox)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


def execute(
    jobs: Sequence[Job],
    most: int,
    hear: Callable[[Job, Message], None],
    stop: Callable[[], bool],
    crew: Crew | None,
    plan_of: "Callable[[Config], RunPlan] | None" = None,
) -> dict[Job, Message]:
    """Do the runs in order and return the outcome of each run that was started.

    The crew does at most ``most`` at a time. Without a crew this process does them, with the plans of ``plan_of``.
    """
    ends: dict[Job, Message] = {}
    waiting, lost = list(jobs), Counter[Job]()

    def listen(job: Job, message: Message) -> None:
        if "end" in message:
            ends[job] = message
        hear(job, message)

    def following() -> Job | None:
        """The next run that may start; a run whose Local failed fails too."""
        for job in list(waiting):
            before = [ends.get(needed, {"end": "waiting"}) for needed in job.needs]
            if failed := next((each for each in before if each["end"] == "failed"), None):
                waiting.remove(job)
                listen(job, failed | {"error": f"its local baseline failed: {failed['error']}"})
            elif all(each["end"] == "done" for each in before):
                waiting.remove(job)
                return job
        return None

    if crew is None:
        while not stop() and (job := following()):
            work(job.order, lambda message, job=job: listen(job, message), stop, plan_of)  # type: ignore[misc]
        return ends
    busy: dict[Worker, Job] = {}
    stopping = False
    try:
        while True:
            while not stop() and len(busy) < most and (job := following()):
                worker = crew.worker()
                busy[worker] = job
                worker.tell(job.order)
            if not busy:
                return ends
            if stop() and not stopping:
                stopping = True
                for worker in busy:
                    worker.tell("stop")
            try:
                worker, message = crew.inbox.get(timeout=0.2)
            except Empty:
                continue
            if worker not in busy:  # it died while idle
                crew.idle.remove(worker)
                worker.close()
                continue
            job = busy[worker]
            if message.get("gone"):
                del busy[worker]
                worker.close()
                lost[job] += 1
                if lost[job] < worker.tries and not stop():
                    waiting.insert(0, job)
                    continue
                message = {"end": "stopped"} if stop() else message
            elif "end" in message:
                crew.idle.append(worker)
                del busy[worker]
            listen(job, message)
    finally:
        for worker in busy:
            worker.close()


def work(
    order: dict[str, Any],
    tell: Callable[[Message], None],
    stop: Callable[[], bool],
    plan_of: "Callable[[Config], RunPlan] | None" = None,
) -> None:
    """Do or resume one run, and report its end even if it fails."""
    from comity.engine import Callback, Run, RunPlan, run

    class Tell(Callback):
        def on_round(self, run: Run, record: RoundRecord) -> None:
            own = record.metrics.get(OWN.key)
            tell({"round": record.round, "accuracy": own.mean if own is not None else None})

    try:
        plan = (plan_of or RunPlan)(Config.of(order["config"]))
        done = run(plan=plan, resume=True, wait=True, callbacks=[Tell(), *order["callbacks"]], stop=stop)
        tell({"end": "done" if done.done else "stopped"})
    except Exception as error:
        tell({"end": "failed", "error": reason(error), "traceback": traceback.format_exc()})


def reason(error: Exception) -> str:
    return str(error) if isinstance(error, ComityError) else f"{type(error).__name__}: {error}"
