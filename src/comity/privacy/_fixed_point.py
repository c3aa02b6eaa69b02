"""Numbers as whole numbers modulo 2⁶⁴, wide enough that no sum of a cohort can overflow."""

import math
import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity.privacy._keys import Refused

BOUND_BITS = 12
BOUND = 2.0**BOUND_BITS
"""The largest number, up or down, that a client may add to one place of a sum."""
MOST_BITS = 40
"""Behind the point: then every number up to the bound is exact in float64 before it is rounded."""

DIGIT, DIGITS = 16, 40
"""Bits of a digit, and digits of a number whose sum is exact: one digit in each word."""
POINT = 298
"""Bits behind the point of such a number: the square of the smallest float32."""
EXACT_BOUND = 2.0**310
"""The largest such number: the sum of squares of 2⁵⁴ float32."""

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

    def encode_exactly(self, values: NDArray[np.float64]) -> Words:
        """Sums of float32 and of their squares without any rounding, as many words for each as it has digits.

        A random number is added to what each word has above its digit, and taken from the next: the sum of the words
        says the sum of the numbers, and how the digits of single clients carried over, or who is below 0, is hidden.
        """
        wide = DIGIT * DIGITS
        numbers = []
        for value in values.tolist():
            if not abs(value) <= EXACT_BOUND or not (scaled := math.ldexp(value, POINT)).is_integer():
                raise Refused.because("sums")
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
        """Bits of the random number above a digit: with those of all clients a word stays within ±2⁶²."""
        return 62 - DIGIT - (self.clients - 1).bit_length()

    def decode_exactly(self, words: Words) -> NDArray[np.float64]:
        """The numbers, each rounded once to the nearest float64."""
        whole = 2 ** (DIGIT * DIGITS)
        numbers = []
        for digits in words.view(np.int64).reshape(-1, DIGITS).tolist():
            number = sum(digit << DIGIT * place for place, digit in enumerate(digits)) % whole
            numbers.append((number - whole if 2 * number >= whole else number) / 2**POINT)
        return np.array(numbers)
