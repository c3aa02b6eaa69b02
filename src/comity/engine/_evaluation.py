"""How good each client's model is: for itself, for some others, for everybody."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._random import generator, numpy_generator
from comity.compare import transfer
from comity.data import Federation, Split, in_training_layout
from comity.engine._by_class import area_under_curve, balanced_accuracy
from comity.engine._client import Client, hits, losses
from comity.engine._verbs import Scores, Weighed
from comity.guard import expected_calibration_error
from comity.methods import Method, Question
from comity.results import schema

if TYPE_CHECKING:
    from comity.engine._site import Site

Predict = Callable[[Split], Tensor]
"""The logarithm of each class's probability for each sample."""
MOST_ANSWERS = 10_000_000
"""Answers of models to tests that G-acc, and S-acc likewise, may take; beyond, each model is tried on a sample."""
LEAST_SAMPLE = 400
"""Tests in such a sample: a standard error of 2.5 points at most."""
COLUMNS = {
    "n_train": "n_train",
    "n_test": "n_test",
    schema.OWN: "own",
    schema.BALANCED: "balanced",
    schema.AUC: "auc",
    schema.LOSS: "loss",
    schema.VALIDATION: "validation",
    schema.VALIDATION_LOSS: "validation_loss",
    schema.SOME: "some",
    schema.ALL: "all",
    schema.COMMON: "common",
    schema.CALIBRATION: "calibration",
    schema.ONLY_LOCAL: "only_local",
    schema.ONLY_JOINED: "only_joined",
    schema.UNGUARDED: "unguarded",
    schema.OWN_WEIGHT: "own_weight",
    schema.BOUND: "bound",
}
"""The names of a client's scores in tables and files, each with its field."""


def sample_size(federation: Federation, training: float = math.inf) -> int | None:
    """On how many tests each personal model is tried for S-acc and for G-acc; ``None``: on all that there are.

    At most so many that both together cost a tenth of the ``training``, in passes of a sample through the net.
    """
    clients, tests = len(federation), sum(len(client.test) for client in federation.clients)
    sample = max(LEAST_SAMPLE, int(min(MOST_ANSWERS, training / 20) / clients))
    return None if sample >= tests else sample


def general_error(sample: int | None) -> float:
    """The largest standard error that a client's S-acc or G-acc can have for the sake of its sample."""
    return 0.0 if sample is None else 0.5 / math.sqrt(sample)


@dataclass
class TestPool:
    """The tests of all clients, one after another, or a sample where there are too many."""

    federation: Federation
    starts: tuple[int, ...]
    sample: int | None
    others: float
    """Share of the other clients whose tests join a client's own in S-acc."""
    _last: tuple[Tensor, Tensor] | None = None
    """The last model that was tested, and which of its answers were right: all clients may have the same model."""

    @classmethod
    def of(cls, federation: Federation, others: float, training: float = math.inf) -> "TestPool":
        starts = itertools.accumulate((len(client.test) for client in federation.clients), initial=0)
        return cls(federation, tuple(starts), sample_size(federation, training), others)

    @cached_property
    def split(self) -> Split:
        """Everybody's tests: put together when they are first asked for, which some runs never do."""
        tests = [client.test for client in self.federation.clients]
        x = in_training_layout(torch.cat([test.x for test in tests]))
        return Split(x, torch.cat([test.y for test in tests]))

    @cached_property
    def sampled(self) -> Split:
        """The tests for G-acc, the same for all clients: by chance, but of every client and class its share."""
        if self.sample is None:
            return self.split
        random = generator(self.federation.seed, "G-acc")
        tests = zip(self.starts, self.federation.clients, strict=False)
        by_class = torch.cat([start + client.test.y.argsort(stable=True).cpu() for start, client in tests])
        one_of_each_stretch = torch.arange(self.sample) + torch.rand(self.sample, generator=random, dtype=torch.float64)
        return self._some(by_class[(one_of_each_stretch * (len(by_class) / self.sample)).long()])

    def _some(self, chosen: Tensor) -> Split:
        chosen = chosen.to(self.split.y.device)
        return Split(in_training_layout(self.split.x[chosen]), self.split.y[chosen])

    def general(
        self, cid: int, predict: Predict, model: Tensor | None, seed: int, common: bool = False
    ) -> tuple[float, float]:
        """S-acc and G-acc of a client's predictions; ``model`` where they are those of one model alone.

        A model that is ``common`` to all is tried on all tests, once; S-acc looks at some of its answers.
        """
        if self.sample is None or common:
            right = self.right(predict, model, self.split)
            # Beyond so many, to draw tests of every other client takes too long; there is a sample then.
            many = len(right) * len(self.federation) * self.others > MOST_ANSWERS
            return _share(right[(self.drawn if many else self.mixed)(cid, seed)]), _share(right)
        some = self._some(self.drawn(cid, seed))
        return _share(hits(predict(some), some)), _share(self.right(predict, model, self.sampled))

    def right(self, predict: Predict, model: Tensor | None, tests: Split) -> Tensor:
        """Which answers are right. The same model is tested once."""
        last = self._last
        if model is not None and last is not None and torch.equal(last[0], model):
            return last[1]
        right = hits(predict(tests), tests)
        if model is not None:
            self._last = model, right
        return right

    def drawn(self, cid: int, seed: int) -> Tensor:
        """Indices for S-acc, drawn one by one from the tests that ``mixed`` is about."""
        assert self.sample is not None
        starts, random = torch.tensor(self.starts), generator(seed, "S-acc", cid)
        sizes, clients = starts.diff(), len(starts) - 1
        others = torch.randperm(clients, generator=random)
        others = others[others != cid][: max(1, round(self.others * (clients - 1)))]
        whose = torch.cat([torch.tensor([cid]), others])
        ends = sizes[whose].clamp(max=int(sizes[cid])).cumsum(0)
        if int(ends[-1]) <= self.sample:
            return self.mixed(cid, seed)
        places = torch.randint(int(ends[-1]), (self.sample,), generator=random)
        whose = whose[torch.searchsorted(ends, places, right=True)]
        return starts[whose] + (torch.rand(self.sample, dtype=torch.float64, generator=random) * sizes[whose]).long()

    def mixed(self, cid: int, seed: int) -> Tensor:
        """Indices for S-acc: the client's own tests and as many of each of a few other clients, drawn once."""
        starts, random = self.starts, generator(seed, "S-acc", cid)
        own, clients = starts[cid + 1] - starts[cid], len(starts) - 1
        others = [other for other in torch.randperm(clients, generator=random).tolist() if other != cid]
        chosen = [torch.arange(starts[cid], starts[cid + 1])]
        for other in others[: max(1, round(self.others * (clients - 1)))]:
            size = starts[other + 1] - starts[other]
            chosen.append(starts[other] + torch.randperm(size, generator=random)[:own])
        return torch.cat(chosen)


