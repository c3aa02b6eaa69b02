"""Where clients' data are: a verb is done here, whichever way it arrived."""

import copy
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from comity._random import generator
from comity.data import Federation
from comity.engine._attacks import Attack
from comity.engine._client import Client
from comity.engine._evaluation import TestPool, evaluate, judged
from comity.engine._lockstep import Seat
from comity.engine._optimiser import Training
from comity.methods import Method, Payload
from comity.nn import Model, line_up

LOOKING = "evaluate", "export"
"""Verbs that change nothing, and in which a client is not trained beside others."""


class Site:
    """All that is needed to do any client's work; a thread and a Flower node both hold one."""

    def __init__(
        self,
        federation: Federation,
        net: nn.Module,
        method: Method,
        training: Training,
        *,
        seed: int,
        buffers: Literal["average", "local"] = "average",
        moment: Literal["received", "fitted"] | None = None,
        losses: bool = False,
        attack: Attack | None = None,
        device: str = "cpu",
    ) -> None:
        self.federation, self.method, self.training, self.seed = federation, method, training, seed
        self.buffers, self.moment, self.device = buffers, moment or method.moment, device
        self.losses = losses
        self.attack = attack or Attack("none", frozenset(), seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(seed, "method's parts").initial_seed())
            self._net = method.build(net)
        self.initial = self.model().read()

    def model(self) -> Model:
        """A model of its own for each worker."""
        return self.models(1)[0]

    def models(self, count: int) -> list[Model]:
        """Models for clients that train side by side."""
        nets = (copy.deepcopy(self._net).to(self.device) for _ in range(count))
        models = [Model(net, self.method.shared, self.buffers) for net in nets]
        line_up(models)
        return models

    @cached_property
    def tests(self) -> TestPool:
        return TestPool.of(self.federation)

    def work(
        self,
        model: Model,
        cid: int,
        keep: dict[str, Tensor] | None,
        verb: str,
        received: Payload,
        round: int,
        seat: Seat | None = None,
    ) -> tuple[Payload, dict[str, Tensor]]:
        """Do ``verb`` for a client that kept ``keep`` (``None``: it was never asked before); what it keeps now.

        A client that fails on the way keeps what it had.
        """
        data = self.federation.clients[cid]
        client = Client(cid, data, dict(keep or {}), model, self.training, self.seed, round, verb, seat)
        counted = len(model.counters) > 0
        if keep is None:
            model.write(self.initial)
            self.method.start(client)
            if counted:
                client.keep["counters"] = torch.zeros_like(model.counters)
        if counted:
            model.counters = client.keep["counters"]
        if verb in LOOKING:
            kept = dict(client.keep)
            if verb == "export":
                return {"model": judged(client, self.method, received, self.moment)}, kept
            return evaluate(client, self.method, received, self.moment, self.tests, self.seed), kept
        before = self._loss(client, received) if verb == "fit" and self.losses else None
        reply: Payload = getattr(self.method, verb)(client, received)
        if verb == "fit":
            reply["train_loss"] = client.train_loss
            if before is not None:
                reply["loss"] = before
            origin = client.origin if client.origin is not None else received.get("theta")
            reply = self.attack.on(reply, origin, model.layout("shared").size, cid, round)
            if self.moment == "fitted":
                client.keep["fitted"] = model.read()
        if counted:
            client.keep["counters"] = model.counters
        return reply, client.keep

    def _loss(self, client: Client, received: Payload) -> float:
        """What some rules ask for: the training loss of the model as received, before the client fits it."""
        keep = dict(client.keep)
        common = self.method.general(client, received)
        client.model.write(self.method.personal(client, received) if common is None else common)
        client.keep = keep
        return client.loss()
