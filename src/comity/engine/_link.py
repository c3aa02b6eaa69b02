"""How the server's questions reach the clients, and what that costs."""

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
    """Carries verbs to clients. ``failures`` names those without a usable answer to the last question, and why."""

    clients: Sequence[int]
    workers = 1
    """Threads of this process that work while a question is under way, and that the server may use between."""

    def __init__(self) -> None:
        self.failures: dict[int, str] = {}
        self.warnings: list[str] = []
        """What else deserves a look since the last question: who was denied a seat, and who changed it."""
        self.traffic: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        """Bytes down and up, by verb."""
        self.run_id = ""
        """The run whose questions these are; ``Run.id``."""
        self.along: list[float] = []
        """Sent along with every question, where clients are elsewhere: what all of them must know of the data."""

    def ask(
        self,
        verb: Verb,
        questions: Mapping[int, Payload],
        round: int,
        lost: Collection[int] = (),
        shared: Tensor | None = None,
    ) -> dict[int, Payload]:
        """Have each client do ``verb``; answers by client, in order. Those ``lost`` do the work but never answer.

        An answer that does not fit what was declared, sent or ``shared``, or what most others answer, is left out.
        """
        for question in questions.values():
            if type(question) is not verb.message:
                raise TypeError(f"{verb.name} is sent {type(question).__name__}, not {verb.message.__name__}")
        self.failures, self.warnings = {}, []
        replies = self.deliver(verb, questions, round)
        answers = {cid: replies[cid] for cid in sorted(replies) if cid not in lost}
        self.traffic[verb.name][0] += sum(question.bytes for question in questions.values())
        self.traffic[verb.name][1] += sum(reply.bytes for reply in answers.values())
        admitted, refused = admit(verb, questions, answers, shared)
        self.failures = {cid: brief(why) for cid, why in (self.failures | refused).items()}
        return admitted

    @abstractmethod
    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        """Replies of the clients that answered; the others go into ``failures``."""

    def states(self) -> dict[int, ClientState]:
        """What clients keep, where this link can see it: for a checkpoint."""
        return {}

    def restore(self, states: dict[int, ClientState]) -> None:
        """Give clients back what they kept."""

    def place(self) -> list[int]:
        """Where among its questions this link is, if its clients need to know that to find what they kept."""
        return []

    def saved(self) -> None:
        """A checkpoint holds everything up to here."""

    def go_on(self, place: list[int]) -> None:
        """After a checkpoint that was made at this ``place``."""
        if place:
            raise ComityError("what the clients of this run kept is at their sites: resume it on Flower")

    def hold(self, tensor: Tensor) -> Tensor:
        """The same tensor, where this link has clients' tensors lie."""
        return tensor


class Threads(Link):
    """Clients are jobs for a few threads of this process, each of which has one model."""

    def __init__(
        self, site: Site, workers: int, disk: Disk | None = None, clients: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.site, self.disk = site, disk
        self.clients = range(len(site.federation)) if clients is None else clients
        self._states: dict[int, ClientState] = {}
        self.workers = max(1, min(workers, len(self.clients)))
        self._models: SimpleQueue[Model] = SimpleQueue()
        """A model for each worker that is idle."""
        for _ in range(self.workers):
            self._models.put(site.model())
        # Threads stay: a new one would first have to make the buffers that products need.
        self._pool = ThreadPoolExecutor(self.workers)

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        results: dict[int, Payload | Exception] = {}
        # The largest first, so that no thread is left with a long job at the end.
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
            waiting.clear()  # after an interrupt nobody else begins
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
        except Exception as error:  # the client's own failure: it is named, and the round goes on
            results[cid] = error
        finally:
            self._models.put(model)

    def hold(self, tensor: Tensor) -> Tensor:
        return tensor if self.disk is None else self.disk.hold(tensor)

    def _held_reply(self, reply: Payload) -> Payload:
        return replace(reply, **{name: self.hold(tensor) for name, tensor in reply.tensors().items()})  # type: ignore[type-var]

    def _held_state(self, state: ClientState, before: ClientState | None) -> ClientState:
        """All tensors held; those that were held before stay as they are."""

        def held(tensors: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: t if t is old.get(name) else self.hold(t) for name, t in tensors.items()}

        known = before or ClientState()
        return ClientState(held(state.method, known.method), held(state.engine, known.engine), state.secret)

    def states(self) -> dict[int, ClientState]:
        return self._states

    def restore(self, states: dict[int, ClientState]) -> None:
        self._states = states