def judged(
    client: Client, method: Method[Any, Any], received: Question, moment: Literal["received", "fitted"]
) -> Tensor:
    """The federated model that counts as the client's own. One that never fitted is judged as received."""
    fitted = client.engine_keep.get("fitted") if moment == "fitted" else None
    return method.personal(client, received) if fitted is None else fitted


def exported(site: "Site", client: Client, received: Question) -> Tensor:
    """The one model that the client uses; where a guard mixes the predictions of several, the federated one."""
    model = judged(client, site.method, received, site.moment)
    if site.guard is None or not site.guard.shares:
        return model
    weights, _ = guard_weights(site, client, model, None)
    return averages(site, client, model, [float(weights[0])])[0]


def evaluate(site: "Site", client: Client, received: Question) -> Scores:
    """All scores of one client. With ``received.general`` also S-acc and G-acc, which need other clients' tests."""
    model = judged(client, site.method, received, site.moment)
    common = site.method.general(client, received)
    if common is not None and torch.equal(common, model):
        common = model
    federated = predictor(client, model)
    data, cid, predict = client.data, client.id, federated
    predicted = federated(data.test)
    by_common = None if common is None else predicted if common is model else predictor(client, common)(data.test)
    scores = Scores(n_train=len(data.train), n_test=len(data.test))
    if by_common is not None:
        scores.common = _share(hits(by_common, data.test))
    if site.guard is not None:
        scores.unguarded = _share(hits(predicted, data.test))
        weights, scores.bound = guard_weights(site, client, model, common)
        scores.own_weight = float(weights[0])
        if site.guard.shares:
            predict = predictor(client, averages(site, client, model, [float(weights[0])])[0])
            predicted = predict(data.test)
        else:
            own = site.own_model(client.round)
            experts: list[Predict] = [partial(own.predict, cid), federated]
            known = [own.on_own(cid, data.test), predicted]
            if len(weights) > 2 and common is not None and by_common is not None:
                experts, known = [*experts, predictor(client, common)], [*known, by_common]
            predict, predicted = mixed(experts, weights), mixture(known, weights)

    right = hits(predicted, data.test)
    scores.own, scores.loss = _share(right), float(losses(predicted, data.test).mean())
    if received.by_class:
        scores.balanced, scores.auc = balanced_accuracy(right, data.test.y), area_under_curve(predicted, data.test.y)
    scores.calibration = expected_calibration_error(predicted.exp().amax(1).clamp(max=1).cpu(), right.cpu())
    if site.reference is not None and site.reference.has(cid):
        alone = hits(site.reference.on_own(cid, data.test), data.test)
        scores.only_local, scores.only_joined = int((alone & ~right).sum()), int((right & ~alone).sum())
    if len(data.val) and site.holds_out(client.round):
        predicted = federated(data.val)
        scores.validation = _share(hits(predicted, data.val))
        scores.validation_loss = float(losses(predicted, data.val).mean())
    if received.general:
        alike = model if site.guard is None else None
        scores.some, scores.all = site.tests.general(
            cid, predict, alike, site.seed, common=alike is not None and common is alike
        )
    return scores


