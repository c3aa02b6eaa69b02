"""What ``comity inspect`` and ``comity aggregate`` share."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comity._errors import ComityError
from comity.commands._command import Repeated

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 16_000_000  # bytes to work with, below which pieces are too small to be of use


@dataclass(frozen=True)
class FileInputs:
    """The clients' files and what is taken of them.

    Options:
        base: the model that the clients started from: a safetensors, torch (.pt, .pth, .bin, .ckpt) or npz file, an
            index of shards, or a folder with one model or one PEFT adapter
        clients: the clients' models, in any of these forms
        as_updates: there is no BASE; the files are the updates themselves
        only: tensors that take part, by name or its end after a dot, 'lora_*'; may be repeated
        exclude: tensors that do not; may be repeated
        weights: CSV file with the columns name and size (and loss, for rules that need it)
        lora: what of PEFT adapters takes part: A and B each for itself, or the products BA, cut to a rank (products),
            with the rest as a file for the base's weights (residual), or with all ranks one after another (stack)
        memory: the most that the process may take
        skip_bad: leave bad files out and say so; without it they stop the command with nothing written
    """

    base: Path | None = None
    clients: tuple[Path, ...] = ()
    _: KW_ONLY
    as_updates: bool = False
    only: Repeated = ()
    exclude: Repeated = ()
    weights: Path | None = None
    lora: Literal["factors", "products", "residual", "stack"] = "factors"
    memory: str = "2GB"
    skip_bad: bool = False

    def arguments(self, command: str) -> dict[str, Any]:
        """For the functions of ``comity.files``. Where the files are updates, what stands first is a client's too."""
        if self.base is None or not (self.clients or self.as_updates):
            needed = "the clients' updates" if self.as_updates else "a base and the clients' files"
            raise ComityError(f"comity {command} takes {needed}; see comity {command} --help")
        return {
            "base": None if self.as_updates else self.base,
            "clients": [self.base, *self.clients] if self.as_updates else list(self.clients),
            "only": self.only,
            "exclude": self.exclude,
            "lora": self.lora,
            "sizes": self.weights,
            "memory": self._memory_left(),
            "skip_bad": self.skip_bad,
        }

    def _memory_left(self) -> int:
        """What the process may still take."""
        from comity._memory import parse_bytes, resident, show_bytes

        limit, taken = parse_bytes(self.memory), resident()
        if limit - taken < LEAST:
            raise ComityError(
                f"memory {show_bytes(limit)} is too little: Python and torch alone take {show_bytes(taken)}; "
                f"give {show_bytes(taken + LEAST)}"
            )
        return limit - taken


@contextmanager
def reading(console: "Console") -> Iterator[Any]:
    """While files are read: a bar on a terminal, and warnings of ours as one line each; others stay as they are."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from comity.rules import DroppedWarning, SolverWarning

    ours = (DroppedWarning, SolverWarning)
    columns = [TextColumn("reading"), BarColumn(bar_width=30), DownloadColumn(), TextColumn("·"), TimeRemainingColumn()]
    shown = console.is_terminal and not console.quiet
    with warnings.catch_warnings(record=True) as caught:
        for kind in ours:
            warnings.simplefilter("always", kind)
        try:
            with Progress(*columns, console=console, transient=True, disable=not shown) as bars:
                task = bars.add_task("", total=None)
                yield (lambda done, total: bars.update(task, completed=done, total=total)) if shown else None
        finally:
            lines = [str(warning.message) for warning in caught if issubclass(warning.category, ours)]
            print("".join(f"comity: {line}\n" for line in lines), file=sys.stderr, end="")
    for warning in caught:
        if not issubclass(warning.category, ours):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
