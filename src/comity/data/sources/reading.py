"""What the readers of data files share: a limit on memory, errors in one line."""

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
    """What an array takes with all that becomes of it.

    Pooling training and test data holds each value twice; training holds it beside the same value in float32.
    """
    return prod(shape) * max(2 * dtype.itemsize, dtype.itemsize + 4)


FREE, DENSEST = 10**9, 500
"""Bytes that any file may take unpacked, and how many times its own size a larger one may."""


class Budget:
    """How much of the limit one data set has taken. Readers ask it before they unpack anything."""

    def __init__(self, limit: int | str | None = None) -> None:
        # A quarter is left for Python, torch and the clients' models.
        self.limit = int(0.75 * installed()) if limit is None else parse_bytes(limit, "the limit")
        self.chosen = limit is not None
        self.taken = 0

    def take(self, count: int, where: object, packed: int | None = None) -> None:
        """Reject ``count`` more bytes if they do not fit; otherwise they are taken from now on."""
        self.check(count, where, packed)
        self.taken += count

    def check(self, count: int, where: object, packed: int | None = None) -> None:
        """Reject ``count`` more bytes if they do not fit; for what is in memory only for a moment.

        ``packed``: the bytes in the file that they are unpacked from. Far more than these are a bomb, unless the user
        has said how much memory the data may take.
        """
        if packed is not None and not self.chosen and count > max(FREE, DENSEST * packed):
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
    """Whatever fails inside becomes one printable line that names the file.

    The libraries that read files raise nearly every exception there is when a file is damaged, so all are caught. A
    pipe or a device, which may never end, is rejected before it is opened.
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
        # A file that sends its reader to a place before its start makes the system say "invalid argument".
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise ComityError(f"{error.filename or path}: {error.strerror}") from error
        raise ComityError(f"{path}: corrupt or truncated: {str(error) or type(error).__name__}") from error


def pool(arrays: Sequence[NDArray[Any]], where: object, names: str) -> NDArray[Any]:
    """Arrays that hold samples of one kind, one after the other."""
    for other in arrays[1:]:
        if other.shape[1:] != arrays[0].shape[1:]:
            raise ComityError(f"{where}: {names} have shapes {arrays[0].shape} and {other.shape}")
        # Pixels from 0 to 255 and floats around 0 would become one array of floats.
        if (other.dtype.kind == "f") != (arrays[0].dtype.kind == "f"):
            raise ComityError(f"{where}: {names} have types {arrays[0].dtype} and {other.dtype}")
    return np.concatenate(arrays)
