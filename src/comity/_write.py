"""Atomic file writes and folder locks, safe in folders that others may have filled."""

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
    """The path ``name`` in an untrusted folder; rejects links that lead elsewhere, pipes and devices."""
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
    """The resolved path; a circular link resolves to itself."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # NUL character
        raise ComityError(f"{path} is not a path") from None


def open_plain(path: Path, mode: str) -> IO[Any]:
    """Open a file itself, never the target of a link."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666))


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes ``path`` only when everything is on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # an existing link would be followed
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
    """Sync a file, or the names in a folder, to disk, so that a power cut leaves them whole."""
    is_folder = path.is_dir()
    with contextlib.suppress(OSError) if is_folder else contextlib.nullcontext():  # not every system can sync folders
        handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_part(path: Path) -> bool:
    """Whether this is a temporary file of ``atomically``, possibly from a killed process."""
    return _PART.fullmatch(path.name) is not None


def remove_parts(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder; those of living processes stay."""
    for path in folder.glob(".*.part"):
        found = _PART.fullmatch(path.name)
        if found is not None and not _lives(int(found[1])):
            path.unlink(missing_ok=True)


def _lives(process: int) -> bool:
    if sys.platform == "win32":  # there it would end the process
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # another user's process
        pass
    return True


@contextlib.contextmanager
def locked(file: Path, taken: str, stop: Callable[[], bool] | None = None) -> Iterator[bool]:
    """Lock a folder by a lock ``file``, which exists only meanwhile. A killed process releases its lock.

    If another process holds the lock, raise an error with the message ``taken``. With ``stop``, wait for the lock;
    yields ``False`` if ``stop`` returned true meanwhile.
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
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks: continue without one
            raise
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # Windows cannot remove an open file
            file.unlink()  # while it is held: a waiting process notices and creates a new one
        lock.release()


def is_locked(file: Path) -> bool:
    """Whether another process holds the lock ``file``; ``False`` if unknown. Leaves no file behind."""
    from filelock import FileLock, Timeout

    if not file.is_file():
        return False
    lock = FileLock(file)
    try:
        lock.acquire(0)
    except Timeout:
        return True
    except OSError:  # a read-only folder
        return False
    lock.release()
    return False
