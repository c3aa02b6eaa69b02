"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes ``path`` when everything is on disk, and only then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomically(path) as part:
        part.write_text(text, encoding="utf-8")
