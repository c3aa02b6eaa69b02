"""The guard after deployment: labels update the weights, and an alarm switches back to the client's own model.

Every labelled sample is first predicted with the weights from earlier labels, then learnt from:

- ``weights`` mix the models' probabilities. They are the posterior under a fixed share (Herbster & Warmuth 1998); with
  share 0, Bayes. In total the mixture loses at most ln(1/w_own) nats to the client's own model, on every sequence.
- ``votes`` are the probabilities with which a decision is taken from each model: the same update with the factors of
  (A, B)-Prod (Sani, Neu & Lazaric 2014). With share 0 and votes of ½ at most 2 ln 2 = 1.39 extra errors are expected
  in total, on every sequence.
- Two e-processes bet on the difference of the losses of the model in use and of the own model. One alarms: in use has
  been worse by more than the margin, and the own model is used until the federated one changes. The other certifies
  that it has not. Each is wrong with a probability of at most delta for each version of the federated model.

Which statement holds for which quantity, with proofs, is in docs/explanation/guard-mathematics.md.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from comity._errors import ComityError
from comity._options import Range, ShareBelowOne, ShareBetween, check_arguments
from comity._write import locked, write_text
from comity.config import BALANCED
from comity.guard.feedback import (
    MOST_DELAY,
    MOST_POINTS,
    MOST_VERSIONS,
    STAKES,
    Logs,
    OnlineState,
    Point,
    Report,
    Version,
    parse,
)
from comity.guard.guards import BRIER_LIMIT, LOG_LOSS_LIMIT, OWN
from comity.guard.mixture import FLOOR

Array = NDArray[np.float64]

FEEDBACK = "feedback.json"
"""File of the state in the folder of a deployed model."""
RATE = 0.5
"""Learning rate of votes: factors are 1 + RATE·(loss of own − loss of the other)."""
MOST_BYTES = 8_000_000


class OnlineGuard:
    """Mixture weights of a client's own model and the federated one after deployment, and the alarm."""

    def __init__(self, state: OnlineState) -> None:
        self._state = state
        shares, held = np.array(state.class_shares), np.count_nonzero(state.class_shares)
        self._by_class = np.divide(1, held * shares, out=np.zeros(len(shares)), where=shares > 0)
        limits = {"brier": BRIER_LIMIT, "log-loss": LOG_LOSS_LIMIT, BALANCED: self._by_class.max(initial=0.0)}
        self._scale = float(limits.get(state.metric, 1.0))

    @classmethod
    def start(
        cls,
        weights: Sequence[float] | Array,
        version: str,
        metric: str = "accuracy",
        margin: ShareBelowOne = 0.02,
        delta: ShareBetween = 0.05,
        share: ShareBelowOne = 0.002,
        delay: Annotated[int, Range(least=0, most=MOST_DELAY)] = 0,
        class_shares: Sequence[float] | Array = (),
    ) -> Self:
        """A guard before its first label.

        ``weights``: initial weights of the models, the client's own first, as chosen by the run's guard. ``version``:
        name of the federated model, for example a checksum of its parameters. ``margin``: in the unit of the metric.
        ``share``: part of the weight that is spread over all models after every label, so that a bad model can recover
        and the own one keeps a floor; 0 never forgets. ``delay``: maximum number of later predictions before a label
        arrives. ``class_shares``: class shares of the client's training samples, for balanced accuracy.
        """
        check_arguments(cls.start, "", margin=margin, delta=delta, share=share, delay=delay)
        given = np.asarray(weights, dtype=float)
        if given.ndim != 1 or not np.all(given >= 0) or not abs(given.sum() - 1) < 1e-6:
            raise ComityError("weights must be numbers of at least 0 with sum 1, that of the own model first")
        spread = np.maximum((1 - share) * given + share / len(given), FLOOR)
        logs, nothing = np.log(spread / spread.sum()).tolist(), [0.0] * len(STAKES)
        even = [-math.log(len(given))] * len(given)
        state = {
            **{"metric": metric, "margin": margin, "delta": delta, "share": share, "delay": delay},
            **{"class_shares": np.asarray(class_shares, dtype=float).tolist(), "start": logs},
            **{"weights": [logs] * (delay + 1), "votes": [even] * (delay + 1), "losses": [0.0] * (len(given) + 2)},
            **{"alarm": nothing, "certificate": nothing, "versions": [{"name": version, "since": 0}]},
        }
        return cls.from_state(state, "online guard")

    @classmethod
    def from_state(cls, state: Any, where: str = FEEDBACK) -> Self:
        """Restore from the result of ``state``, or the bytes of its file; inconsistent states are rejected."""
        return cls(parse(state, where))

    def state(self) -> dict[str, Any]:
        """The complete state, as dictionaries, lists, texts and numbers."""
        plain: dict[str, Any] = msgspec.to_builtins(self._state)
        return plain

    @property
    def record(self) -> OnlineState:
        """The state, for reading."""
        return self._state

    @property
    def alarmed(self) -> bool:
        return self._state.versions[-1].alarm_at is not None

    @property
    def weights(self) -> Array:
        """Mixture weights of the models for the next sample."""
        return self._of(self._state.weights)

    @property
    def votes(self) -> Array:
        """Probability of taking the next decision from each model."""
        return self._of(self._state.votes)

    def predict(self, probabilities: ArrayLike, pending: int = 0) -> Array:
        """The mixture (n, C) of the models' probabilities (K, n, C) for the next n samples.

        ``pending``: number of earlier predictions without labels so far; it matters with a ``delay``.
        """
        given = self._probabilities(probabilities)
        weights = [self._of(self._state.weights, pending + i) for i in range(given.shape[1])]
        return np.asarray(np.einsum("nk,knc->nc", np.reshape(weights, (-1, len(given))), given))

    def decide(self, probabilities: ArrayLike, random: np.random.Generator, pending: int = 0) -> NDArray[np.int64]:
        """Decisions for the next n samples, each taken from a model drawn by ``votes``."""
        given = self._probabilities(probabilities)
        votes = (self._of(self._state.votes, pending + i) for i in range(given.shape[1]))
        drawn = [random.choice(len(given), p=each) for each in votes]
        return np.array([self._decision(given[k, i]) for i, k in enumerate(drawn)], dtype=np.int64)

    def new_version(self, name: str) -> None:
        """Start a new version of the federated model: reset the tests and clear the alarm."""
        state = self._state
        if name == state.versions[-1].name:
            return
        kept = [each for each in state.versions if each.name != name][1 - MOST_VERSIONS :]
        nothing = [0.0] * len(STAKES)
        versions = [*kept, Version(name=name, since=state.samples)]
        changed = msgspec.structs.replace(state, versions=versions, alarm=nothing, certificate=nothing)
        self._state = parse(msgspec.to_builtins(changed), "online guard")

    def update(self, probabilities: ArrayLike, labels: ArrayLike) -> Report:
        """Learn from the labels of n samples in order; ``probabilities`` (K, n, C) are those of each model."""
        given = self._probabilities(probabilities)
        known = np.asarray(labels)
        if known.shape != given.shape[1:2] or (len(known) and known.dtype.kind not in "iu"):
            raise ComityError(f"labels must be {given.shape[1]} whole numbers, one for each sample")
        if len(known) and not (known.min() >= 0 and known.max() < given.shape[2]):
            raise ComityError(f"labels must be from 0 to {given.shape[2] - 1}, the classes of the models")
        for i, label in enumerate(known.tolist()):
            self._learn(np.ascontiguousarray(given[:, i]), label)
        return self.report()

    def _learn(self, predicted: Array, label: int) -> None:
        state, version, models = self._state, self._state.versions[-1], len(predicted)
        weights, votes = self.weights, self.votes
        mixed = (weights[:, None] * predicted).sum(0)
        losses = np.array([self._loss(each, label) for each in (*predicted, mixed)])  # from 0 to 1
        voted = float((votes * losses[:models]).sum())
        for k, loss in enumerate((*losses, voted)):
            state.losses[k] += self._scale * float(loss)
        of_label = np.maximum(predicted[:, label], FLOOR)
        if version.alarm_at is None:  # otherwise the own model is used, and the weights stay unchanged
            sequence = state.samples % (state.delay + 1)
            state.nats += math.log(of_label[OWN]) - math.log(float((weights * of_label).sum()))
            state.weights[sequence] = _shared(state.weights[sequence], np.log(of_label), state.share)
            factors = np.log1p(RATE * (losses[OWN] - losses[:models]))
            state.votes[sequence] = _shared(state.votes[sequence], factors, state.share)
            self._bet(float(losses[models] - losses[OWN]))
        state.samples += 1
        limit = -math.log(state.delta)
        if version.alarm_at is None and log_capital(state.alarm) >= limit:
            version.alarm_at = state.samples
        elif version.alarm_at is None and version.certified_at is None and log_capital(state.certificate) >= limit:
            version.certified_at = state.samples
        self._remember()

    def _bet(self, difference: float) -> None:
        """Update both bettors with the loss of the model in use minus that of the own model."""
        state = self._state
        alarm, certificate = bets(difference, state.margin / self._scale)
        state.alarm = (np.array(state.alarm) + alarm).tolist()
        state.certificate = (np.array(state.certificate) + certificate).tolist()

    def _remember(self) -> None:
        """Add a point to the history; beyond ``MOST_POINTS`` every other one is dropped."""
        state = self._state
        if state.samples % state.every == 0:
            if len(state.history) == MOST_POINTS:
                state.every *= 2
                state.history = [each for each in state.history if each.samples % state.every == 0]
            if state.samples % state.every == 0:
                state.history.append(self.point())

    def point(self) -> Point:
        """The current point of the history."""
        state = self._state
        alarm, certificate = (float(log_capital(each)) for each in (state.alarm, state.certificate))
        weights, losses = self.weights.tolist(), list(state.losses)
        return Point(samples=state.samples, weights=weights, alarm=alarm, certificate=certificate, losses=losses)

    def report(self) -> Report:
        """Evidence so far, whether it suffices for an alarm or a certificate, and how many labels are missing."""
        state, version, n = self._state, self._state.versions[-1], max(self._state.samples, 1)
        names = {"own": 0, "federated": 1, "in use": -2, "votes": -1}
        return Report(
            metric=state.metric,
            margin=state.margin,
            samples=state.samples,
            version=version.name,
            version_samples=self._bets,
            weights=self.weights,
            losses={name: state.losses[place] / n for name, place in names.items()},
            nats=state.nats,
            nats_bound=self.nats_bound,
            alarm_evidence=math.exp(min(float(log_capital(state.alarm)), 700)),
            alarm_after=None if version.alarm_at is None else version.alarm_at - version.since,
            safe_evidence=math.exp(min(float(log_capital(state.certificate)), 700)),
            certified_after=None if version.certified_at is None else version.certified_at - version.since,
            labels_to_certificate=self._labels_to_certificate(),
        )

    @property
    def nats_bound(self) -> float:
        """Upper bound of the mixture's total excess log-loss over the own model so far, in nats."""
        return self._bound(self._state.start)

    @property
    def loss_bound(self) -> float:
        """Upper bound of the expected excess loss of votes over the own model, in the unit of the metric."""
        models = len(self._state.start)
        return self._scale / RATE * self._bound([-math.log(models)] * models)

    def _bound(self, start: Logs) -> float:
        """ln(1/w_own) for each started sequence, plus the maximum loss per further label due to the share."""
        state = self._state
        sequences = min(state.delay + 1, state.samples)
        spread = -math.log1p(-state.share * (1 - 1 / len(start)))
        return -start[OWN] * sequences + (state.samples - sequences) * spread

    @property
    def _bets(self) -> int:
        version = self._state.versions[-1]
        return (self._state.samples if version.alarm_at is None else version.alarm_at) - version.since

    def _labels_to_certificate(self) -> int | None:
        """Labels until the first stake would reach its part of the capital at its rate so far.

        Before the first label: if both models never differ, the minimum.
        """
        state, version = self._state, self._state.versions[-1]
        if version.certified_at is not None or version.alarm_at is not None:
            return 0 if version.alarm_at is None else None
        margin, capitals = state.margin / self._scale, np.array(state.certificate)
        rates = capitals / self._bets if self._bets else bets(0.0, margin)[1]
        missing = math.log(len(STAKES) / state.delta) - capitals
        growing = rates > 1e-9
        return max(1, math.ceil((missing[growing] / rates[growing]).min())) if growing.any() else None

    def _of(self, logs: list[Logs], ahead: int = 0) -> Array:
        """The weights for a sample ``ahead`` places after the last label; all on the own model after an alarm."""
        if self.alarmed:
            return np.asarray(np.eye(len(logs[0]))[OWN])
        weights = np.exp(logs[(self._state.samples + ahead) % len(logs)])
        return np.asarray(weights / weights.sum())

    def _decision(self, predicted: Array) -> int:
        if self._state.metric == BALANCED:
            predicted = predicted * self._by_class  # p(y|x) / share of y; classes with share 0 are never chosen
        return int(predicted.argmax())

    def _loss(self, predicted: Array, label: int) -> float:
        """Loss of one sample, from 0 to 1: the bounded losses of ``guards.Losses``."""
        metric = self._state.metric
        if metric == "log-loss":
            return min(-math.log(max(predicted[label], FLOOR)), LOG_LOSS_LIMIT) / LOG_LOSS_LIMIT
        if metric == "brier":
            return min(float(((predicted - np.eye(len(predicted))[label]) ** 2).sum()) / BRIER_LIMIT, 1.0)
        wrong = self._decision(predicted) != label
        return float(wrong * self._by_class[label] / self._scale) if metric == BALANCED else float(wrong)

    def _probabilities(self, given: ArrayLike) -> Array:
        models, classes = len(self._state.start), len(self._state.class_shares)
        found = np.asarray(given, dtype=float)
        if found.ndim != 3 or len(found) != models or found.shape[2] < 2:
            raise ComityError(f"probabilities must be {models} models × samples × classes, got {found.shape}")
        if self._state.metric == BALANCED and found.shape[2] != classes:
            raise ComityError(f"probabilities must be of {classes} classes, got {found.shape[2]}")
        if not np.all((found >= 0) & (found <= 1 + 1e-6)) or not np.all(np.abs(found.sum(2) - 1) < 1e-3):
            raise ComityError("probabilities must be numbers from 0 to 1 that sum to 1 for each model and sample")
        return np.asarray(np.minimum(found, 1.0))


