"""Tensors on disk instead of in memory."""

import ctypes
import os
import platform
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from comity._errors import ComityError

M_MMAP_THRESHOLD = -3
"""Its value in glibc's malloc.h."""
LEAST = 2**16
"""Minimum size in bytes of a tensor on disk."""


class Disk:
    """Store tensors in memory-mapped files in ``folder``, which the system reads on access and evicts when it needs
    memory. The files have no name, so they vanish with their last user, or when the process is killed.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder or Path(tempfile.gettempdir())
        if platform.libc_ver()[0] == "glibc":
            # return the memory of a tensor on disk at once; by default glibc may keep it in pieces
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)

    def hold(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        if size < LEAST:
            return tensor
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".comity-", dir=self.folder)
        try:
            os.posix_fallocate(handle, 0, size)  # a full disk raises an error here instead of a crash later
            held = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        except OSError as error:
            raise ComityError(f"no room for {size:,} bytes in {self.folder}: {error.strerror}") from error
        finally:
            os.close(handle)
            os.unlink(name)
        return held.view(tensor.shape).copy_(tensor)
