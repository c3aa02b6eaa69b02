"""Where clients' data are: a verb is done here, whichever way it arrived."""

import copy
import math
import threading
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from comity._errors import ComityError
from comity._random import generator
from comity.config import default
from comity.data import ClientData, Federation, Split
from comity.engine._alone import Alone
from comity.engine._attacks import Attack
from comity.engine._client import Client, ClientState
from comity.engine._evaluation import TestPool, evaluate, exported, weigh
from comity.engine._optimiser import Training
from comity.engine._reuse import Vectors
from comity.engine._trainer import Autograd, TrainerName, trainer_for
from comity.engine._verbs import DIVERGED, MASKED_VERBS, READ_ONLY_VERBS, Export, StepLosses, verbs_of
from comity.guard import Guard
from comity.methods import Message, Method, Payload, Question, Reply
from comity.nn import Model, draws_random_numbers

if TYPE_CHECKING:
    from comity.engine._masked_clients import MaskedClients

MOST_TRIED = 128
"""Samples on which a client tries steps."""
_DRAWING = threading.Lock()
"""Held while a client works with a net that draws random numbers: torch has one generator for all threads."""


class Site:
    """All that is needed to do any client's work; a thread and a Flower node both hold one."""

    def __init__(
        self,
        federation: Federation,
        net: nn.Module,
        method: Method[Any, Any],
        training: Training,
        *,
        seed: int,
        buffers: Literal["average", "local"] = "average",
        moment: Literal["received", "fitted"] | None = None,
        s_acc_share: float = default("s_acc_share"),
        training_passes: float = math.inf,
        losses: bool = False,
        tries_steps: bool = False,
        attack: Attack | None = None,
        device: str = "cpu",
        trainer: TrainerName | None = None,
        guard: Guard | None = None,
        whole_from: int | None = None,
    ) -> None:
        self.federation, self.method, self.training, self.seed = federation, method, training, seed
        self.everybody = federation
        """With clients that join after training."""
        self.buffers, self.moment, self.device = buffers, moment or method.moment, device
        self.s_acc_share = s_acc_share
        self.training_passes = training_passes
        """What the run's training costs, for each time that everybody's tests are asked for."""
        self.losses = losses
        """Whether clients say how the received model does on their training data: some rules ask for it."""
        self.tries_steps = tries_steps
        """Whether clients are asked what a step would do to their losses: some rules want to know."""
        self.attack = attack or Attack("none", frozenset(), seed)
        self.guard = guard
        self.whole_from = whole_from
        """The first round in which clients train on their validation samples too."""
        self.reference: Alone | None = None
        """What clients have alone, to compare with."""
        self.held_out: Alone | None = None
        """What clients have alone without their validation samples, for the guard."""
        self.verbs = verbs_of(method, tries_steps)
        self._vectors = Vectors()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(seed, "method's parts").initial_seed())
            self._net = method.build(net)
        model = self.model()
        self.initial = model.read()
        self.parameters = model.layout("shared").size
        """How many numbers of the shared part are parameters; buffers lie behind them."""
        self.trainer = trainer_for(training, model, trainer)
        self.masked: MaskedClients | None = None
        """How clients hide their updates from the server, where they do."""
        self.net_draws = isinstance(self.trainer, Autograd) and draws_random_numbers(net, federation.shape)
        """Whether the net draws random numbers while it trains."""

    def model(self) -> Model:
        """A model of its own for each worker."""
        net = copy.deepcopy(self._net).to(self.device)
        empty = self._vectors.empty if self.device == "cpu" else None
        return Model(net, self.method.shared, self.buffers, local_norm=self.method.local_norm, empty=empty)

    @cached_property
    def tests(self) -> TestPool:
        return TestPool.of(self.federation, self.s_acc_share, self.training_passes)

    def holds_out(self, round: int) -> bool:
        """Whether validation samples are still unseen."""
        return self.whole_from is None or round < self.whole_from

    def data(self, cid: int, round: int) -> ClientData:
        """A client's samples, as it uses them in this round."""
        data = self.federation.clients[cid]
        if self.holds_out(round) or not len(data.val):
            return data
        x, y = torch.cat([data.train.x, data.val.x]), torch.cat([data.train.y, data.val.y])
        return replace(data, train=Split(x, y))

    def own_model(self, round: int) -> Alone:
        """What the guard has of the client's own: with all samples once the federated model has seen them too."""
        own = self.held_out if self.holds_out(round) else self.reference
        if own is None:
            raise ComityError("the guard needs each client's own model; leave --reference auto")
        return own

    def client(
        self,
        cid: int,
        model: Model,
        state: ClientState | None = None,
        *,
        verb: str = "fit",
        round: int = 1,
    ) -> Client:
        """A client at work. One without a state was never asked before: the method starts it."""
        client = Client(
            id=cid,
            data=self.data(cid, round),
            model=model,
            keep={} if state is None else dict(state.method),
            engine_keep={} if state is None else dict(state.engine),
            training=self.training,
            trainer=self.trainer,
            seed=self.seed,
            round=round,
            verb=verb,
        )
        if state is None:
            model.write(self.initial)
            self.method.start(client)
            if len(model.counters):
                client.engine_keep["counters"] = torch.zeros_like(model.counters)
        return client

    def work(
        self,
        model: Model,
        cid: int,
        state: ClientState | None,
        verb: str,
        received: Payload,
        round: int,
    ) -> tuple[Payload, ClientState]:
        """Do ``verb`` for a client with this state (``None``: it was never asked before); its state afterwards.

        A client that fails on the way keeps what it had.
        """
        if verb in MASKED_VERBS:
            assert self.masked is not None
            return self.masked.work(cid, state, received, round)
        if not self.net_draws:
            return self._work(model, cid, state, verb, received, round)
        with _DRAWING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(self.seed, "layers", round, cid).initial_seed())
            return self._work(model, cid, state, verb, received, round)

    def _work(
        self,
        model: Model,
        cid: int,
        state: ClientState | None,
        verb: str,
        received: Payload,
        round: int,
    ) -> tuple[Payload, ClientState]:
        # what is exported is what was judged, also where a method trains on the way
        drawn = "evaluate" if verb in READ_ONLY_VERBS else verb
        client = self.client(cid, model, state, verb=drawn, round=round)
        counted = len(model.counters) > 0
        if counted:
            model.counters = client.engine_keep["counters"]
        if verb in READ_ONLY_VERBS:
            assert isinstance(received, Question)
            before = ClientState(dict(client.keep), dict(client.engine_keep))
            if verb == "export":
                return Export(model=exported(self, client, received)), before
            return evaluate(self, client, received), before
        if verb == "weigh":
            assert isinstance(received, Question)
            keep, engine_keep = dict(client.keep), client.engine_keep
            return weigh(self, client, received), ClientState(keep, engine_keep)
        if verb == "try_steps":
            assert isinstance(received, Message)
            return self._try_steps(client, received), ClientState(client.keep, client.engine_keep)
        before_fit = None
        if verb == "fit" and self.losses:
            before_fit = self._loss(client, received, client.data.train)
        reply: Payload = getattr(self.method, verb)(client, received)
        declared = self.method.reply_type if verb == "fit" else self.verbs[verb].reply
        if type(reply) is not declared:
            raise TypeError(f"{type(self.method).__name__}.{verb} gave {type(reply).__name__}, not {declared.__name__}")
        if verb == "fit":
            assert isinstance(reply, Reply)
            reply.train_loss, reply.loss = client.train_loss, before_fit
            origin = client.origin if client.origin is not None else getattr(received, "theta", None)
            reply = self.attack.on(reply, origin, self.parameters, cid, round)
            if self.tries_steps and isinstance(received, Message):
                client.engine_keep["origin"] = received.theta
            if self.moment == "fitted":
                client.engine_keep["fitted"] = model.read()
        if counted:
            client.engine_keep["counters"] = model.counters
        state = ClientState(client.keep, client.engine_keep)
        if verb == "fit" and self.masked is not None:
            assert isinstance(reply, Reply)
            assert isinstance(received, Message)
            return self.masked.fitted(cid, round, received, reply, state)
        return reply, state

    def _try_steps(self, client: Client, received: Message) -> StepLosses:
        """Losses on the way from the shared part that the client last started from to each that it received."""
        assert received.factors is not None
        origin, size = client.engine_keep["origin"], self.parameters
        split = client.data.val if len(client.data.val) else client.data.train
        chosen = torch.randperm(len(split), generator=client.random("trial"))[:MOST_TRIED].to(split.y.device)
        split = Split(split.x[chosen], split.y[chosen])
        losses = [self._loss(client, replace(received, theta=origin), split)]
        for end, factor in product(received.theta, received.factors.tolist()):
            theta = end.clone()  # with the new buffers, whatever the step
            theta[:size] = torch.lerp(origin[:size], end[:size], factor)
            losses.append(self._loss(client, replace(received, theta=theta), split))
        known = torch.tensor(losses, dtype=torch.float64).nan_to_num(DIVERGED).clamp(max=DIVERGED)
        return StepLosses(before=float(known[0]), after=known[1:].view(len(received.theta), -1), samples=len(split))

    def _loss(self, client: Client, received: Payload, split: Split) -> float:
        """The loss of the model as received: of the one for everybody, or the client's own if there is none."""
        keep, engine_keep = dict(client.keep), dict(client.engine_keep)
        common = self.method.general(client, received)
        client.model.write(self.method.personal(client, received) if common is None else common)
        client.keep, client.engine_keep = keep, engine_keep
        return client.loss(split)
