"""The client side: carries out verbs on clients' data, for any link."""

import copy
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from comity._random import generator
from comity.config import ACCURACY, Config
from comity.data import ClientData, Federation
from comity.engine._client import Client, ClientState
from comity.engine._evaluation import evaluate_verb, export_verb
from comity.engine._extension import Extension
from comity.engine._local_models import LocalModels
from comity.engine._optimiser import Training
from comity.engine._reuse import Vectors
from comity.engine._tests import TestPool
from comity.engine._trainer import Autograd, Trainer, trainer_for
from comity.engine._verbs import Call, Verb, verbs_of
from comity.methods import Method, Payload, Reply
from comity.metrics import EVIDENCE, METRICS, Metric
from comity.nn import Model, draws_random_numbers
from comity.results import ClientScores

_RANDOM_NETWORK = threading.Lock()
"""Held while a client uses a network that draws random numbers: torch has one generator for all threads."""


class Site:
    """Everything needed to do any client's work; used by a thread and by a Flower node."""

    def __init__(
        self,
        config: Config,
        federation: Federation,
        net: nn.Module,
        method: Method[Any, Any],
        extensions: Sequence[Extension] = (),
    ) -> None:
        self.config, self.federation, self.method, self.extensions = config, federation, method, tuple(extensions)
        self.training, self.seed, self.device = Training.of(config), config.seed_for_training, config.device
        self.eval_point = config.eval_point or method.eval_point
        self.metrics = metrics_of(extensions)
        self.metric = config.metric or ACCURACY
        """Name of the metric that decides."""
        self.test_scores: dict[int, ClientScores] = {}
        """Scores of single tests by client in the newest full evaluation. They do not leave the site."""
        self.verbs = verbs_for(method, self.extensions)
        self.baselines: dict[str, LocalModels] = {}
        """Local baselines by the samples that they were trained on, ``all`` or ``train``."""
        self.reference = config.local_on
        """The baseline to compare with."""
        self._vectors = Vectors()
        self.trainer: Trainer = Autograd()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(self.seed, "method's parts").initial_seed())
            self._net = method.build(net)
        model = self.model()
        self.initial = model.read()
        self.parameters = model.layout("shared").size
        """Number of parameters in the shared part; buffers follow them."""
        self.trainer = trainer_for(self.training, model, config.trainer, own_steps=method.own_steps)
        self.net_draws = isinstance(self.trainer, Autograd) and draws_random_numbers(net, federation.shape)
        """Whether the network draws random numbers during training."""

    def model(self) -> Model:
        """A new model, one per worker."""
        net = copy.deepcopy(self._net).to(self.device)
        empty = self._vectors.empty if self.device == "cpu" else None
        return Model(
            net,
            self.method.shared,
            self.config.buffers,
            local_norm=self.method.local_norm,
            empty=empty,
            compiled=self.trainer.gradients,
        )

    @cached_property
    def tests(self) -> TestPool:
        return TestPool.of(self.federation, self.config)

    def class_shares(self, cid: int) -> NDArray[np.float64]:
        """Class shares of a client's samples, without its tests."""
        data = self.federation.clients[cid]
        counts = torch.bincount(torch.cat([data.train.y, data.val.y]), minlength=self.federation.classes)
        return (counts / counts.sum()).double().cpu().numpy()

    def add_baseline(self, on: str, models: LocalModels) -> None:
        """Give clients their models of a local baseline."""
        self.baselines[on] = models

    def serving(self, everyone: Federation, baselines: dict[str, LocalModels]) -> "Site":
        """The same site for newcomers, with their own local baselines."""
        site = copy.copy(self)
        vars(site).pop("tests", None)
        replaced = (extension.for_newcomers() for extension in self.extensions)
        site.extensions = tuple(extension for extension in replaced if extension is not None)
        site.federation, site.baselines, site.test_scores = everyone, baselines, {}
        return site

    def data(self, cid: int, round: int) -> ClientData:
        """A client's samples in this round."""
        data = self.federation.clients[cid]
        for extension in self.extensions:
            data = extension.client_data(data, round)
        return data

    def client(
        self,
        cid: int,
        model: Model,
        state: ClientState | None = None,
        *,
        verb: str = "fit",
        round: int = 1,
    ) -> Client:
        """A client ready to work. Without a state it is new, and the method starts it."""
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
        if state is None or not (state.method or state.engine):  # or earlier questions left no state
            model.write(self.initial)
            self.method.start(client)
            if len(model.counters):
                client.engine_keep["counters"] = torch.zeros_like(model.counters)
        if "counters" in client.engine_keep:
            model.counters = client.engine_keep["counters"]
        return client

    def work(
        self,
        model: Model,
        cid: int,
        state: ClientState | None,
        verb: str,
        received: Payload,
        round: int,
    ) -> tuple[Payload, ClientState | None]:
        """Do ``verb`` for a client with this state (``None``: new client); returns the reply and the new state.

        A client that fails keeps its old state.
        """
        work = self.verbs[verb].work
        assert work is not None
        call = Call(self, model, cid, state, received, round)
        if not self.net_draws:
            return work(call)
        with _RANDOM_NETWORK, torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(self.seed, "layers", round, cid).initial_seed())
            return work(call)


def metrics_of(extensions: Sequence[Extension]) -> tuple[Metric, ...]:
    """All metrics of a client's model, including those of extensions."""
    return (*METRICS, *EVIDENCE, *(metric for extension in extensions for metric in extension.metrics))


def verbs_for(method: Method[Any, Any], extensions: Sequence[Extension] = ()) -> dict[str, Verb]:
    """All verbs of a run, by name."""
    message = method.message_type
    evaluate = evaluate_verb(message, metrics_of(extensions))
    verbs = verbs_of(method, (Verb("fit", message, method.reply_type, _fit), evaluate, export_verb(message)))
    for extension in extensions:
        verbs = extension.verbs(verbs)
    return verbs


def _fit(call: Call) -> tuple[Payload, ClientState]:
    """One round of local work of a client."""
    site, method, received = call.site, call.site.method, call.received
    client = call.client("fit")
    for extension in site.extensions:
        extension.before_fit(site, client, received)
    reply: Reply = method.fit(client, received)
    if type(reply) is not method.reply_type:
        raise TypeError(f"{type(method).__name__}.fit gave {type(reply).__name__}, not {method.reply_type.__name__}")
    reply.train_loss = client.train_loss
    for extension in site.extensions:
        reply = extension.after_fit(site, client, received, reply)
    if site.eval_point == "fitted":
        client.engine_keep["fitted"] = call.model.read()
    return reply, client.state()
