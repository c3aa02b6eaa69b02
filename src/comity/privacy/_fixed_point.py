"""Numbers as whole numbers modulo 2⁶⁴, wide enough that no sum of a cohort can overflow."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity.privacy._keys import Refused

BOUND_BITS = 12
BOUND = 2.0**BOUND_BITS
"""The largest number, up or down, that a client may add to one place of a sum."""
MOST_BITS = 40
"""Behind the point: then every number up to the bound is exact in float64 before it is rounded."""

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class FixedPoint:
    """The fixed point of a sum of so many clients: their terms together stay within ±2⁶² by construction."""

    clients: int

    @property
    def bits(self) -> int:
        """Behind the point."""
        return min(MOST_BITS, 62 - BOUND_BITS - (self.clients - 1).bit_length())

    def encode(self, values: NDArray[np.float64]) -> Words:
        """Rounded to the nearest multiple of 2⁻ᵇⁱᵗˢ; rejected where a number is beyond the bound or none."""
        if not float(np.abs(values).max(initial=0.0)) <= BOUND:
            raise Refused.because("update")
        return np.rint(values * 2.0**self.bits).astype(np.int64).view(np.uint64)

    def decode(self, words: Words) -> NDArray[np.float64]:
        return words.view(np.int64).astype(np.float64) / 2.0**self.bits
