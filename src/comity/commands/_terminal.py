"""Shared terminal output of commands."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from comity._errors import complain, printable
from comity.compare import LoadedStudy, Verdict
from comity.results import Result


class Terminal(Console):
    """A console that prints untrusted text without control characters."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def wide_console() -> Console:
    """A console that does not cut tables in a file or a pipe at 80 columns."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=160)


def announce(console: Console, data: str) -> None:
    """Print the first line of a command before it imports torch, which takes a second or two."""
    console.print(f"Reading {data} …", highlight=False, markup=False, soft_wrap=True)


def show_title(console: Console, verdict: Verdict) -> None:
    """Print the verdict in a few words, the evidence in one sentence, and advice."""
    console.print(Text(verdict.title, style="bold"))
    console.print(verdict.evidence, highlight=False, markup=False)
    for what, why in verdict.advice:
        console.print(f"→ {what}. {why}", highlight=False, markup=False)
    console.print()


def show_verdict(console: Console, study: LoadedStudy) -> None:
    """Print the verdict with evidence and advice, one row per client, and the table."""
    verdict = study.verdict
    show_title(console, verdict)
    if verdict.cell is not None and verdict.cell.clients:
        console.print(verdict.cell.client_table)
        console.print()
    console.print(study.table())


def report_divergence(results: Mapping[str, Result]) -> int:
    """Report diverged runs and return the exit code."""
    diverged = {title: result.diverged for title, result in results.items() if result.diverged}
    for title, clients in diverged.items():
        who = f"client {clients[0]}" if len(clients) == 1 else f"{len(clients)} clients"
        what = f"{title} diverged: the model or the update of {who} is not finite"
        complain(f"{what}; a smaller --lr or a --clip may help")
    return 1 if diverged else 0


@contextmanager
def interruptible(console: Console, what: str) -> Iterator[Callable[[], bool]]:
    """Let Ctrl-C finish ``what`` first; the yielded function returns whether it was pressed. Twice stops at once."""
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
