"""Evaluation of each client's model: on its own tests, and on those of some or all other clients."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from comity.config import BALANCED
from comity.data import Split
from comity.engine._client import Client, ClientState, hits, losses
from comity.engine._verbs import Call, Verb
from comity.methods import Method, Payload, Question
from comity.metrics import (
    DECIDING,
    EVIDENCE,
    METRICS,
    OWN,
    VALIDATED,
    Metric,
    balanced_decisions,
    scores,
    unit,
)
from comity.results import ClientScores, Columns, Summary

if TYPE_CHECKING:
    from comity.engine._site import Site

Predict = Callable[[Split], Tensor]
"""Log-probabilities (samples, classes) for the samples of a split."""


def scores_type(metrics: Iterable[Metric]) -> type[Payload]:
    """The reply to ``evaluate``: sizes, and one field for each metric that the client has."""
    kinds: dict[str, Any] = {"n_train": int, "n_test": int}
    defaults: dict[str, float | None] = {}
    for metric in metrics:
        kinds[metric.field] = float if metric.always else float | None
        defaults[metric.field] = math.nan if metric.always else None
    about = {"__annotations__": kinds, "__module__": __name__, "__doc__": "Scores of a client's model."}
    return type("Scores", (Payload,), defaults | about)


Scores = scores_type((*METRICS, *EVIDENCE))


@dataclass(frozen=True)
class Expert:
    """A model in the mixture that a client predicts with, and its weight."""

    name: Literal["own", "federated", "common"]
    weight: float
    site: "Site"
    """The site that has the model's network."""
    vector: Callable[[], Tensor]
    predict: Predict


@dataclass(eq=False)
class Judgement:
    """The evaluation of one client's model: the input of metrics, which extensions may change."""

    site: "Site"
    client: Client
    received: Question
    model: Tensor
    """The federated model that the client would use."""
    common: Tensor | None
    """The common model of all clients, if the method has one; the same object as ``model`` if both are equal."""
    predict: Predict
    """Predictions of the model or mixture that the client uses."""
    predicted: Tensor
    """These predictions for the client's own tests."""
    one_model: Tensor | None
    """The model that makes these predictions; ``None`` if several models are mixed."""
    by_common: Tensor | None = None
    """Predictions of the common model for the client's own tests."""
    notes: dict[str, float | None] = field(default_factory=dict)
    experts: Sequence[Expert] = ()
    """The models whose predictions are mixed; empty if an extension does not provide them."""

    def mix(self, predict: Predict, predicted: Tensor, experts: Sequence[Expert] = ()) -> None:
        """Evaluate the mixed predictions of several models instead of those of one model."""
        self.predict, self.predicted, self.one_model, self.experts = predict, predicted, None, experts
        for name in ("correct", "losses", "constant", "shares"):
            vars(self).pop(name, None)

    @property
    def labels(self) -> Tensor:
        return self.client.data.test.y

    @cached_property
    def correct(self) -> Tensor:
        return hits(self.predicted, self.client.data.test)

    @cached_property
    def losses(self) -> Tensor:
        return losses(self.predicted, self.client.data.test)

    @property
    def deciding(self) -> str:
        """The name of the metric that decides."""
        return self.site.metric

    def expected_shares(self, predict: Predict) -> NDArray[np.float64]:
        """The class shares that a model expects: its mean prediction on the client's samples without the tests.

        A local model expects the client's own shares, a common model those of the federation. Each model is corrected
        for the shares that it expects, so that neither is constant by construction. Classes without samples at the
        client have share 0.
        """
        data = self.site.federation.clients[self.client.id]
        splits = [split for split in (data.train, data.val) if len(split)]
        held = torch.bincount(torch.cat([split.y for split in splits]), minlength=self.predicted.shape[1]) > 0
        mean = torch.cat([predict(split) for split in splits]).double().exp().mean(0).clamp(min=1e-12)
        return torch.where(held, mean, torch.zeros_like(mean)).cpu().numpy()

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        return self.expected_shares(self.predict)

    def scores(
        self, predicted: Tensor, name: str, shares: Callable[[], NDArray[np.float64]], split: Split | None = None
    ) -> NDArray[np.float64] | None:
        """Each sample's score by a metric, on the client's own tests or on a split."""
        labels = (split or self.client.data.test).y
        return scores(name, predicted.cpu(), labels.cpu(), shares() if name == BALANCED else ())

    def mean_score(self, name: str) -> float | None:
        """A metric on the client's own tests; ``None`` if it was not requested or is undefined."""
        asked = self.received.by_class or name == self.deciding
        return _value(self.scores(self.predicted, name, lambda: self.shares), name) if asked else None

    @cached_property
    def constant(self) -> float | None:
        """Whether the model predicts one class for tests of several classes; ``None`` if it was not requested."""
        if not self.received.by_class:
            return None
        predicted = self.predicted.double().cpu().numpy()
        balanced = self.deciding == BALANCED
        decided = balanced_decisions(predicted, self.shares) if balanced else predicted.argmax(1)
        return float(bool((self.labels != self.labels[0]).any()) and bool((decided == decided[0]).all()))


