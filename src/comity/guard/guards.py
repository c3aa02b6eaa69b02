"""How a client decides, on its own held-out samples, what to use beside or instead of the federated model."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from comity._options import ShareBelowOne, ShareBetween, check
from comity.guard.certificate import certify
from comity.guard.mixture import mixture_weights

Array = NDArray[np.float64]

OWN = 0
"""The place of the client's own model among the experts; the federated one follows."""


@dataclass(frozen=True)
class Choice:
    """The weight of each expert's predictions, and what is known of the result."""

    weights: Array
    bound: float | None = None
    """The error is above that of the client's own model by at most this share of samples, with the promised
    probability; ``None`` where nothing is promised."""


@dataclass(frozen=True, kw_only=True)
class Guard(ABC):
    """Weighs a client's own model, the federated one and the common one, if there is one, by samples held out."""

    validation: ClassVar[float] = 0.2
    """Share of a client's training samples that is held out where the run keeps none."""
    refits: ClassVar[bool] = False
    """Whether both models are fitted on the held-out samples too, when the weights are known."""

    def __post_init__(self) -> None:
        check(self, "guard")

    def choose(self, probabilities: Array, labels: NDArray[np.int64], random: np.random.Generator) -> Choice:
        """From each expert's probabilities (experts, samples, classes) for samples that none of them has seen."""
        experts, samples, _ = probabilities.shape
        if samples == 0:  # nothing speaks for anybody else's model
            return Choice(only(OWN, experts), None)
        return self.weigh(probabilities, labels, random)

    @abstractmethod
    def weigh(self, probabilities: Array, labels: NDArray[np.int64], random: np.random.Generator) -> Choice:
        """As ``choose``, with one sample at least."""


@dataclass(frozen=True, kw_only=True)
class Mixture(Guard):
    """Mix the predictions of the client's own model with those of the federated one, by how well each foretells.

    Paper: Cover, Mathematical Finance 1991 (universal portfolios).

    Equation: p(y|x) = Σ_k ŵ_k p_k(y|x), where ŵ is the posterior mean of the weights under a uniform prior, given the
    labels of n held-out samples. Its expected log-loss is at most that of the client's own model + ln((n+K)/(n+1)).

    Departures:
        - When the weights are known, both models are fitted on the held-out samples too (``--refit``); the bound is
          about the models before that.
    """

    refits = True

    def weigh(self, probabilities: Array, labels: NDArray[np.int64], random: np.random.Generator) -> Choice:
        return Choice(mixture_weights(of_labels(probabilities, labels)).weights)


@dataclass(frozen=True, kw_only=True)
class Certified(Guard):
    """Use what was shown on untouched samples not to be worse than the client's own model, else the own model.

    Paper: Angelopoulos et al., Annals of Applied Statistics 2025 (Learn then Test).

    Equation: P(error of what is used ≤ error of the own model + margin) ≥ 1 − delta, for each client. The mixture is
    weighed on one half of the held-out samples. The other half tests first the mixture, then the federated model, each
    at level delta, and the first that fails ends the testing.

    Departures:
        - Nothing is fitted on the held-out samples afterwards: the promise is about the models that were tested.

    Options:
        delta: how often the promise may be broken
        margin: how much worse than alone counts as no worse, as a share of samples
    """

    validation = 0.4

    delta: ShareBetween = 0.05
    margin: ShareBelowOne = 0.02

    def weigh(self, probabilities: Array, labels: NDArray[np.int64], random: np.random.Generator) -> Choice:
        experts, samples, _ = probabilities.shape
        order = random.permutation(samples)
        first, untouched = order[: samples // 2], order[samples // 2 :]
        candidates = {"mixture": mixture_weights(of_labels(probabilities[:, first], labels[first])).weights}
        candidates |= {f"expert {k}": only(k, experts) for k in range(OWN + 1, experts)}
        wrong = {name: errors(weights, probabilities, labels)[untouched] for name, weights in candidates.items()}
        own = errors(only(OWN, experts), probabilities, labels)[untouched]
        certificate = certify(own, wrong, self.margin, self.delta)
        if certificate.released is None:
            return Choice(only(OWN, experts), 0.0)
        return Choice(candidates[certificate.released], certificate.verdicts[certificate.released].evidence.upper_bound)


def only(expert: int, experts: int) -> Array:
    """All weight on one expert."""
    return np.asarray(np.eye(experts)[expert])


def of_labels(probabilities: Array, labels: NDArray[np.int64]) -> Array:
    """(samples, experts): what each expert gave to the true label."""
    return np.asarray(probabilities[:, np.arange(len(labels)), labels].T)


def errors(weights: Array, probabilities: Array, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """On which samples a mixture is wrong."""
    return np.asarray(np.tensordot(weights, probabilities, 1).argmax(1) != labels)


GUARDS: dict[str, type[Guard]] = {"mixture": Mixture, "certified": Certified}
