"""What ``comity inspect`` and ``comity aggregate`` share."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from comity._errors import ComityError
from comity.files._memory import parse_bytes, resident, show_bytes
from comity.files._merge import Progress
from comity.rules import DroppedWarning, SolverWarning

LEAST = 16_000_000  # bytes to work with, below which pieces are too small to be of use
OURS = (DroppedWarning, SolverWarning)


def inputs(
    base: Path | None, clients: Sequence[Path], as_updates: bool, command: str
) -> tuple[Path | None, list[Path]]:
    """The base and the clients' files; where they are updates there is no base, and what stands first is a client."""
    if base is None or not (clients or as_updates):
        needed = "the clients' updates" if as_updates else "a base and the clients' files"
        raise ComityError(f"comity {command} takes {needed}; see comity {command} --help")
    return (None, [base, *clients]) if as_updates else (base, list(clients))


def memory_left(limit: str) -> int:
    """What the process may still take of ``limit``, such as 2GB."""
    left = parse_bytes(limit) - resident()
    if left < LEAST:
        raise ComityError(
            f"memory {show_bytes(parse_bytes(limit))} is too little: Python and torch alone take "
            f"{show_bytes(resident())}; give {show_bytes(resident() + LEAST)}"
        )
    return left


@contextmanager
def progress(console: Console) -> Iterator[Progress | None]:
    """A bar on a terminal, nothing elsewhere."""
    if not console.is_terminal or console.quiet:
        yield None
        return
    columns = [TextColumn("reading"), BarColumn(bar_width=30), DownloadColumn(), TextColumn("·"), TimeRemainingColumn()]
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings of ours are printed as one line each; others stay as they are."""
    with warnings.catch_warnings(record=True) as caught:
        for kind in OURS:
            warnings.simplefilter("always", kind)
        try:
            yield
        finally:
            lines = [str(warning.message) for warning in caught if issubclass(warning.category, OURS)]
            print("".join(f"comity: {line}\n" for line in lines), file=sys.stderr, end="")
    for warning in caught:
        if not issubclass(warning.category, OURS):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
