"""Fixed-point numbers modulo 2⁶⁴, wide enough that no sum of a cohort overflows."""

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity.privacy._keys import Rejected

BOUND_BITS = 12
BOUND = 2.0**BOUND_BITS
"""Largest absolute value that a client may add to one entry of a sum."""
MOST_BITS = 40
"""Bits after the point: every number up to the bound is then exact in float64 before it is rounded."""

DIGIT, DIGITS = 16, 40
"""Bits per digit, and digits per number of an exact sum: one digit per word."""
POINT = 298
"""Bits after the point of such a number: the square of the smallest float32."""
EXACT_BOUND = 2.0**310
"""Largest such number: the sum of squares of 2⁵⁴ float32 numbers."""

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class FixedPoint:
    """Fixed-point format of a sum over ``clients`` clients: their terms stay within ±2⁶² by construction."""

    clients: int

    @property
    def bits(self) -> int:
        """Bits after the point."""
        return min(MOST_BITS, 62 - BOUND_BITS - (self.clients - 1).bit_length())

    def encode(self, values: NDArray[np.float64]) -> Words:
        """Round to multiples of 2⁻ᵇⁱᵗˢ; reject numbers beyond the bound or not finite."""
        if not float(np.abs(values).max(initial=0.0)) <= BOUND:
            raise Rejected.because("update")
        return np.rint(values * 2.0**self.bits).astype(np.int64).view(np.uint64)

    def decode(self, words: Words) -> NDArray[np.float64]:
        return words.view(np.int64).astype(np.float64) / 2.0**self.bits

    def encode_exactly(self, values: NDArray[np.float64]) -> Words:
        """Encode sums of float32 numbers and of their squares without rounding, one word per digit.

        A random number is added above the digit of each word and subtracted from the next: the sum of the words gives
        the sum of the numbers, while carries and signs of single clients stay hidden.
        """
        wide = DIGIT * DIGITS
        numbers = []
        for value in values.tolist():
            if not abs(value) <= EXACT_BOUND or not (scaled := math.ldexp(value, POINT)).is_integer():
                raise Rejected.because("sums")
            numbers.append(int(scaled) % 2**wide)
        digits = np.frombuffer(b"".join(number.to_bytes(wide // 8, "little") for number in numbers), dtype="<u2")
        words = digits.astype(np.int64).reshape(len(numbers), DIGITS)
        random = np.frombuffer(os.urandom(8 * words.size), dtype=np.uint64).reshape(words.shape)
        above = (random >> np.uint64(64 - self.hiding)).astype(np.int64)
        words += above << DIGIT
        words[:, 1:] -= above[:, :-1]
        return words.reshape(-1).view(np.uint64)

    @property
    def hiding(self) -> int:
        """Bits of the random number above a digit: summed over all clients a word stays within ±2⁶²."""
        return 62 - DIGIT - (self.clients - 1).bit_length()

    def decode_exactly(self, words: Words) -> NDArray[np.float64]:
        """The numbers, each rounded once to the nearest float64."""
        whole = 2 ** (DIGIT * DIGITS)
        numbers = []
        for digits in words.view(np.int64).reshape(-1, DIGITS).tolist():
            number = sum(digit << DIGIT * place for place, digit in enumerate(digits)) % whole
            numbers.append((number - whole if 2 * number >= whole else number) / 2**POINT)
        return np.array(numbers)
