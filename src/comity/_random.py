"""Random numbers that depend on who asks and when, never on who asked before.

Every generator is made from ``(seed, purpose, ...)``: the same numbers come out with one worker or eight, through
threads or Flower, straight through or killed and resumed.
"""

import hashlib

import numpy as np
import torch


def key_bytes(seed: int, *key: str | int) -> bytes:
    """256 bits for ``key``, for what draws from a stream of its own."""
    return hashlib.sha256(":".join(str(part) for part in (seed, *key)).encode()).digest()


def _entropy(seed: int, key: tuple[str | int, ...]) -> int:
    return int.from_bytes(key_bytes(seed, *key)[:8], "little")


def generator(seed: int, *key: str | int) -> torch.Generator:
    """A torch generator for ``key``, for example ``generator(seed, "batches", round, client)``."""
    return torch.Generator().manual_seed(_entropy(seed, key) & (2**63 - 1))


def numpy_generator(seed: int, *key: str | int) -> np.random.Generator:
    """The same for NumPy."""
    return np.random.default_rng(_entropy(seed, key))
