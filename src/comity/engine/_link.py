"""Links: how the server's questions reach the clients, and the bytes sent."""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue

from torch import Tensor

from comity._errors import ComityError
from comity.engine._admission import admit, brief
from comity.engine._client import ClientState
from comity.engine._disk import Disk
from comity.engine._site import Site
from comity.engine._verbs import Verb
from comity.methods import Payload
from comity.nn import Model


class Link(ABC):
    """Carries verbs to clients. ``failures`` has the clients without a usable answer to the last question, and why."""

    clients: Sequence[int]
    workers = 1
    """Number of threads of this process that work on a question; between questions the server may use them."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}
        self.warnings: list[str] = []
        """Warnings since the last question: nodes without a seat, and seats that changed."""
        self.traffic: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """Bytes down and up, by verb."""
        self.run_id = ""
        """Id of the run that asks; ``Run.id``."""
        self.along: list[float] = []
        """Facts about the data that all clients need; sent with every question if clients are on other machines."""

    def ask(
        self,
        verb: Verb,
        questions: Mapping[int, Payload],
        round: int,
        dropped: Collection[int] = (),
        shared: Tensor | None = None,
    ) -> dict[int, Payload]:
        """Ask each client to do ``verb``; returns answers by client, in order.

        Clients in ``dropped`` work but never answer. An answer is left out if it does not fit its declaration, the
        question, ``shared`` or most other answers.
        """
        for question in questions.values():
            if type(question) is not verb.message:
                raise TypeError(f"{verb.name} is sent {type(question).__name__}, not {verb.message.__name__}")
        self.failures, self.warnings = {}, []
        replies = self.deliver(verb, questions, round)
        answers = {cid: replies[cid] for cid in sorted(replies) if cid not in dropped}
        self.traffic[verb.name][0] += sum(question.bytes for question in questions.values())
        self.traffic[verb.name][1] += sum(reply.bytes for reply in answers.values())
        admitted, rejected = admit(verb, questions, answers, shared)
        self.failures = {cid: brief(why) for cid, why in (self.failures | rejected).items()}
        return admitted

    @abstractmethod
    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        """Replies of the clients that answered; the others are added to ``failures``."""

    def states(self) -> dict[int, ClientState]:
        """The clients' states for a checkpoint, if this link can see them."""
        return {}

    def restore(self, states: dict[int, ClientState]) -> None:
        """Restore the clients' states."""

    def place(self) -> list[int]:
        """Position in the sequence of questions, if clients need it to find their state; otherwise empty."""
        return []

    def saved(self) -> None:
        """Called when a checkpoint contains everything so far."""

    def resume_at(self, place: list[int]) -> None:
        """Resume after a checkpoint that was made at this ``place``."""
        if place:
            raise ComityError("what the clients of this run kept is at their sites: resume it on Flower")

    def hold(self, tensor: Tensor) -> Tensor:
        """The same tensor, stored where this link keeps clients' tensors."""
        return tensor


class Threads(Link):
    """Clients as jobs for a few threads of this process, each of which has one model."""

    def __init__(
        self, site: Site, workers: int, disk: Disk | None = None, clients: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.site, self.disk = site, disk
        self.clients = range(len(site.federation)) if clients is None else clients
        self._states: dict[int, ClientState] = {}
        self.workers = max(1, min(workers, len(self.clients)))
        self._models: SimpleQueue[Model] = SimpleQueue()
        """One model per idle worker."""
        for _ in range(self.workers):
            self._models.put(site.model())
        # threads are kept: a new one would first have to allocate the buffers for products
        self._pool = ThreadPoolExecutor(self.workers)

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        results: dict[int, Payload | Exception] = {}
        # largest first, so that no thread has a long job left at the end
        waiting = deque(sorted(questions, key=lambda cid: -len(self.site.federation.clients[cid].train)))

        def work() -> None:
            while True:
                try:
                    cid = waiting.popleft()
                except IndexError:
                    return
                self._work(cid, verb.name, questions[cid], round, results)

        jobs = [self._pool.submit(work) for _ in range(min(self.workers, len(waiting)))]
        try:
            for job in jobs:
                job.result()
        finally:
            waiting.clear()  # no further client starts after an interrupt
        errors = {cid: result for cid, result in sorted(results.items()) if isinstance(result, Exception)}
        replies = {cid: result for cid, result in results.items() if not isinstance(result, Exception)}
        self.failures = {cid: f"{type(error).__name__}: {error}" for cid, error in errors.items()}
        if errors and not replies:
            raise next(iter(errors.values()))
        return replies

    def _work(
        self, cid: int, verb: str, question: Payload, round: int, results: dict[int, Payload | Exception]
    ) -> None:
        model = self._models.get()
        try:
            before = self._states.get(cid)
            reply, after = self.site.work(model, cid, before, verb, question, round)
            results[cid] = self._held_reply(reply)
            if after is not None:
                self._states[cid] = self._held_state(after, before)
        except Exception as error:  # the client's own failure: it is recorded, and the round continues
            results[cid] = error
        finally:
            self._models.put(model)

    def hold(self, tensor: Tensor) -> Tensor:
        return tensor if self.disk is None else self.disk.hold(tensor)

    def _held_reply(self, reply: Payload) -> Payload:
        return replace(reply, **{name: self.hold(tensor) for name, tensor in reply.tensors().items()})  # type: ignore[type-var]

    def _held_state(self, state: ClientState, before: ClientState | None) -> ClientState:
        """Hold all tensors of a state, except those that are already held."""

        def held(tensors: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: t if t is old.get(name) else self.hold(t) for name, t in tensors.items()}

        known = before or ClientState()
        return ClientState(held(state.method, known.method), held(state.engine, known.engine), state.secret)

    def states(self) -> dict[int, ClientState]:
        return self._states

    def restore(self, states: dict[int, ClientState]) -> None:
        self._states = states
