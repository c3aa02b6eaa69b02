"""Masks and noise from keys: AES-256 in counter mode, read as words of 64 bits."""

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from scipy.special import ndtri

from comity.privacy._fixed_point import Words

PIECE = 2**18
"""Words made at once."""


def keystream(key: bytes, count: int) -> Words:
    """So many words; the key must be of one use."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * count)), dtype="<u8").astype(np.uint64, copy=False)


def add_mask(words: Words, key: bytes, sign: int) -> None:
    """Add the mask of a key to words, or take it away, modulo 2⁶⁴ and a piece at a time."""
    encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    change: Callable[..., object] = np.add if sign > 0 else np.subtract
    nothing = bytes(8 * min(PIECE, len(words)))
    for start in range(0, len(words), PIECE):
        piece = words[start : start + PIECE]
        mask = np.frombuffer(encryptor.update(nothing[: 8 * len(piece)]), dtype="<u8")
        change(piece, mask, out=piece)


def gaussian(key: bytes, count: int) -> NDArray[np.float64]:
    """Standard normal numbers that nobody without the key can foretell."""
    return np.asarray(ndtri(((keystream(key, count) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53))