def judged_model(
    client: Client, method: Method[Any, Any], received: Question, eval_point: Literal["received", "fitted"]
) -> Tensor:
    """The federated model to evaluate for this client; as received if the client has never fitted one."""
    fitted = client.engine_keep.get("fitted") if eval_point == "fitted" else None
    return method.personal(client, received) if fitted is None else fitted


def evaluate(site: "Site", client: Client, received: Question) -> Payload:
    """All scores of one client. With ``received.general`` also S-acc and G-acc, which need other clients' tests."""
    model = judged_model(client, site.method, received, site.eval_point)
    common = site.method.general(client, received)
    if common is not None and (common is model or torch.equal(common, model)):
        common = model
    federated = predictor(client, model)
    data = client.data
    judgement = Judgement(site, client, received, model, common, federated, federated(data.test), model)
    judgement.experts = [Expert("own" if site.config.is_local else "federated", 1.0, site, lambda: model, federated)]
    if common is not None:
        judgement.by_common = judgement.predicted if common is model else predictor(client, common)(data.test)
        judgement.notes["common"] = _share(hits(judgement.by_common, data.test))
    for extension in site.extensions:
        extension.judge(judgement)
    if received.by_class:
        _compare_with_local(judgement)
    if len(data.val) and data.val_unseen:
        predicted = federated(data.val)
        judgement.notes["validation"] = _share(hits(predicted, data.val))
        judgement.notes["validation_loss"] = float(losses(predicted, data.val).mean())
        deciding = VALIDATED[judgement.deciding].field
        if deciding not in judgement.notes:
            shares = partial(judgement.expected_shares, federated)
            found = judgement.scores(predicted, judgement.deciding, shares, data.val)
            judgement.notes[deciding] = _value(found, judgement.deciding)
    if received.general:
        one_model = judgement.one_model
        some, everybody = site.tests.general(
            client.id,
            judgement.predict,
            one_model,
            site.config.seed,
            common=one_model is not None and common is one_model,
        )
        judgement.notes |= {"some": some, "all": everybody}
    values = {metric.field: metric.measure(judgement) for metric in site.metrics}
    known = {name: value for name, value in values.items() if value is not None}
    return site.verbs["evaluate"].reply.of({"n_train": len(data.train), "n_test": len(data.test)} | known)


def _value(found: NDArray[np.float64] | None, name: str) -> float | None:
    """A metric from the scores of samples, clipped to its range; ``None`` if it is undefined."""
    metric = DECIDING[name]
    return None if found is None else min(max(metric.gain(float(found.mean()), 0.0), metric.low), metric.high)


def _compare_with_local(judgement: Judgement) -> None:
    """Score the client's model and the local model on each test sample, and note what the test for harm needs."""
    site, client, name = judgement.site, judgement.client, judgement.deciding
    test, mixed = client.data.test, None
    shares = torch.from_numpy(site.class_shares(client.id))
    majority = judgement.scores(shares.log().expand(len(test), -1), name, shares.numpy)
    judgement.notes["majority"] = _value(majority, name)
    mine = judgement.scores(judgement.predicted, name, lambda: judgement.shares)
    baseline = site.baselines.get(site.reference)
    if mine is not None and baseline is not None and baseline.has(client.id):
        own = partial(baseline.on_own, client.id)
        local, expected = own(test), partial(judgement.expected_shares, own)
        compared = judgement.scores(local, name, expected)
        if compared is not None:
            difference = mine - compared
            size = np.abs(difference)
            means = (float(each.mean()) for each in (difference, size**2, size, size**4))
            values = (*means, float(size[size > 0].min(initial=size.max())), unit(name, test.y.cpu().numpy()))
            judgement.notes |= {each.field: value for each, value in zip(EVIDENCE, values, strict=True)}
        if site.config.is_local:  # local training repeated
            both = torch.stack([local, judgement.predicted]).logsumexp(0) - math.log(2)
            mixed = judgement.scores(both, name, lambda: (expected() + judgement.shares) / 2)
            judgement.notes["mixed"] = _value(mixed, name)
    if mine is not None:
        two = judgement.predicted.shape[1] == 2
        probability = judgement.predicted[:, 1].double().exp().cpu().numpy() if two else None
        site.test_scores[client.id] = ClientScores(client.data.test_ids, test.y.cpu().numpy(), mine, mixed, probability)


