"""Guards: how a client decides on held-out samples which mixture of its own and the federated model to use."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from comity._options import CountOrZero, ShareBelowOne, ShareBetween, check
from comity.config import ACCURACY, BALANCED
from comity.guard.certificate import certify
from comity.guard.mixture import mixture_weights
from comity.metrics import balanced_decisions, class_weights, scores

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

OWN = 0
"""Index of the client's own model among the experts; the federated one follows."""
LOG_LOSS_LIMIT = 5.0
"""Upper limit in nats of a sample's log-loss in a certificate, which needs bounded losses: a probability of 0.7 %."""
BRIER_LIMIT = 2.0


@dataclass(frozen=True)
class Choice:
    """The weight of each expert's predictions, and the guard's bound."""

    weights: Array
    bound: float | None = None
    """Upper bound of the loss minus that of the local baseline, with the guaranteed probability; ``None`` if the client
    uses the local baseline, or no probability is guaranteed."""


def _no_samples() -> tuple[Array, Labels]:
    return np.zeros((1, 0, 1)), np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class HeldOut:
    """Held-out samples of a client that no expert has seen, and the metric that decides."""

    probabilities: Array
    """(experts, samples, classes) predictions of each expert."""
    labels: Labels
    metric: str = ACCURACY
    seen: float = 1.0
    """Share of the local baseline's training samples that the client's own model was trained on."""
    train: Callable[[], tuple[Array, Labels]] = _no_samples
    """Predictions and labels for the samples that the client's own model was trained on."""

    def part(self, places: NDArray[np.int64]) -> "HeldOut":
        return replace(self, probabilities=self.probabilities[:, places], labels=self.labels[places])

    @property
    def experts(self) -> int:
        return len(self.probabilities)

    def mixture(self, own: int = 0) -> Array:
        """Posterior mean of the weights; by class-weighted log-loss if balanced accuracy decides."""
        powers = class_weights(self.labels) if self.metric == BALANCED else None
        return mixture_weights(of_labels(self.probabilities, self.labels), powers, own=own).weights


