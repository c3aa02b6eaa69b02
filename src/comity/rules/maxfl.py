"""MaxFL."""

from dataclasses import field

import torch

from comity.rules._length import needs_gram
from comity.rules._rule import Rule, Scope, Weighed
from comity.rules._updates import ClientUpdates


class MaxFL(Rule):
    """A mean in which those clients count most who are about to become, or to cease to be, better off than alone.

    Paper: Cho et al., TMLR 2024.

    Equation: d = Σ qᵢ Δᵢ / Σ qᵢ with qᵢ = σ(zᵢ)(1 − σ(zᵢ)), where zᵢ is the loss of the received model less that of the
    client's own, and σ the logistic function: gradient steps on Σ σ(zᵢ), which stands in for the number of clients who
    are worse off.

    Departures:
        - In a run a client's own model is trained alone for ten epochs before its first round. Elsewhere ``losses`` are
          the differences zᵢ.
    """

    needs_losses = True
    above_local = True

    scope: Scope = field(default="model", init=False)  # the weights of each layer are those of the model

    @property
    def needs_gram(self) -> bool:
        return needs_gram(self.length)

    def weigh(self, updates: ClientUpdates) -> Weighed:
        assert updates.losses is not None
        # log σ(z)(1 − σ(z)) = −|z| − 2 log(1 + exp(−|z|)): of logarithms, because q itself may be too small a number
        z = updates.losses.abs()
        weights = torch.softmax(-z - 2 * torch.log1p(torch.exp(-z)), dim=0)
        return Weighed(weights[None], torch.zeros(1, dtype=torch.float64), {})
