"""What joining changed for each client: records of ``result.json`` and ``samples.safetensors``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from comity.results.records import Fixed, Real, Share, Size

if TYPE_CHECKING:  # help pages and lists do not wait for numpy
    from numpy.typing import NDArray

State = Literal["worse", "not worse", "undecided"]


class Gain(Fixed, kw_only=True, frozen=True):
    """What joining changed for one client, or for a federation: positive where the joined model is better."""

    gain: Real
    low: Real
    high: Real
    """The 95 % interval; null where it is not known."""
    state: State
    detectable: Real
    """The smallest loss that would be found with a power of 80 %; null where no loss would be."""


class Transfer(Fixed, kw_only=True, frozen=True):
    """What joining changed for each client, against the local baseline under the same conditions, in this run."""

    metric: Literal["accuracy", "balanced", "log-loss", "brier", "auc"]
    """The metric that decides."""
    margin: Size
    """The largest loss that still counts as not worse."""
    local: Real
    """The metric's mean over clients in the local baseline."""
    relative_accuracy: Real
    """Mean over clients of gain over the local baseline's value; null for metrics that are not shares."""
    positive_transfer: Share
    """Share of the clients that gain."""
    mean: Gain
    """Of the mean over clients."""
    clients: dict[int, Gain]
    local_on: Literal["all", "train"] = "all"
    """Whether the local baseline learnt from all samples of a client, or not from its validation samples."""

    @property
    def gain(self) -> dict[int, float]:
        """By client."""
        return {client: each.gain for client, each in self.clients.items()}

    @property
    def worse(self) -> list[int]:
        """The clients for which harm is shown."""
        return [client for client, each in self.clients.items() if each.state == "worse"]


@dataclass(frozen=True, eq=False)
class ClientScores:
    """One client's tests, as ``samples.safetensors`` has them; the arrays have an entry for each test."""

    id: "NDArray[Any]"
    """The sample's index in the data set."""
    label: "NDArray[Any]"
    score: "NDArray[Any]"
    """By the metric that decides, higher is better; their mean is the client's metric, or minus it for a loss."""
    mixed: "NDArray[Any] | None" = None
    """Of two local models mixed, where the run repeats local training."""
    probability: "NDArray[Any] | None" = None
    """That the client's model gives the second class, where there are two."""
