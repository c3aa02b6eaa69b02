"""Masks and noise from keys: AES-256 in counter mode, as 64-bit words."""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

from comity.privacy._fixed_point import Words

PIECE = 2**18
"""Words generated at once."""


def keystream(key: bytes, count: int) -> Words:
    """``count`` words; the key must have one use."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)


def add_mask(words: Words, key: bytes, sign: int) -> None:
    """Add or subtract the mask of a key, modulo 2⁶⁴ and piece by piece."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    change: Callable[..., object] = np.add if sign > 0 else np.subtract
    nothing = bytes(8 * min(PIECE, len(words)))
    for start in range(0, len(words), PIECE):
        piece = words[start : start + PIECE]
        mask = np.frombuffer(encryptor.update(nothing[: 8 * len(piece)]), dtype="<u8")
        change(piece, mask, out=piece)


def gaussian(key: bytes, count: int) -> NDArray[np.float64]:
    """Standard normal numbers that are unpredictable without the key."""
    return np.asarray(ndtri(((keystream(key, count) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53))
