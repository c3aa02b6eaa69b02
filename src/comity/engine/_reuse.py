"""Memory for clients' vectors that is used again."""

import weakref
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LEAST = 2**14
"""Numbers; shorter vectors are left to torch."""
SLAB = 2**23
"""Numbers that are taken at once, so many that glibc keeps them apart from all else. What is never written to takes no
memory."""


class Vectors:
    """Lends memory for float32 vectors, and lends it again when nobody refers to them any more.

    Rows are by far the most that a run allocates; malloc, which shares out what is free, leaves gaps between them.
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
            lines = -(-size // 16) * 16  # each begins where torch would have it begin, at a multiple of 64 bytes
            memory, *more = torch.empty(SLAB // lines + 1, lines).numpy()[:, :size]
            idle += more
        lent = memory.view()  # torch lets go of it when the last tensor that sees this memory is gone
        weakref.finalize(lent, idle.append, memory).atexit = False
        return torch.from_numpy(lent)
