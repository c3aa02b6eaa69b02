"""Available memory."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comity._errors import ComityError, one_line

_NO_ROOM = re.compile(
    "can't allocate memory|out of memory|[Ss]torage size calculation overflow|bad_alloc|int too large"
)
"""torch's messages for an array that does not fit into memory, or has an impossible size."""
UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@contextmanager
def within_memory(what: str) -> Iterator[None]:
    """Turn out-of-memory errors into a one-line error that names ``what``."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not _NO_ROOM.search(str(error)):
            raise
        raise ComityError(
            f"{what} needs more memory than there is: {one_line(error, 200) or 'choose smaller sizes'}"
        ) from error


def parse_bytes(text: str | int | float, option: str = "memory") -> int:
    """Parse ``2GB``, ``500 MB``, ``1.5GiB`` or a number of bytes; errors name the ``option``."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]i?)?b?\s*", str(text).lower())
    try:
        count = int(float(found[1]) * UNITS[found[2] or ""]) if found else 0
    except (ValueError, OverflowError):
        count = 0
    if not count:
        raise ComityError(f"{option} must be an amount such as 2GB or 500MB, got {text!r}")
    return count


def show_bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def installed() -> int:
    """Memory of this machine, or the limit of the container."""
    try:
        amounts = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):  # Windows does not report it
        amounts = [int(8e9)]
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            amounts.append(int(Path(file).read_text()))
        except (OSError, ValueError):  # no container, or one without a limit ("max")
            continue
    return min(amounts)


def resident() -> int:
    """Current memory of this process."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak()


def peak() -> int:
    """Peak memory of this process."""
    try:  # getrusage starts with the memory of the parent process
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource  # not on every system

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