def bets(differences: ArrayLike, margin: float) -> tuple[Array, Array]:
    """ln of the factors (…, stakes) of both capitals, for losses of the model in use minus those of the own model."""
    excess = np.asarray(differences, dtype=float)[..., None] - margin
    return np.log1p(STAKES / (1 + margin) * excess), np.log1p(STAKES / (1 - margin) * -excess)


def log_capital(capitals: ArrayLike) -> Array:
    """ln of the mean capital of all stakes, the e-value."""
    return np.asarray(np.logaddexp.reduce(capitals, axis=-1) - math.log(len(STAKES)))


def _shared(logs: Logs, log_factors: Array, share: float) -> Logs:
    """The posterior, with ``share`` of all weight spread evenly."""
    posterior = np.array(logs) + log_factors
    posterior -= np.logaddexp.reduce(posterior)
    if share:
        posterior = np.logaddexp(math.log1p(-share) + posterior, math.log(share / len(posterior)))
    return np.minimum(posterior, 0.0).tolist()  # type: ignore[no-any-return]


@contextmanager
def opened(folder: Path, start: Callable[[], OnlineGuard]) -> Iterator[OnlineGuard]:
    """The guard in a deployed model's folder, started if there is none, and written on success.

    One process at a time holds the folder; the file is replaced as a whole.
    """
    path = folder / FEEDBACK
    with locked(folder / f".{FEEDBACK}.lock", f"{folder}: another process is giving feedback to this model"):
        guard = read(path) if path.exists() else start()
        yield guard
        write_text(path, msgspec.json.format(msgspec.json.encode(guard.record), indent=1).decode() + "\n")


def read(path: Path) -> OnlineGuard:
    """Read the guard from an untrusted file."""
    if path.stat().st_size > MOST_BYTES:
        raise ComityError(f"{path} is larger than {MOST_BYTES} bytes")
    return OnlineGuard.from_state(path.read_bytes(), str(path))
