"""Random numbers that depend only on their key, never on earlier draws.

Every generator is created from ``(seed, purpose, ...)``: one worker or eight, threads or Flower, uninterrupted or
resumed runs all get the same numbers.
"""

import hashlib

import numpy as np
import torch


def key_bytes(seed: int, *key: str | int) -> bytes:
    """256 bits for ``key``, to seed a separate stream."""
    return hashlib.sha256(":".join(str(part) for part in (seed, *key)).encode()).digest()


def _entropy(seed: int, key: tuple[str | int, ...]) -> int:
    return int.from_bytes(key_bytes(seed, *key)[:8], "little")


def generator(seed: int, *key: str | int) -> torch.Generator:
    """A torch generator for ``key``, for example ``generator(seed, "batches", round, client)``."""
    return torch.Generator().manual_seed(_entropy(seed, key) & (2**63 - 1))


def numpy_generator(seed: int, *key: str | int) -> np.random.Generator:
    """A NumPy generator for ``key``."""
    return np.random.default_rng(_entropy(seed, key))
