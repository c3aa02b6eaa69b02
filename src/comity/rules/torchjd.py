import re
from dataclasses import KW_ONLY
from typing import Any

import numpy as np
import torch

from comity._errors import ComityError, install, unknown
from comity.rules._rule import GramBlock, Rule, Scope
from comity.rules._step import Length
from comity.rules.solvers import Solution


class TorchJD(Rule):
    """A weighting of the TorchJD library, chosen by name.

    Paper: Quinton and Rey, 2024.

    Equation: ``TorchJD("UPGrad")`` takes its coefficients from TorchJD's ``UPGradWeighting``. The Gram matrix is scaled
    to mean diagonal 1. Further arguments are passed to the weighting.

    Departures:
        - Weightings that draw random numbers are seeded.
        - Weightings with a state between rounds are rejected, because a run could not save it.
        - Some weightings return a sum instead of a mean (PCGrad); ``length="mean"`` makes them comparable.

    Options:
        weighting: name of the weighting in TorchJD
        seed: seed of the weighting's random numbers
    """

    certificate = "none given by TorchJD"

    weighting: str = "UPGrad"
    _: KW_ONLY
    seed: int = 0

    def __init__(
        self,
        weighting: str = "UPGrad",
        *,
        scope: Scope = "model",
        length: Length = "own",
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.weighting, self.seed, self.options = weighting, seed, options
        super().__init__(scope=scope, length=length)
        try:
            from torchjd import aggregation
        except ImportError:
            raise ComityError(f"the rule TorchJD needs its library: {install('torchjd')}") from None
        names = [name.removesuffix("Weighting") for name in aggregation.__all__ if re.fullmatch(r"\w+Weighting", name)]
        if weighting not in names:
            raise unknown("weighting of TorchJD", weighting, names)
        try:
            self._weigh = getattr(aggregation, f"{weighting}Weighting")(**options)
        except ImportError as missing:
            raise ComityError(f"TorchJD's {weighting} needs more than TorchJD itself: {missing}") from None
        if hasattr(self._weigh, "reset"):
            raise ComityError(
                f"TorchJD's {weighting} keeps a state between rounds, which a run could not save and restore"
            )

    def solve(self, block: GramBlock) -> Solution:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(int(self.random(block.layer).integers(2**31)))
            weights = self._weigh(torch.from_numpy(block.G))
        return Solution(np.asarray(weights.double().numpy()), 0.0)
