"""Tensors that need not stay in memory."""

import ctypes
import os
import platform
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from comity._errors import ComityError

M_MMAP_THRESHOLD = -3
"""Its number in glibc's malloc.h."""
LEAST = 2**16
"""Bytes from which on a tensor is put on disk."""


class Disk:
    """Puts tensors into files of ``folder`` that are mapped into memory: the system reads them when they are looked at
    and drops them when it needs the room. A file has no name, so it is gone with the last that uses it, or a kill.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder or Path(tempfile.gettempdir())
        if platform.libc_ver()[0] == "glibc":
            # Memory of a tensor that went to disk is given back at once; by default glibc may keep it in pieces.
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**18)

    def hold(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        if size < LEAST:
            return tensor
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".comity-", dir=self.folder)
        try:
            os.posix_fallocate(handle, 0, size)  # a full disk is an error here, and not a crash later on
            held = torch.from_file(name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
        except OSError as error:
            raise ComityError(f"no room for {size:,} bytes in {self.folder}: {error.strerror}") from error
        finally:
            os.close(handle)
            os.unlink(name)
        return held.view(tensor.shape).copy_(tensor)
