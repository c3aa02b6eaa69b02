"""Where clients' data are: a verb is done here, whichever way it arrived."""

import copy
from functools import cached_property
from typing import Any, Literal

import torch
from torch import nn

from comity._random import generator
from comity.config import default
from comity.data import Federation
from comity.engine._attacks import Attack
from comity.engine._client import Client, ClientState
from comity.engine._evaluation import TestPool, evaluate, judged
from comity.engine._optimiser import Training
from comity.engine._trainer import Trainer, TrainerName, trainer_for
from comity.engine._verbs import READ_ONLY_VERBS, Export, verbs_of
from comity.methods import Method, Payload, Question, Reply
from comity.nn import Model, line_up


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
        losses: bool = False,
        attack: Attack | None = None,
        device: str = "cpu",
        trainer: TrainerName | None = None,
    ) -> None:
        self.federation, self.method, self.training, self.seed = federation, method, training, seed
        self.buffers, self.moment, self.device = buffers, moment or method.moment, device
        self.s_acc_share, self.losses = s_acc_share, losses
        """Whether clients say how the received model does on their training data: some rules ask for it."""
        self.attack = attack or Attack("none", frozenset(), seed)
        self.verbs = verbs_of(method)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(seed, "method's parts").initial_seed())
            self._net = method.build(net)
        model = self.model()
        self.initial = model.read()
        self.parameters = model.layout("shared").size
        """How many numbers of the shared part are parameters; buffers lie behind them."""
        self.trainer = trainer_for(training, model, trainer)

    def model(self) -> Model:
        """A model of its own for each worker."""
        return self.models(1)[0]

    def models(self, count: int) -> list[Model]:
        """Models for clients that train as one."""
        nets = (copy.deepcopy(self._net).to(self.device) for _ in range(count))
        models = [Model(net, self.method.shared, self.buffers) for net in nets]
        line_up(models)
        return models

    @cached_property
    def tests(self) -> TestPool:
        return TestPool.of(self.federation, self.s_acc_share)

    def client(
        self,
        cid: int,
        model: Model,
        state: ClientState | None = None,
        *,
        verb: str = "fit",
        round: int = 1,
        trainer: Trainer | None = None,
    ) -> Client:
        """A client at work. One without a state was never asked before: the method starts it."""
        client = Client(
            id=cid,
            data=self.federation.clients[cid],
            model=model,
            keep={} if state is None else dict(state.method),
            engine_keep={} if state is None else dict(state.engine),
            training=self.training,
            trainer=trainer or self.trainer,
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
        trainer: Trainer | None = None,
    ) -> tuple[Payload, ClientState]:
        """Do ``verb`` for a client with this state (``None``: it was never asked before); its state afterwards.

        A client that fails on the way keeps what it had.
        """
        client = self.client(cid, model, state, verb=verb, round=round, trainer=trainer)
        counted = len(model.counters) > 0
        if counted:
            model.counters = client.engine_keep["counters"]
        if verb in READ_ONLY_VERBS:
            assert isinstance(received, Question)
            before = ClientState(dict(client.keep), dict(client.engine_keep))
            if verb == "export":
                return Export(model=judged(client, self.method, received, self.moment)), before
            return evaluate(client, self.method, received, self.moment, self.tests, self.seed), before
        before_fit = self._loss(client, received) if verb == "fit" and self.losses else None
        reply: Payload = getattr(self.method, verb)(client, received)
        if type(reply) is not self.verbs[verb].reply:
            declared = self.verbs[verb].reply.__name__
            raise TypeError(f"{type(self.method).__name__}.{verb} gave {type(reply).__name__}, not {declared}")
        if verb == "fit":
            assert isinstance(reply, Reply)
            reply.train_loss, reply.loss = client.train_loss, before_fit
            origin = client.origin if client.origin is not None else getattr(received, "theta", None)
            reply = self.attack.on(reply, origin, model.layout("shared").size, cid, round)
            if self.moment == "fitted":
                client.engine_keep["fitted"] = model.read()
        if counted:
            client.engine_keep["counters"] = model.counters
        return reply, ClientState(client.keep, client.engine_keep)

    def _loss(self, client: Client, received: Payload) -> float:
        """What some rules ask for: the training loss of the model as received, before the client fits it."""
        keep, engine_keep = dict(client.keep), dict(client.engine_keep)
        common = self.method.general(client, received)
        client.model.write(self.method.personal(client, received) if common is None else common)
        client.keep, client.engine_keep = keep, engine_keep
        return client.loss()
