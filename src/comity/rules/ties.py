import math
from dataclasses import KW_ONLY, field
from typing import Annotated

import torch
from torch import Tensor

from comity._options import NonNegative, Range
from comity.rules._rows import Updates
from comity.rules._rule import Outcome, Rule, Weighed
from comity.rules._step import Length
from comity.rules._updates import ClientUpdates


class TIES(Rule):
    """Keep each update's largest entries, elect a sign per coordinate, and average the entries with that sign.

    Paper: Yadav et al., NeurIPS 2023.

    Equation: τᵢ is Δᵢ with all but its ⌈density · P⌉ largest entries set to 0. The elected sign of a coordinate is that
    of Σ τᵢ. There, d is scale times the mean of the nonzero τᵢ with this sign, or 0 if there are none.

    Each coordinate of d may combine different clients, so there are no coefficients; those of the plain mean are
    reported. TIES works on files and on updates in memory; runs reject it.

    Departures:
        - Entries with the same magnitude as the smallest kept one are kept too. Magnitudes are compared in float32.

    Options:
        density: share of entries that an update keeps
        scale: factor on the merged update; without held-out data, the paper uses 1
        scope: choose the largest entries of the whole model, as in the paper, or of each layer, as in mergekit and PEFT
    """

    has_coefficients = False

    density: Annotated[float, Range(above=0, most=1)] = 0.2
    scale: NonNegative = 1.0
    _: KW_ONLY
    length: Length = field(default="own", init=False)

    def weigh(self, updates: ClientUpdates) -> Weighed:
        uniform = torch.full((1, len(updates)), self.scale / max(len(updates), 1), dtype=torch.float64)
        return Weighed(uniform, torch.zeros(1, dtype=torch.float64), {})

    def apply(self, updates: Updates) -> Outcome:
        chosen = self.coefficients(updates)
        U = updates.mix(torch.eye(len(updates), dtype=torch.float64))
        layers = updates.layout.layers if self.scope == "layer" else [slice(0, U.shape[1])]
        pieces = [U[:, layer.start : layer.stop] for layer in layers]
        update = torch.cat([self.merge(piece, self.least_kept(piece)) for piece in pieces])
        return Outcome(**vars(chosen), update=update, length_ratio=torch.full((len(updates.layout),), math.nan))

    def kept(self, numbers: int) -> int:
        """Number of entries that an update keeps."""
        return math.ceil(self.density * numbers)

    def least_kept(self, U: Tensor) -> Tensor:
        """(N,) smallest magnitude that each update keeps."""
        return U.abs().float().topk(self.kept(U.shape[1]), dim=1).values[:, -1]

    def merge(self, U: Tensor, least: Tensor) -> Tensor:
        """(P,) merged update from updates (N, P): trim, elect signs, average entries that agree."""
        trimmed = torch.where(U.abs().float() >= least[:, None], U, 0)
        agree = (trimmed.sign() == trimmed.sum(0).sign()) & (trimmed != 0)
        return self.scale * torch.where(agree, trimmed, 0).sum(0) / agree.sum(0).clamp(min=1)
