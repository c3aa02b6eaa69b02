"""Shamir's secret sharing of 32 bytes: any ``threshold`` shares give the secret, fewer reveal nothing."""

import math
import secrets
from collections.abc import Mapping
from functools import lru_cache

PRIME = 2**521 - 1
SHARE = 66
"""Bytes of a share: a number below the prime."""
MISSING = b"\xff" * SHARE
"""Placeholder for a missing share; it differs from every share."""


def split(secret: bytes, count: int, threshold: int) -> list[bytes]:
    """Shares for the places 1 to ``count``: values of a random polynomial with the secret at 0."""
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in reversed(polynomial):
            value = (value * x + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret from exactly ``threshold`` shares by place; other bytes if one of them is false."""
    places = tuple(sorted(shares))
    weights = _weights(places)
    value = sum(w * int.from_bytes(shares[x], "big") for w, x in zip(weights, places, strict=True)) % PRIME
    return value.to_bytes(SHARE, "big")[-32:] if value < 2**256 else b""


@lru_cache(maxsize=1024)
def _weights(places: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights of the polynomial's value at 0."""
    weights = []
    for x in places:
        others = [other for other in places if other != x]
        weights.append(math.prod(others) * pow(math.prod(other - x for other in others), -1, PRIME) % PRIME)
    return tuple(weights)