def weigh(site: "Site", client: Client, received: Question) -> Weighed:
    """Have the guard choose by the client's validation samples; the client keeps what it chose."""
    model = judged(client, site.method, received, site.moment)
    weights, bound = guard_weights(site, client, model, site.method.general(client, received))
    client.engine_keep["guard"] = weights
    if bound is not None:
        client.engine_keep["guard.bound"] = torch.tensor(bound, dtype=torch.float64)
    return Weighed(own_weight=float(weights[0]))


def guard_weights(site: "Site", client: Client, model: Tensor, common: Tensor | None) -> tuple[Tensor, float | None]:
    """The weights of the client's own model, the federated one and perhaps the common one, and the guard's promise.

    What the client chose once is kept. Before that each evaluation chooses for itself, so that its numbers are those
    of a run that ends there.
    """
    assert site.guard is not None
    if (kept := client.engine_keep.get("guard")) is not None:
        bound = client.engine_keep.get("guard.bound")
        return kept, None if bound is None else float(bound)
    if not site.holds_out(client.round):  # it was away when the others chose; now nothing is held out any more
        return torch.tensor([1.0, 0.0], dtype=torch.float64), None
    val, predicted = client.data.val, []
    if site.guard.shares:
        models = averages(site, client, model, site.guard.shares)
    else:
        models = [model] if common is None or torch.equal(common, model) else [model, common]
        predicted.append(site.own_model(client.round).on_own(client.id, val))
    predicted += [predictor(client, each)(val) for each in models]
    probabilities = torch.stack(predicted).double().exp().clamp(max=1).cpu().numpy()
    choice = site.guard.choose(probabilities, val.y.cpu().numpy(), numpy_generator(site.seed, "guard", client.id))
    return torch.from_numpy(choice.weights), choice.bound


def averages(site: "Site", client: Client, model: Tensor, shares: Sequence[float]) -> list[Tensor]:
    """The mean of the client's own model, with each of these shares, and the federated one."""
    own = site.own_model(client.round).vector(client.id)
    if own.shape != model.shape:
        raise ComityError(f"guard averaged cannot take the network to which {type(site.method).__name__} adds parts")
    return [share * own + (1 - share) * model for share in shares]


def predictor(client: Client, model: Tensor) -> Predict:
    """The predictions of a model of the client's network."""

    def predict(split: Split) -> Tensor:
        client.model.write(model)
        return client.predict(split)

    return predict


def mixed(experts: Sequence[Predict], weights: Tensor) -> Predict:
    """The predictions of a mixture. Those without weight are not asked."""
    asked = [place for place, weight in enumerate(weights) if weight > 0]
    return lambda split: mixture([experts[place](split) for place in asked], weights[asked])


def mixture(predictions: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Predictions mixed. Those with all of the weight stay as they are, to the bit."""
    used = [(float(weight.log()), each) for weight, each in zip(weights, predictions, strict=True) if weight > 0]
    return used[0][1] if len(used) == 1 else torch.stack([each + log_weight for log_weight, each in used]).logsumexp(0)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def columns_of(scores: dict[int, Scores]) -> schema.Columns:
    """A list over clients for each score that all of them have, or that those have whose tests hold several classes."""
    columns: schema.Columns = {"client": list(scores)}
    for name, field in COLUMNS.items():
        values = [getattr(each, field) for each in scores.values()]
        if name in schema.BY_CLASS and any(value is not None for value in values):
            values = [math.nan if value is None else value for value in values]
        if None not in values:
            columns[name] = values
    return columns


def counted(columns: schema.Columns, name: str) -> dict[int, int]:
    """A number of tests of each client; empty where it was not counted."""
    return {cid: int(number) for cid, number in by_client(columns, name).items()} if name in columns else {}


def transfer_of(
    columns: schema.Columns, local: Mapping[int, float], local_on: Literal["all", "train"]
) -> schema.Transfer | None:
    """What joining changed for the clients of an evaluation, against their accuracies alone."""
    only = (counted(columns, name) for name in (schema.ONLY_LOCAL, schema.ONLY_JOINED))
    return transfer(by_client(columns), local, *only, local_on=local_on)


def by_client(columns: schema.Columns, name: str = schema.OWN) -> dict[int, float]:
    """Each client's accuracy on its own tests, or another of its numbers."""
    return {int(cid): value for cid, value in zip(columns["client"], columns[name], strict=True)}


def summarise(columns: schema.Columns, name: str) -> schema.Summary:
    """One metric over all clients, or over those that have it."""
    values, weights = (torch.tensor(columns[each], dtype=torch.float64) for each in (name, "n_test"))
    if name in schema.BY_CLASS:
        has_it = ~values.isnan()
        values, weights = values[has_it], weights[has_it]
    worst = values.sort(descending=name in (schema.LOSS, schema.VALIDATION_LOSS)).values
    return schema.Summary(
        mean=float(values.mean()),
        std=float(values.std(correction=0)),
        samples=float(values @ weights / weights.sum()),
        worst10=float(worst[: max(1, -(-len(values) // 10))].mean()),
    )
