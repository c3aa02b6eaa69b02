"""The effect of joining on each client: records of ``result.json`` and ``samples.safetensors``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from comity.results.records import Fixed, Real, Share, Size

if TYPE_CHECKING:  # help pages and lists do not wait for numpy
    from numpy.typing import NDArray

State = Literal["worse", "not worse", "undecided"]


class Gain(Fixed, kw_only=True, frozen=True):
    """The effect of joining on one client, or on a federation: positive if the joined model is better."""

    gain: Real
    low: Real
    high: Real
    """Upper end of the 95 % interval, null if unknown; ``low`` is the lower end."""
    state: State
    detectable: Real
    """Smallest loss that would be detected with 80 % power; null if no loss would be."""


class Transfer(Fixed, kw_only=True, frozen=True):
    """The effect of joining on each client in this run, compared with the local baseline under the same conditions."""

    metric: Literal["accuracy", "balanced", "log-loss", "brier", "auc"]
    """The metric that decides."""
    margin: Size
    """The largest loss that still counts as not worse."""
    local: Real
    """Mean of the metric over clients in the local baseline."""
    relative_accuracy: Real
    """Relative gain: mean over clients of gain / local value; null for metrics that are not shares."""
    positive_transfer: Share
    """Share of the clients that gain."""
    mean: Gain
    """Gain of the mean over clients."""
    clients: dict[int, Gain]
    local_on: Literal["all", "train"] = "all"
    """Whether the local baseline was trained on all samples of a client, or without its validation samples."""

    @property
    def gain(self) -> dict[int, float]:
        """Gain of each client."""
        return {client: each.gain for client, each in self.clients.items()}

    @property
    def worse(self) -> list[int]:
        """The clients with a significant loss."""
        return [client for client, each in self.clients.items() if each.state == "worse"]


@dataclass(frozen=True, eq=False)
class ClientScores:
    """One client's tests, as in ``samples.safetensors``: arrays with one entry per test."""

    id: "NDArray[Any]"
    """Index of the sample in the data set."""
    label: "NDArray[Any]"
    score: "NDArray[Any]"
    """Score by the metric that decides, higher is better; their mean is the client's metric, or minus it for a loss."""
    mixed: "NDArray[Any] | None" = None
    """Score of a mixture of two local models, if the run repeats local training."""
    probability: "NDArray[Any] | None" = None
    """Predicted probability of the second class, if there are two classes."""
