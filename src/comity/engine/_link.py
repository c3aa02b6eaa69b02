"""How the server's questions reach the clients, and what that costs."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from torch import Tensor

from comity.engine._site import Site
from comity.methods import Payload
from comity.nn import Model


def size_of(payload: Payload) -> int:
    """Bytes of a message's tensors. Plain numbers (a size, a loss) ride in its header and are not counted."""
    return sum(value.numel() * value.element_size() for value in payload.values() if isinstance(value, Tensor))


class Link(ABC):
    """Carries verbs to clients. ``failures`` names the clients that did not answer the last question, and why."""

    clients: Sequence[int]

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}
        self.traffic: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """Bytes down and up, by verb."""

    def ask(
        self, verb: str, payloads: Mapping[int, Payload], round: int, lost: Collection[int] = ()
    ) -> dict[int, Payload]:
        """Have each client do ``verb``; answers by client, in order. Those ``lost`` do the work but never answer."""
        self.failures = {}
        replies = self.deliver(verb, payloads, round)
        answers = {cid: replies[cid] for cid in sorted(replies) if cid not in lost}
        self.traffic[verb][0] += sum(size_of(payload) for payload in payloads.values())
        self.traffic[verb][1] += sum(size_of(reply) for reply in answers.values())
        return answers

    @abstractmethod
    def deliver(self, verb: str, payloads: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        """Replies of the clients that answered; the others go into ``failures``."""

    def states(self) -> dict[int, dict[str, Tensor]]:
        """What clients keep, where this link can see it: for a checkpoint."""
        return {}

    def restore(self, states: dict[int, dict[str, Tensor]]) -> None:
        """Give clients back what they kept."""


class Threads(Link):
    """Clients are jobs for a few threads of this process: one model a thread, one set of tensors a client."""

    def __init__(self, site: Site, workers: int) -> None:
        super().__init__()
        self.site = site
        self.clients = range(len(site.federation.clients))
        self.keeps: dict[int, dict[str, Tensor]] = {}
        self.workers = max(1, min(workers, len(self.clients)))
        self.models: SimpleQueue[Model] = SimpleQueue()
        for _ in range(self.workers):
            self.models.put(site.model())

    def deliver(self, verb: str, payloads: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        # The largest first, so that no thread is left with a long job at the end.
        order = sorted(payloads, key=lambda cid: -len(self.site.federation.clients[cid].train))
        with ThreadPoolExecutor(self.workers) as pool:
            jobs = {cid: pool.submit(self._work, cid, verb, payloads[cid], round) for cid in order}
        replies = {cid: job.result() for cid, job in jobs.items() if job.exception() is None}
        self.failures = {cid: _told(job) for cid, job in jobs.items() if job.exception() is not None}
        if self.failures and not replies:
            raise next(error for job in jobs.values() if (error := job.exception()) is not None)
        return replies

    def _work(self, cid: int, verb: str, payload: Payload, round: int) -> Payload:
        model = self.models.get()
        try:
            reply, self.keeps[cid] = self.site.work(model, cid, self.keeps.get(cid), verb, payload, round)
            return reply
        finally:
            self.models.put(model)

    def states(self) -> dict[int, dict[str, Tensor]]:
        return self.keeps

    def restore(self, states: dict[int, dict[str, Tensor]]) -> None:
        self.keeps = states


def _told(job: Future[Payload]) -> str:
    error = job.exception()
    return f"{type(error).__name__}: {error}"
