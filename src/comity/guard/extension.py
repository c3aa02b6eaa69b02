"""The guard in a run: each client chooses by its own validation samples which model or mixture it uses.

The client's own model is the local baseline. While models are compared, it is one trained without the validation
samples; if the client then uses nothing else, it is one trained on all samples. It never leaves the client. If a
method, a rule or a search also uses validation samples, the guard has a separate part of them.
"""

from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity._errors import ComityError
from comity._random import numpy_generator
from comity.config import SEARCHED, Config
from comity.data import ClientData, Split
from comity.engine import (
    Call,
    Client,
    ClientState,
    Expert,
    Extension,
    Judgement,
    LocalModels,
    Predict,
    Verb,
    judged_model,
    predictor,
)
from comity.guard.guards import HeldOut
from comity.methods import Payload

if TYPE_CHECKING:
    from comity.engine import Run, RunPlan, Site


class Weighed(Payload):
    """Reply of a client that has weighed its own model against the federated one."""

    own_weight: float


class Guarding(Extension):
    """Let every client use the model or mixture that its guard chooses."""

    baselines = ("train",)

    guard: Any
    last_round: int
    """The round after which clients choose; they keep this choice."""
    share: float = field(default=1.0, init=False)
    """The guard's share of the validation samples; the rest is for the method, the rule or a search."""
    seed: int = field(default=0, init=False)
    _parts: dict[int, tuple[Split, Split]] = field(default_factory=dict, init=False)
    """By client: the guard's validation samples, and the other validation samples."""

    @classmethod
    def of(cls, config: Config) -> Self | None:
        return cls(guard=config.guard.build(), last_round=config.rounds)

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        config = plan.config
        others = max(config.method.trait("validation", 0.0), SEARCHED * (config.guard_split or plan.rule.tries_steps))
        self.share, self.seed = self.guard.validation / (self.guard.validation + others), config.seed

    def client_data(self, data: ClientData, round: int) -> ClientData:
        """Reserve the guard's samples, until they become training samples."""
        if self.share == 1 or not data.val_unseen:
            return data
        if data.id not in self._parts:
            order = numpy_generator(self.seed, "guard's samples", data.id).permutation(len(data.val))
            halves = np.split(order, [int(self.share * len(order))])
            mine, theirs = (torch.from_numpy(np.sort(places)).to(data.val.y.device) for places in halves)
            self._parts[data.id] = _chosen(data.val, mine), _chosen(data.val, theirs)
        return replace(data, val=self._parts[data.id][1])

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        verb = Verb("weigh", verbs["fit"].message, Weighed, self._weigh, judges=True)
        return verbs | {verb.name: verb}

    def after_round(self, run: "Run") -> None:
        """After the last round before the refit, let every client choose."""
        server = run.server
        if server.round == self.last_round:
            server.ask_clients("weigh", server.questions(server.scored))

    def _weigh(self, call: Call) -> tuple[Payload, ClientState]:
        """Choose on the client's validation samples, and store the choice in the client's state.

        If the method trains on the way, it uses the random numbers of ``evaluate``: the weighed model is the one that
        is evaluated and exported.
        """
        site, client = call.site, call.client("evaluate")
        before = client.snapshot()
        model = judged_model(client, site.method, call.received, site.eval_point)
        weights, bound = self.weights(site, client, model, site.method.general(client, call.received))
        before.engine["guard"] = weights
        if bound is not None:
            before.engine["guard.bound"] = torch.tensor(bound, dtype=torch.float64)
        return Weighed(own_weight=float(weights[0])), before

    def judge(self, judgement: Judgement) -> None:
        """Evaluate the model or mixture that the client uses; also note the federated model's accuracy."""
        site, client, cid = judgement.site, judgement.client, judgement.client.id
        weights, bound = self.weights(site, client, judgement.model, judgement.common)
        unguarded = float(judgement.correct.double().mean())
        judgement.notes |= {"unguarded": unguarded, "own_weight": float(weights[0]), "bound": bound}
        own = own_models(site, client, weights)
        own_weight, weight, *others = weights.tolist()
        experts = [
            Expert("own", own_weight, own.site, partial(own.vector, cid), partial(own.predict, cid)),
            *(replace(each, weight=weight) for each in judgement.experts),
        ]
        known = [own.on_own(cid, client.data.test), judgement.predicted]
        if others and (common := judgement.common) is not None and judgement.by_common is not None:
            experts.append(Expert("common", others[0], site, lambda: common, predictor(client, common)))
            known.append(judgement.by_common)
        judgement.mix(mixed([each.predict for each in experts], weights), mixture(known, weights), experts)

    def weights(
        self, site: "Site", client: Client, model: Tensor, common: Tensor | None
    ) -> tuple[Tensor, float | None]:
        """Weights of the client's own model, the federated one and possibly the global one, and the guard's bound.

        A choice is final once stored. Before that, each evaluation chooses anew, as a run that ended there would.
        """
        if (kept := client.engine_keep.get("guard")) is not None:
            bound = client.engine_keep.get("guard.bound")
            return kept, None if bound is None else float(bound)
        if not client.data.val_unseen:  # it had dropped out when the others chose; now it trains on these samples
            return torch.tensor([1.0, 0.0], dtype=torch.float64), None
        val, train = self._parts[client.id][0] if client.id in self._parts else client.data.val, client.data.train
        own = partial(_models_of(site, "train").on_own, client.id)
        models = [model] if common is None or torch.equal(common, model) else [model, common]
        experts: list[Predict] = [own, *(predictor(client, each) for each in models)]
        seen = len(train) / (len(train) + len(site.federation.clients[client.id].val))
        held = HeldOut(*_predictions(experts, val), site.metric, seen, partial(_predictions, experts, train))
        choice = self.guard.choose(held, numpy_generator(site.config.seed, "guard", client.id))
        return torch.from_numpy(choice.weights), choice.bound


def own_models(site: "Site", client: Client, weights: Tensor) -> LocalModels:
    """The clients' own models that belong to these weights."""
    return _models_of(site, _samples(weights, client.data.val_unseen))


def _samples(weights: Tensor, val_unseen: bool) -> str:
    """The baseline to use as own model: trained on all samples if used by itself or if the federated model saw all."""
    return "train" if val_unseen and float(weights[0]) < 1 else "all"


def _models_of(site: "Site", on: str) -> LocalModels:
    models = site.baselines.get(on)
    if models is None:
        raise ComityError("the guard needs each client's own model; leave --reference auto")
    return models


def _chosen(split: Split, places: Tensor) -> Split:
    return Split(split.x[places], split.y[places])


def _predictions(experts: Sequence[Predict], split: Split) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Probabilities (experts, samples, classes) of each expert, and the labels."""
    predicted = torch.stack([expert(split) for expert in experts])
    return predicted.double().exp().clamp(max=1).cpu().numpy(), split.y.cpu().numpy()


def mixed(experts: Sequence[Predict], weights: Tensor) -> Predict:
    """The predictor of a mixture. Experts without weight are not evaluated."""
    asked = [place for place, weight in enumerate(weights) if weight > 0]
    return lambda split: mixture([experts[place](split) for place in asked], weights[asked])


def mixture(predictions: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Mix predictions. A prediction with all of the weight is returned bit-identical."""
    used = [(float(weight.log()), each) for weight, each in zip(weights, predictions, strict=True) if weight > 0]
    return used[0][1] if len(used) == 1 else torch.stack([each + log_weight for log_weight, each in used]).logsumexp(0)
