"""State and report of a client's online guard; the state is validated here."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from comity._errors import ComityError, one_line
from comity._words import counted, number
from comity.config import ACCURACY, BALANCED
from comity.guard.guards import OWN
from comity.metrics import DECIDING

STAKES = np.array([0.9, *(2.0**-k for k in range(1, 8))])
"""Shares of the capital bet on every sample, with equal parts of the initial capital. They are fixed, so that an
e-process is about the mean over samples that need not be independent or equally distributed."""
MOST_POINTS, MOST_VERSIONS, MOST_DELAY = 500, 100, 1000

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Real = Annotated[float, Meta(ge=-1e300, le=1e300)]
Logs = list[Annotated[float, Meta(ge=-1e300, le=1e-6)]]
Share = Annotated[float, Meta(ge=0, lt=1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Capitals = Annotated[list[Real], Meta(min_length=len(STAKES), max_length=len(STAKES))]


class Version(Struct, kw_only=True, forbid_unknown_fields=True):
    """One version of the federated model."""

    name: Name
    since: Count
    """Labels before this version."""
    alarm_at: Count | None = None
    """Labels of all versions at the alarm of the e-process; from then on the own model is used."""
    certified_at: Count | None = None


class Point(Struct, kw_only=True, forbid_unknown_fields=True):
    """One point of the history, after some number of labels."""

    samples: Count
    weights: list[Annotated[float, Meta(ge=0, le=1)]]
    """Weights of the mixture in use: own, federated, …"""
    alarm: Real
    """ln of the e-value against "the model in use is not worse than the own one by more than the margin"."""
    certificate: Real
    """ln of the e-value against "the model in use is worse than the own one by the margin or more"."""
    losses: list[Real]
    """Cumulative losses, as in the state."""


class OnlineState(Struct, kw_only=True, forbid_unknown_fields=True):
    """The complete state of a client's online guard, as in its file."""

    format: Literal[1] = 1
    metric: Name
    margin: Share
    delta: Annotated[float, Meta(gt=0, lt=1)]
    share: Share
    delay: Annotated[int, Meta(ge=0, le=MOST_DELAY)]
    class_shares: list[Annotated[float, Meta(ge=0, le=1)]] = []
    """Class shares of the client's training samples, if balanced accuracy decides."""
    start: Logs
    """ln of the initial weights."""
    weights: list[Logs]
    """ln of the weights of each model, for each of delay + 1 interleaved sequences."""
    votes: list[Logs]
    samples: Count = 0
    losses: list[Real]
    """Cumulative loss by the metric: of each model, of the mixture in use, and expected loss of votes."""
    nats: Real = 0.0
    """Total log-loss of the mixture in use minus that of the own model, in nats."""
    alarm: Capitals
    """ln of the capital of each stake."""
    certificate: Capitals
    versions: Annotated[list[Version], Meta(min_length=1, max_length=MOST_VERSIONS)]
    """The last one is in use."""
    every: Annotated[int, Meta(ge=1, lt=2**53)] = 1
    """Labels between two points of the history."""
    history: Annotated[list[Point], Meta(max_length=MOST_POINTS)] = []

    def check(self) -> None:
        """Reject inconsistent fields."""
        models, sequences = len(self.start), self.delay + 1
        scaled = self.metric != BALANCED or (len(self.class_shares) > 1 and abs(sum(self.class_shares) - 1) < 1e-6)
        weights = [self.start, *self.weights, *self.votes]
        names = [each.name for each in self.versions]
        places = [each.samples for each in self.history]
        events = [each for v in self.versions for each in (v.since, v.alarm_at, v.certified_at) if each is not None]
        for sound, otherwise in (
            (self.metric in DECIDING, f"unknown metric {self.metric[:40]!r}"),
            (2 <= models <= 10, "it must have 2 to 10 models"),
            (scaled, "class_shares must sum to 1 where balanced accuracy decides"),
            (len(self.weights) == sequences == len(self.votes), "weights and votes must be there delay + 1 times"),
            (all(len(each) == models for each in weights), "weights must be there for each model"),
            (all(abs(np.exp(each).sum() - 1) < 1e-6 for each in weights), "weights must sum to 1"),
            (len(self.losses) == models + 2, "losses must be there for each model and both mixtures"),
            (len(set(names)) == len(names), "a version is there twice"),
            (all(each <= self.samples for each in (*events, *places)), "it refers to labels that it has not seen"),
            (all(a < b for a, b in pairwise(places)), "the history is not in order"),
            (all(len(p.weights) == models and len(p.losses) == models + 2 for p in self.history), "the history is cut"),
        ):
            if not sound:
                raise ComityError(otherwise)


