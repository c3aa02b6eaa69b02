"""Files that are there whole or not at all, in folders that others may have filled and one process writes to."""

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from comity._errors import ComityError

LONG = 1e9
"""Seconds that ``locked`` waits for another process."""
_PART = re.compile(r"\..+\.(\d+)\.part")


def inside(folder: Path, name: str) -> Path:
    """The path ``name`` in a folder that others may have filled: not a link that leads elsewhere, no pipe or device."""
    path = folder
    for part in Path(name).parts:
        path /= part
        try:
            mode = path.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ComityError(f"{path} is a link, pipe or device; expected a plain file or folder")
    return path


def real(path: str | Path) -> Path:
    """Where a path leads; a link in a circle leads to itself."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a NUL
        raise ComityError(f"{path} is not a path") from None


def open_plain(path: Path, mode: str) -> IO[Any]:
    """Open a file itself, never what a link of its name points to."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666))


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes ``path`` when everything is on disk, and only then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # a link that somebody put there would be followed
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
    is_folder = path.is_dir()
    with contextlib.suppress(OSError) if is_folder else contextlib.nullcontext():  # not every system syncs folders
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
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
        pass
    return True


@contextlib.contextmanager
def locked(file: Path, taken: str, stop: Callable[[], bool] | None = None) -> Iterator[bool]:
    """Hold a folder by a lock ``file`` in it, which exists only meanwhile. The lock of a killed process is free.

    A lock that another process holds is an error with the message ``taken``. With ``stop``, the lock is waited for;
    the result is ``False`` if ``stop`` returned true meanwhile.
    """
    from filelock import FileLock, Timeout

    file.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(file)
    try:
        lock.acquire(0.2 if stop is None else LONG, poll_interval=0.1, cancel_check=stop)
    except Timeout as error:
        if stop is None:
            raise ComityError(taken) from error
        yield False
        return
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks: go without
            raise
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file
            file.unlink()  # while it is held: whoever waits for it notices and takes a new one
        lock.release()


def is_locked(file: Path) -> bool:
    """Whether another process holds the lock ``file``; ``False`` where that cannot be known. Nothing is left behind."""
    from filelock import FileLock, Timeout

    if not file.is_file():
        return False
    lock = FileLock(file)
    try:
        lock.acquire(0)
    except Timeout:
        return True
    except OSError:  # a folder that may only be read
        return False
    lock.release()
    return False