def predictor(client: Client, model: Tensor) -> Predict:
    """A function that predicts with this model of the client's network."""

    def predict(split: Split) -> Tensor:
        client.model.hold(model)
        return client.predict(split)

    return predict


class Export(Payload):
    """Reply to ``export``: the client's whole model."""

    model: Tensor


def evaluate_verb(message: type[Question], metrics: Iterable[Metric]) -> Verb:
    """The verb ``evaluate``: it leaves the client's state unchanged; its bytes do not count as the method's."""
    metrics = tuple(metrics)
    by_field = {metric.field: metric for metric in metrics}

    def objection(_: Payload, reply: Payload) -> str | None:
        values = reply.values()
        if values["n_test"] <= 0:
            return f"sent n_test that is {values['n_test']}; it must be above 0"
        if values["n_train"] < 0:
            return f"sent n_train that is {values['n_train']}; it must not be negative"
        for name, value in values.items():
            if name in by_field and (why := by_field[name].objection(value)) is not None:
                return f"sent {name} {why}"
        return None

    reply = Scores if metrics == (*METRICS, *EVIDENCE) else scores_type(metrics)
    optional = frozenset(metric.field for metric in metrics if metric.optional)
    checks = frozenset(by_field)
    return Verb(
        "evaluate", message, reply, _evaluate, objection, checks, read_only=True, judges=True, optional=optional
    )


def _evaluate(call: Call) -> tuple[Payload, ClientState]:
    client = call.client("evaluate")
    before = client.snapshot()
    return evaluate(call.site, client, call.received), before


def export_verb(message: type[Question]) -> Verb:
    """The verb ``export``: it returns the model that was evaluated, even if the method trains to make it."""
    return Verb("export", message, Export, _export, read_only=True)


def _export(call: Call) -> tuple[Payload, ClientState]:
    client = call.client("evaluate")
    before = client.snapshot()
    return Export(model=judged_model(client, call.site.method, call.received, call.site.eval_point)), before


def loss_as_received(site: "Site", client: Client, received: Payload, split: Split) -> float:
    """The loss of the received model: the common model, or the client's own if the method has none."""
    before = client.snapshot()
    common = site.method.general(client, received)
    client.model.write(site.method.personal(client, received) if common is None else common)
    client.keep, client.engine_keep = before.method, before.engine
    return client.loss(split)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


# Columns: one evaluation, a list over clients for each metric.


def columns_of(scores: Mapping[int, Payload], metrics: Iterable[Metric]) -> Columns:
    """A list over clients for each score that all clients have or that may be undefined for some."""
    columns: Columns = {"client": list(scores)}
    for name in ("n_train", "n_test"):
        columns[name] = [getattr(each, name) for each in scores.values()]
    for metric in metrics:
        values = [getattr(each, metric.field) for each in scores.values()]
        if metric.undefined and any(value is not None for value in values):
            values = [math.nan if value is None else value for value in values]
        if None not in values:
            columns[metric.key] = values
    return columns


def by_client(columns: Columns, name: str = OWN.key) -> dict[int, float]:
    """Each client's accuracy on its own tests, or another column, by client."""
    return {int(cid): value for cid, value in zip(columns["client"], columns[name], strict=True)}


def summaries(columns: Columns, metrics: Iterable[Metric]) -> dict[str, Summary]:
    """Summary of each metric of an evaluation over all clients."""
    return {metric.key: summarise(columns, metric) for metric in metrics if metric.averaged and metric.key in columns}


def summarise(columns: Columns, metric: Metric) -> Summary:
    """Summary of one metric over all clients for which it is defined."""
    values, weights = (torch.tensor(columns[each], dtype=torch.float64) for each in (metric.key, "n_test"))
    if metric.undefined:
        has_it = ~values.isnan()
        values, weights = values[has_it], weights[has_it]
    worst = values.sort(descending=metric.better == "lower").values
    return Summary(
        mean=float(values.mean()),
        std=float(values.std(correction=0)),
        samples=float(values @ weights / weights.sum()),
        worst10=float(worst[: max(1, -(-len(values) // 10))].mean()),
    )
