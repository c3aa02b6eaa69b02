"""Shared code of the data readers: a memory limit, and one-line errors."""

import errno
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from comity._errors import ComityError
from comity._memory import installed, parse_bytes, show_bytes


def array_bytes(shape: Sequence[int], dtype: np.dtype[Any]) -> int:
    """Bytes that an array needs, including its copies.

    Pooling training and test data holds each value twice; training also holds a float32 copy.
    """
    return prod(shape) * max(2 * dtype.itemsize, dtype.itemsize + 4)


ALWAYS_ALLOWED, MOST_RATIO = 10**9, 500
"""Bytes that any file may need when unpacked, and the maximum ratio to its own size for larger ones."""


class Budget:
    """Memory used by one data set, and its limit. Readers ask before they unpack anything."""

    def __init__(self, limit: int | str | None = None) -> None:
        # a quarter is left for Python, torch and the clients' models
        self.limit = int(0.75 * installed()) if limit is None else parse_bytes(limit, "the limit")
        self.chosen = limit is not None
        self.taken = 0

    def take(self, count: int, where: object, packed: int | None = None) -> None:
        """Reserve ``count`` more bytes, or reject them if they do not fit."""
        self.check(count, where, packed)
        self.taken += count

    def check(self, count: int, where: object, packed: int | None = None) -> None:
        """Reject ``count`` more bytes if they do not fit, without reserving them: for temporary data.

        ``packed``: size in the file. A far larger unpacked size is treated as a decompression bomb, unless the user has
        set a memory limit.
        """
        if packed is not None and not self.chosen and count > max(ALWAYS_ALLOWED, MOST_RATIO * packed):
            raise ComityError(
                f"{where}: {show_bytes(packed)} would take {show_bytes(count)} of memory unpacked; give --data-limit "
                "if that is right"
            )
        if self.taken + count > self.limit:
            raise ComityError(
                f"{where}: the data set needs {show_bytes(self.taken + count)} of memory or more; the limit is "
                f"{show_bytes(self.limit)}: give --data-limit to raise it"
            )


@contextmanager
def reading(path: object) -> Iterator[None]:
    """Turn any error inside into one printable line that names the file.

    Libraries raise almost any exception for a damaged file, so all are caught. A pipe or a device, which may never end,
    is rejected before it is opened.
    """
    try:
        if isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode):
            raise ComityError(f"{path}: a folder, pipe or device; expected a file")
        yield
    except ComityError:
        raise
    except MemoryError as error:
        raise ComityError(f"{path}: it needs more memory than there is, or is nested too deeply") from error
    except Exception as error:
        # a file with an offset before its start makes the system report "invalid argument"
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise ComityError(f"{error.filename or path}: {error.strerror}") from error
        raise ComityError(f"{path}: corrupt or truncated: {str(error) or type(error).__name__}") from error


def pool(arrays: Sequence[NDArray[Any]], where: object, names: str) -> NDArray[Any]:
    """Concatenate arrays of samples of the same kind."""
    for other in arrays[1:]:
        if other.shape[1:] != arrays[0].shape[1:]:
            raise ComityError(f"{where}: {names} have shapes {arrays[0].shape} and {other.shape}")
        # pixels from 0 to 255 and floats around 0 would become one float array
        if (other.dtype.kind == "f") != (arrays[0].dtype.kind == "f"):
            raise ComityError(f"{where}: {names} have types {arrays[0].dtype} and {other.dtype}")
    return np.concatenate(arrays)