@dataclass(frozen=True)
class Report:
    """Result of the labels so far. ``str`` gives a short text."""

    metric: str
    margin: float
    samples: int
    """Labels seen, over all versions."""
    version: str
    version_samples: int
    """Labels used in the test of this version."""
    weights: NDArray[np.float64]
    """Mixture weights of the models for the next sample."""
    losses: dict[str, float]
    """Mean loss by the metric, with the keys ``own``, ``federated``, ``in use`` and ``votes``."""
    nats: float
    """Total log-loss of the mixture in use minus that of the own model, in nats."""
    nats_bound: float
    """Theoretical upper bound of ``nats``."""
    alarm_evidence: float
    """The e-value for harm; the alarm is raised at 1/delta."""
    alarm_after: int | None
    """Labels of this version until the alarm, if there was one."""
    safe_evidence: float
    certified_after: int | None
    labels_to_certificate: int | None
    """Estimated number of further labels until a certificate; ``None`` if it is not expected."""

    @property
    def alarm(self) -> bool:
        return self.alarm_after is not None

    @property
    def certified(self) -> bool:
        return self.certified_after is not None

    def __str__(self) -> str:
        scale, unit = (100, " %") if self.metric in (ACCURACY, "auc", BALANCED) else (1, "")
        margin = f"{number(scale * self.margin, 2)}{' points' if scale == 100 else ''}"
        if self.alarm_after is not None:
            after = counted(self.alarm_after, "label")
            state = f"ALARM: on average over {after}, the model in use was worse than your own by more than {margin}. "
            state += "Your own model is used now, until the federated one changes."
        elif self.certified_after is not None:
            after = counted(self.certified_after, "label")
            state = f"Certified: on average over {after}, the model in use was not worse than your own by {margin}."
        elif self.labels_to_certificate is None:
            state = f"No alarm: at the present rate no certificate for the margin of {margin} is in sight."
        else:
            more = counted(self.labels_to_certificate, "more label")
            state = f"No alarm: a certificate for the margin of {margin} can be expected after about {more}."
        seen = f"{counted(self.samples, 'label')} so far, {self.version_samples} for version {self.version}."
        lines = [state, f"{seen} Weight of your own model: {number(100 * self.weights[OWN], 1)} %."]
        if self.samples:
            label = {BALANCED: "balanced error"}.get(self.metric, "error" if unit else DECIDING[self.metric].label)
            losses = ", ".join(f"{name} {number(scale * loss, 2)}{unit}" for name, loss in self.losses.items())
            found = [f"{x:,.0f}" if 1e3 <= x < 1e7 else f"{x:.3g}" for x in (self.alarm_evidence, self.safe_evidence)]
            lines += [f"Mean {label}: {losses}.", f"E-values: {found[0]} for harm, {found[1]} for no harm."]
            nats = f"{number(self.nats, 2, sign=True)} nats compared with your own model"
            lines.append(
                f"Log-loss in total: {nats} (at most {number(self.nats_bound, 2, sign=True)} on any sequence)."
            )
        return "\n".join(lines)


def parse(state: Any, where: str) -> OnlineState:
    """Parse an untrusted state from the bytes of its file, or from dictionaries, lists, texts and numbers."""
    try:
        read = msgspec.json.decode if isinstance(state, bytes) else msgspec.convert
        found: OnlineState = read(state, type=OnlineState)
        found.check()
    except (ComityError, msgspec.ValidationError) as error:
        raise ComityError(f"{where}: {one_line(error, 200)}") from error
    except (ValueError, RecursionError) as error:
        raise ComityError(f"{where} is not JSON: {one_line(error, 200)}") from error
    return found
