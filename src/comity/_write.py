"""Files that are there whole or not at all, and folders that one process at a time writes to."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path

from comity._errors import ComityError

_PART = re.compile(r"\..+\.(\d+)\.part")


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes ``path`` when everything is on disk, and only then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        to_disk(part)
        part.replace(path)
        to_disk(path.parent)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomically(path) as part:
        part.write_text(text, encoding="utf-8")


def to_disk(path: Path) -> None:
    """Have the system put a file, or the names in a folder, on disk, so that a power cut leaves them whole."""
    if path.is_dir():
        with contextlib.suppress(OSError):  # not every system lets one ask for it
            _sync(os.open(path, os.O_RDONLY))
    else:
        _sync(os.open(path, os.O_RDWR))


def _sync(handle: int) -> None:
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_part(path: Path) -> bool:
    """Whether this is a file that ``atomically`` is writing, or was writing when its process was killed."""
    return _PART.fullmatch(path.name) is not None


def remove_parts(folder: Path) -> None:
    """Remove what ``atomically`` left in a folder when its process was killed; a process that lives keeps its own."""
    for path in folder.glob(".*.part"):
        found = _PART.fullmatch(path.name)
        if found is not None and not _lives(int(found[1])):
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    if sys.platform == "win32":  # which would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


@contextlib.contextmanager
def locked(file: Path, taken: str, stop: Callable[[], bool] | None = None) -> Iterator[bool]:
    """Hold a folder by a lock ``file`` in it, which is there only meanwhile. A process that was killed holds nothing.

    What another process holds is refused with the words ``taken``; with ``stop`` it is waited for, and ``False`` comes
    of it if ``stop`` said so meanwhile.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    while (held := _take(file)) is None:
        if stop is None:
            raise ComityError(taken)
        if stop():
            yield False
            return
        time.sleep(0.1)
    try:
        yield True
    finally:
        if sys.platform == "win32":
            held.close()
        file.unlink(missing_ok=True)  # before it is free: whoever has opened it meanwhile sees that it is gone
        held.close()


def _take(file: Path) -> TextIOWrapper | None:
    """The lock, or ``None`` if another has it."""
    while True:
        held = file.open("w")
        if sys.platform == "win32":
            return held
        import fcntl

        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            return None
        except OSError:  # a file system without locks
            return held
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held.fileno()), file.stat()):
                return held
        held.close()  # its last holder removed it between the two lines
