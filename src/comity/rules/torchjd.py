"""Any weighting of TorchJD."""

from typing import Any

import numpy as np
import torch

from comity._errors import ComityError, unknown
from comity.rules._rule import Block, Length, Rule, Scope
from comity.rules._solvers import Solution


class TorchJD(Rule):
    """A weighting of the TorchJD library, by name: ``TorchJD("UPGrad")`` asks its ``UPGradWeighting``.

    Quinton and Rey, 2024. It is given the Gram matrix with mean diagonal 1. Some weigh a sum and not a mean (PCGrad):
    ``length="mean"`` makes them comparable. The random ones are seeded here; those that keep a state between rounds are
    refused, for a run could not save it.

    Options:
        weighting: which of TorchJD's weightings
        scope: the whole model at once, or each layer by itself
        seed: of its random numbers
        length: the rule's own step, or its direction with the length of the plain mean's
    """

    counts = True
    certificate = "none given by TorchJD"

    def __init__(
        self,
        weighting: str = "UPGrad",
        *,
        scope: Scope = "model",
        seed: int = 0,
        length: Length = "own",
        **options: Any,
    ) -> None:
        super().__init__(scope=scope, length=length)
        try:
            from torchjd import aggregation
        except ImportError:
            raise ComityError("the rule TorchJD needs its library: pip install 'comity[torchjd]'") from None
        known = [other.removesuffix("Weighting") for other in aggregation.__all__ if other.endswith("Weighting")]
        if weighting not in known:
            raise unknown("weighting of TorchJD", weighting, known)
        self.weighting, self.seed, self.options = weighting, seed, options
        try:
            self._weigh = getattr(aggregation, f"{weighting}Weighting")(**options)
        except ImportError as missing:
            raise ComityError(f"TorchJD's {weighting} needs more than TorchJD itself: {missing}") from None
        if hasattr(self._weigh, "reset"):
            raise ComityError(
                f"TorchJD's {weighting} keeps a state between rounds, which a run could not save and restore"
            )

    def solve(self, block: Block) -> Solution:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(self.random(block.place).integers(2**31)))
            weights = self._weigh(torch.from_numpy(block.G))
        return Solution(np.asarray(weights.double().numpy()), 0.0)
