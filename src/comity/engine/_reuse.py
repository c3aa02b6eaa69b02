"""Reusable memory for clients' vectors."""

import weakref
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 2**14
"""Minimum length in numbers; shorter vectors are left to torch."""
SLAB = 2**23
"""Numbers allocated at once: enough for glibc to map them separately. Memory that is never written takes no space."""


class Vectors:
    """Lends memory for float32 vectors, and lends it again after the last reference is gone.

    Rows are by far the largest allocation of a run; malloc would leave gaps between them.
    """

    def __init__(self) -> None:
        self._idle: dict[int, list[NDArray[np.float32]]] = defaultdict(list)

    def empty(self, size: int) -> Tensor:
        if size < LEAST:
            return torch.empty(size)
        idle = self._idle[size]
        try:
            memory = idle.pop()
        except IndexError:
            lines = -(-size // 16) * 16  # each row starts at a multiple of 64 bytes, like torch's own
            memory, *more = torch.empty(SLAB // lines + 1, lines).numpy()[:, :size]
            idle += more
        lent = memory.view()  # torch releases it with the last tensor on this memory
        weakref.finalize(lent, idle.append, memory).atexit = False
        return torch.from_numpy(lent)
