"""How the server's questions reach the clients, and what that costs."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import itemgetter
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

from torch import Tensor

from comity.engine._disk import Disk
from comity.engine._lockstep import Seat, side_by_side
from comity.engine._site import LOOKING, Site
from comity.methods import Payload
from comity.nn import Model, stack_size


def size_of(payload: Payload) -> int:
    """Bytes of a message's tensors. Plain numbers (a size, a loss) ride in its header and are not counted."""
    return sum(value.numel() * value.element_size() for value in payload.values() if isinstance(value, Tensor))


class Link(ABC):
    """Carries verbs to clients. ``failures`` names the clients that did not answer the last question, and why."""

    clients: Sequence[int]
    workers = 1
    """Threads of this process that work while a question is under way, and that the server may use between."""

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

    def hold(self, tensor: Tensor) -> Tensor:
        """The same tensor, where this link has clients' tensors lie."""
        return tensor


class Threads(Link):
    """Clients are jobs for a few threads of this process: one model a thread, or a stack of small ones that train as
    one, and one set of tensors a client.
    """

    def __init__(self, site: Site, workers: int, disk: Disk | None = None) -> None:
        super().__init__()
        self.site, self.disk = site, disk
        self.clients = range(len(site.federation.clients))
        self.keeps: dict[int, dict[str, Tensor]] = {}
        self.workers = max(1, min(workers, len(self.clients)))
        self.together = min(stack_size(site.model()), -(-len(self.clients) // self.workers))
        """Clients that train as one."""
        self.benches: SimpleQueue[list[Model]] = SimpleQueue()
        for _ in range(self.workers):
            self.benches.put(site.models(self.together))
        # Threads stay: a new one would first have to make the buffers that products need.
        self.pool = ThreadPoolExecutor(self.workers)
        self.seats = ThreadPoolExecutor(self.workers * self.together)

    def deliver(self, verb: str, payloads: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        results: dict[int, Payload | Exception] = {}
        # The largest first, so that no thread is left with a long job at the end.
        order = sorted(payloads, key=lambda cid: -len(self.site.federation.clients[cid].train))
        jobs = [self.pool.submit(self._work, group, verb, payloads, round, results) for group in self._groups(order)]
        try:
            for job in jobs:
                job.result()
        finally:
            for job in jobs:
                job.cancel()  # after an interrupt, what has not begun; done ones do not mind
        errors = {
            cid: result for cid, result in sorted(results.items(), key=itemgetter(0)) if isinstance(result, Exception)
        }
        replies = {cid: result for cid, result in results.items() if not isinstance(result, Exception)}
        self.failures = {cid: f"{type(error).__name__}: {error}" for cid, error in errors.items()}
        if errors and not replies:
            raise next(iter(errors.values()))
        return replies

    def _groups(self, order: list[int]) -> list[list[int]]:
        """Clients of about one size, as many groups for each worker."""
        turns = -(-len(order) // (self.workers * self.together))
        size = max(1, -(-len(order) // (self.workers * turns))) if order else 1
        return [order[start : start + size] for start in range(0, len(order), size)]

    def _work(
        self,
        group: list[int],
        verb: str,
        payloads: Mapping[int, Payload],
        round: int,
        results: dict[int, Payload | Exception],
    ) -> None:
        bench = self.benches.get()

        def work(cid: int, model: Model, seat: Seat | None = None) -> None:
            try:
                before = self.keeps.get(cid)
                reply, keep = self.site.work(model, cid, before, verb, payloads[cid], round, seat)
                results[cid], self.keeps[cid] = self._held(reply), self._held(keep, before or {})
            except Exception as error:  # the client's own failure: told, and the round goes on
                results[cid] = error

        try:
            if len(group) == 1 or verb in LOOKING:
                for cid in group:
                    work(cid, bench[0])
            else:
                side_by_side(self.seats, [partial(work, *pair) for pair in zip(group, bench, strict=False)])
        finally:
            self.benches.put(bench)

    def hold(self, tensor: Tensor) -> Tensor:
        return tensor if self.disk is None else self.disk.hold(tensor)

    def _held(self, values: dict[str, Any], before: Mapping[str, Tensor] = MappingProxyType({})) -> dict[str, Any]:
        """All tensors held, those that were so before as they are."""
        return {
            name: self.hold(value) if isinstance(value, Tensor) and value is not before.get(name) else value
            for name, value in values.items()
        }

    def states(self) -> dict[int, dict[str, Tensor]]:
        return self.keeps

    def restore(self, states: dict[int, dict[str, Tensor]]) -> None:
        self.keeps = states
