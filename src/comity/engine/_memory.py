"""What the C library does with memory that is free."""

import ctypes
import platform

TRIM, TOP, MMAP, ARENAS = -1, -2, -3, -8
"""Numbers of options in glibc's malloc.h."""


def keep_freed_memory() -> None:
    """Have glibc keep what tensors leave, up to blocks of 32 MB, instead of giving it back to the system.

    Otherwise every step and every round begins with pages that the system has to clear first: a quarter of a round of
    small models. Elsewhere (another C library, another allocator) this does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for option, value in ((MMAP, 2**25), (TRIM, 2**29), (TOP, 2**24), (ARENAS, 1)):
            libc.mallopt(option, value)