class Losses:
    """Loss of each sample by the metric that decides, divided by ``scale`` so that it is from 0 to 1.

    Accuracy counts errors, as booleans. So does AUC, which is not a mean over samples. Balanced accuracy counts the
    errors of its own decisions, weighted by the class shares of the training samples, so that the losses do not depend
    on the samples that they are measured on. Log-loss is limited to ``LOG_LOSS_LIMIT``.
    """

    def __init__(self, held: HeldOut) -> None:
        self.metric = held.metric if held.metric in (BALANCED, "brier", "log-loss") else ACCURACY
        self.held = held
        limits = {"brier": BRIER_LIMIT, "log-loss": LOG_LOSS_LIMIT}
        self.scale = float(self._by_class.max()) if self.metric == BALANCED else limits.get(self.metric, 1.0)

    @cached_property
    def _by_class(self) -> Array:
        """(classes,) weight of an error; 0 for classes without training samples, which are never predicted."""
        probabilities, labels = self.held.train()
        weights = np.zeros(probabilities.shape[2])
        weights[labels] = class_weights(labels)
        return weights

    @cached_property
    def _expected(self) -> Array:
        """(experts, classes) mean predictions on the training samples; 0 for classes without any."""
        expected = np.maximum(self.held.train()[0].mean(1), 1e-12)
        return np.where(self._by_class > 0, expected, 0.0)

    def __call__(self, weights: Array, probabilities: Array, labels: Labels) -> Array | NDArray[np.bool_]:
        mixed = np.tensordot(weights, probabilities, 1)
        if self.metric == ACCURACY:
            return np.asarray(mixed.argmax(1) != labels)
        with np.errstate(divide="ignore"):
            predicted = np.log(mixed)
        if self.metric == BALANCED:
            wrong = balanced_decisions(predicted, weights @ self._expected) != labels
            return np.asarray(self._by_class[labels] * wrong / self.scale)
        lost = scores(self.metric, predicted, labels, ())
        assert lost is not None
        return np.clip(-lost / self.scale, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Guard(ABC):
    """A guard: weighs a client's own, the federated and possibly the global model by held-out samples."""

    validation: ClassVar[float] = 0.2
    """Share of a client's training samples that is held out if the run holds out none."""
    refits: ClassVar[bool] = False
    """Whether both models are also trained on the held-out samples once the weights are known."""

    def __post_init__(self) -> None:
        check(self, "guard")

    def choose(self, held: HeldOut, random: np.random.Generator) -> Choice:
        """Choose from the experts' predictions for samples that none of them has seen.

        A client with all weight on its own model uses the local baseline, which was trained on all of its samples.
        """
        if not len(held.labels):  # no evidence for another model
            return Choice(only(OWN, held.experts), None)
        return self.weigh(held, random)

    @abstractmethod
    def weigh(self, held: HeldOut, random: np.random.Generator) -> Choice:
        """Like ``choose``, with at least one sample."""


@dataclass(frozen=True, kw_only=True)
class Mixture(Guard):
    """Mix the predictions of the client's own model and the federated one, with weights found on held-out samples.

    Paper: Cover, Mathematical Finance 1991 (universal portfolios).

    Equation: p(y|x) = Σ_k ŵ_k p_k(y|x), where ŵ is the posterior mean of the weights under a uniform prior, given the
    labels of n held-out samples. In expectation its log-loss is at most that of the own model trained without the
    held-out samples + ln((n+K)/(n+1)). This says nothing about accuracy.

    Departures:
        - Once the weights are known, both models are also trained on the held-out samples (``--refit``); the bound is
          about the models before that.
        - If balanced accuracy decides, each class has the same weight in the log-loss; no bound is proved for that.

    Options:
        own: prior weight of the client's own model, in samples: larger values are safer and gain less; the bound on
            the excess log-loss is then ln((n+own+K)/(n+own+1)) for n held-out samples and K models
    """

    refits = True

    own: CountOrZero = 0

    def weigh(self, held: HeldOut, random: np.random.Generator) -> Choice:
        return Choice(held.mixture(self.own))


@dataclass(frozen=True, kw_only=True)
class Selection(Guard):
    """Use the model with the lowest log-loss on held-out samples: the client's own or the federated one.

    Equation: the expert k with the largest Σ_i ln p_k(y_i|x_i) over the held-out samples; the own model in a tie. There
    is no bound: with few samples the wrong model is often chosen. If balanced accuracy decides, each class has the same
    weight.

    Departures:
        - After the choice, both models are also trained on the held-out samples (``--refit``).
    """

    refits = True

    def weigh(self, held: HeldOut, random: np.random.Generator) -> Choice:
        weights = class_weights(held.labels) if held.metric == BALANCED else np.ones(len(held.labels))
        with np.errstate(divide="ignore"):
            likelihood = weights @ np.log(of_labels(held.probabilities, held.labels))
        return Choice(only(int(np.argmax(likelihood)), held.experts))


@dataclass(frozen=True, kw_only=True)
class Certified(Guard):
    """Use the federated model if a test on unused samples shows that it is not worse, otherwise the local baseline.

    Paper: Angelopoulos et al., Annals of Applied Statistics 2025 (Learn then Test).

    Equation: P(loss of what is used ≤ loss of the own model − b + margin) ≥ 1 − delta for each client that does not use
    the local baseline itself. The own model is trained without the held-out samples; b estimates how much better the
    local baseline is, which is trained on all. The mixture weights come from one half of the held-out samples. The
    other half tests first the mixture, then the federated model, each at level delta; the tests end with the first
    failure.

    Departures:
        - Nothing is trained on the held-out samples afterwards, unless ``--refit`` is given: the guarantee is about
          the models that were tested.
        - b is (1 − n/N)·(held-out loss − training loss)/2 for an own model trained on n of N samples, by the first
          half: the local loss falls as 1/n to a limit midway between both losses. This is an estimate, not a bound.

    Options:
        delta: probability of a wrong certificate, per client
        margin: allowed excess of the loss over the local baseline, in the unit of --metric (0.02 = 2 points)
    """

    validation = 0.4

    delta: ShareBetween = 0.05
    margin: ShareBelowOne = 0.02

    def weigh(self, held: HeldOut, random: np.random.Generator) -> Choice:
        order = random.permutation(len(held.labels))
        first, untouched = (held.part(half) for half in np.split(order, [len(order) // 2]))
        candidates = {"mixture": first.mixture()}
        candidates |= {f"expert {k}": only(k, held.experts) for k in range(OWN + 1, held.experts)}
        losses = Losses(held)
        lost = {name: losses(each, untouched.probabilities, untouched.labels) for name, each in candidates.items()}
        own = losses(only(OWN, held.experts), untouched.probabilities, untouched.labels)
        certificate = certify(own, lost, self.margin / losses.scale, self.delta, benefit(first, losses))
        if certificate.released is None or certificate.bound is None:
            return Choice(only(OWN, held.experts))
        return Choice(candidates[certificate.released], max(-1.0, certificate.bound * losses.scale))


def benefit(held: HeldOut, losses: Losses) -> float:
    """Estimated decrease of the own model's loss if it were trained on all samples of the client.

    Local loss falls as 1/n to a limit midway between the losses on training and on held-out samples, as for a model
    with a fixed number of parameters. One more held-out sample counts as lost, because few samples are unreliable.
    """
    if held.seen >= 1:
        return 0.0
    own, count = only(OWN, held.experts), len(held.labels)
    unseen = (float(losses(own, held.probabilities, held.labels).sum()) + 1) / (count + 1)
    probabilities, labels = held.train()
    seen = float(losses(own, probabilities, labels).mean()) if len(labels) else 0.0
    return max(0.0, (1 - held.seen) * (min(unseen, 1.0) - seen) / 2)


def only(expert: int, experts: int) -> Array:
    """All weight on one expert."""
    return np.asarray(np.eye(experts)[expert])


def of_labels(probabilities: Array, labels: Labels) -> Array:
    """(samples, experts) probability of the true label by each expert."""
    return np.asarray(probabilities[:, np.arange(len(labels)), labels].T)


GUARDS: dict[str, type[Guard]] = {"mixture": Mixture, "certified": Certified, "selection": Selection}
