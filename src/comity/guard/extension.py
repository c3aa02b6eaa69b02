"""The guard in a run: each client mixes its own model with the federated one, by its validation samples.

The client's own model is the local baseline. Nothing of it travels, and the federated model is the same with a guard
and without.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._random import numpy_generator
from comity.config import Config
from comity.engine import (
    Call,
    Client,
    ClientState,
    Extension,
    Judgement,
    LocalModels,
    Predict,
    Verb,
    judged_model,
    predictor,
)
from comity.methods import Payload
from comity.nn import Model

if TYPE_CHECKING:
    from comity.engine import Run, Site


class Weighed(Payload):
    """A client has weighed its own model against the federated one."""

    own_weight: float


class Guarding(Extension):
    """Has every client use what its guard chooses."""

    baselines = ("train",)

    guard: Any
    last_round: int
    """After this round clients choose, and keep what they chose."""

    @classmethod
    def of(cls, config: Config) -> Self | None:
        return cls(guard=config.guard.build(), last_round=config.rounds)

    def verbs(self, verbs: dict[str, Verb]) -> dict[str, Verb]:
        verb = Verb("weigh", verbs["fit"].message, Weighed, self._weigh, judges=True)
        return verbs | {verb.name: verb}

    def after_round(self, run: "Run") -> None:
        """Have every client choose."""
        server = run.server
        if server.round == self.last_round:
            server.ask_clients("weigh", server.questions(server.scored))

    def _weigh(self, call: Call) -> tuple[Payload, ClientState]:
        """Choose by the client's validation samples; the client keeps what it chose."""
        site, client = call.site, call.client("weigh")
        keep = dict(client.keep)
        model = judged_model(client, site.method, call.received, site.moment)
        weights, bound = self.weights(site, client, model, site.method.general(client, call.received))
        client.engine_keep["guard"] = weights
        if bound is not None:
            client.engine_keep["guard.bound"] = torch.tensor(bound, dtype=torch.float64)
        return Weighed(own_weight=float(weights[0])), ClientState(keep, client.engine_keep)

    def judge(self, judgement: Judgement) -> None:
        """Evaluate what the client uses under its guard; note the federated model's accuracy beside it."""
        site, client, cid = judgement.site, judgement.client, judgement.client.id
        weights, bound = self.weights(site, client, judgement.model, judgement.common)
        unguarded = float(judgement.correct.double().mean())
        judgement.notes |= {"unguarded": unguarded, "own_weight": float(weights[0]), "bound": bound}
        own = own_models(site, client)
        experts: list[Predict] = [partial(own.predict, cid), judgement.predict]
        known = [own.on_own(cid, client.data.test), judgement.predicted]
        if len(weights) > 2 and judgement.common is not None and judgement.by_common is not None:
            experts, known = [*experts, predictor(client, judgement.common)], [*known, judgement.by_common]
        judgement.mix(mixed(experts, weights), mixture(known, weights))

    def weights(
        self, site: "Site", client: Client, model: Tensor, common: Tensor | None
    ) -> tuple[Tensor, float | None]:
        """The weights of the client's own model, the federated one and perhaps the common one, and the guard's bound.

        What the client chose once is kept. Before that each evaluation chooses for itself, so that its numbers are
        those of a run that ends there.
        """
        if (kept := client.engine_keep.get("guard")) is not None:
            bound = client.engine_keep.get("guard.bound")
            return kept, None if bound is None else float(bound)
        if not client.data.val_unseen:  # it dropped out when the others chose; now nothing is held out any more
            return torch.tensor([1.0, 0.0], dtype=torch.float64), None
        val = client.data.val
        models = [model] if common is None or torch.equal(common, model) else [model, common]
        predicted = [own_models(site, client).on_own(client.id, val)]
        predicted += [predictor(client, each)(val) for each in models]
        probabilities = torch.stack(predicted).double().exp().clamp(max=1).cpu().numpy()
        random = numpy_generator(site.seed, "guard", client.id)
        choice = self.guard.choose(probabilities, val.y.cpu().numpy(), random)
        return torch.from_numpy(choice.weights), choice.bound

    def saved_models(self, run: "Run", cid: int, about: dict[str, str]) -> Iterator[tuple[str, Model, Tensor]]:
        """The client's own model, and the weights of both."""
        state = run.server.link.states().get(cid)
        if state is not None and "guard" in state.engine:
            about["weights"] = " ".join(map(str, state.engine["guard"].tolist()))
        own = _models_of(run.site, val_unseen=not run.config.refit)
        yield "own", own.site.model(), own.vector(cid)


def own_models(site: "Site", client: Client) -> LocalModels:
    """The clients' own models: trained on all samples once the federated model has seen them too."""
    return _models_of(site, client.data.val_unseen)


def _models_of(site: "Site", val_unseen: bool) -> LocalModels:
    models = site.baselines.get("train" if val_unseen else "all")
    if models is None:
        raise ComityError("the guard needs each client's own model; leave --reference auto")
    return models


def mixed(experts: Sequence[Predict], weights: Tensor) -> Predict:
    """The predictions of a mixture. Experts without weight are not asked."""
    asked = [place for place, weight in enumerate(weights) if weight > 0]
    return lambda split: mixture([experts[place](split) for place in asked], weights[asked])


def mixture(predictions: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Predictions mixed. Those with all of the weight stay as they are, to the bit."""
    used = [(float(weight.log()), each) for weight, each in zip(weights, predictions, strict=True) if weight > 0]
    return used[0][1] if len(used) == 1 else torch.stack([each + log_weight for log_weight, each in used]).logsumexp(0)
