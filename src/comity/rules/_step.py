"""Step length, and the server's learning rate and momentum: choices beside a rule's direction."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from torch import Tensor

from comity._options import Positive, Range, check
from comity.rules._updates import ClientUpdates, TriedSteps, combined_lengths

Length = Literal["own", "mean", "fedexp", "search"] | Positive

FACTORS = (0.5, 1.0, 1.5, 2.0, 3.0)  # multiples of a rule's own step that a search tries
FEW = 30  # with fewer samples, whether a step harms a client is noise; its loss still counts in the mean
LEAST_MEAN = 1e-3
"""FedExP's ε relative to the mean squared length of the updates; it bounds the step where the mean is close to 0."""


def with_length(
    length: Length, coefficients: Tensor, scope: Literal["model", "layer"], updates: ClientUpdates
) -> Tensor:
    """Rescale each row of the coefficients (B, N) so that the step has the requested length."""
    if length == "own" or not len(updates):
        return coefficients
    if length == "search":
        tried = updates.try_steps(map(updates.combine, [coefficients]), FACTORS)
        return coefficients * FACTORS[best_step(tried, FACTORS.index(1.0))]
    if not isinstance(length, str):
        return coefficients * length
    G = updates.grams if scope == "layer" else updates.gram[None]
    wanted = combined_lengths(G, updates.shares)
    if length == "fedexp":
        squares = G.diagonal(dim1=1, dim2=2) @ updates.shares  # Σ pᵢ|Δᵢ|²
        rate = squares / (2 * (wanted**2 + LEAST_MEAN * squares))
        wanted = wanted * torch.where(rate > 1, rate, 1.0)
    factor = wanted / combined_lengths(G, coefficients)
    return coefficients * torch.where(factor.isfinite(), factor, 0.0)[:, None]


def harmed(tried: TriedSteps) -> Tensor:
    """(S, F) number of clients that each step harms, counting clients with at least 30 samples."""
    return (tried.after > tried.before[:, None, None])[tried.samples >= FEW].sum(0)


def best_step(tried: TriedSteps, usual: int) -> int:
    """Index of the length with the lowest mean loss, among those that harm no more clients than ``usual`` does."""
    count, loss = harmed(tried)[0], tried.after.mean(0)[0]
    allowed = [step for step in range(len(loss)) if count[step] <= count[usual]]
    return min(allowed, key=lambda step: (float(loss[step]), step != usual))


@dataclass(eq=False)
class ServerStep:
    """The server's learning rate and momentum, on top of any rule.

    Paper: FedAvgM, Hsu, Qi and Brown, 2019.

    Equation: v ← momentum·v + d for the rule's update d, and the step lr·v.

    Options:
        lr: the server's learning rate
        momentum: the server's momentum
    """

    lr: Positive = 1.0
    momentum: Annotated[float, Range(least=0, below=1)] = 0.0
    state: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False)
    """State between rounds: a saved and restored state continues exactly."""

    def __post_init__(self) -> None:
        check(self, "server")

    def __call__(self, update: Tensor) -> Tensor:
        if self.momentum:
            if "velocity" in self.state:
                update = self.momentum * self.state["velocity"] + update
            self.state["velocity"] = update
        return update if self.lr == 1 else self.lr * update
