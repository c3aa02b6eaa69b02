"""What several commands do with the terminal."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


def wide_console() -> Console:
    """A table in a file or a pipe is not cut at 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


@contextmanager
def interruptible(console: Console, what: str) -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets ``what`` come to its end, and the function that is given tells of it; a second one does not wait."""
    asked = False

    def handler(*_: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        console.print(f"[dim]Ending {what}… (Ctrl-C again to stop at once)[/]", highlight=False)

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
