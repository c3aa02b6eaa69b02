"""What ``comity inspect`` and ``comity aggregate`` share."""

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comity._errors import ComityError
from comity.commands._command import Repeated

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 16_000_000  # bytes to work with, below which pieces are too small to be of use
BASES = re.compile("base|start|init|global|server", re.IGNORECASE)
"""Words that mark a file name as that of a base."""


@dataclass(frozen=True)
class FileInputs:
    """The clients' files and what is taken of them.

    Options:
        files: the base, unless --base names it, then the clients' models: safetensors, torch (.pt, .pth, .bin, .ckpt)
            or npz files, indices of shards, or folders with one model or one PEFT adapter
        base: the model that the clients started from
        as_updates: there is no base; the files are the updates themselves
        only: tensors that take part, by name or its end after a dot, 'lora_*'; may be repeated
        exclude: tensors that do not; may be repeated
        weights: CSV file with the columns name and size (and loss, for rules that need it)
        lora: how PEFT adapters are merged: A and B separately (factors), or their products BA, cut to a rank (products)
        memory: the most that the process may take
        skip_bad: leave bad files out and say so; without it they stop the command with nothing written
    """

    files: tuple[Path, ...] = ()
    _: KW_ONLY
    base: Path | None = None
    as_updates: bool = False
    only: Repeated = ()
    exclude: Repeated = ()
    weights: Path | None = None
    lora: Literal["factors", "products"] = "factors"
    memory: str = "2GB"
    skip_bad: bool = False

    def arguments(self, command: str) -> dict[str, Any]:
        """For the functions of ``comity.files``."""
        if self.base is not None and self.as_updates:
            raise ComityError("updates have no base: give --base or --as-updates, not both")
        base, clients = self._base_and_clients
        if not clients:
            needed = "the clients' updates" if self.as_updates else "a base and the clients' files"
            raise ComityError(f"comity {command} takes {needed}; see comity {command} --help")
        return {
            "base": base,
            "clients": list(clients),
            "only": self.only,
            "exclude": self.exclude,
            "lora": self.lora,
            "sizes": self.weights,
            "memory": self._memory_left(),
            "skip_bad": self.skip_bad,
        }

    @property
    def _base_and_clients(self) -> tuple[Path | None, Sequence[Path]]:
        by_place = self.base is None and not self.as_updates and self.files
        return (self.files[0], self.files[1:]) if by_place else (self.base, self.files)

    def warn_if_base_looks_like_a_client(self) -> None:
        """Warn if the base was not named and may be a client's model."""
        base, clients = self._base_and_clients
        if base is not None and self.base is None and _looks_like_a_client(base, clients):
            told = f"{base} was taken for the base that the clients started from, and looks like one of the clients"
            offer = "give the base with --base, or say --as-updates if these are updates"
            print(f"comity: {told}; {offer}", file=sys.stderr)

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


def _looks_like_a_client(base: Path, clients: Sequence[Path]) -> bool:
    """Whether the base lies where the clients' files lie and has a name like theirs: perhaps --base was forgotten."""
    places = [file.absolute() for file in (base, *clients)]
    if len({place.name for place in places}) == 1:  # site-1/model.pt, site-2/model.pt
        places = [place.parent for place in places]
    if len({place.parent for place in places}) > 1 or BASES.search(places[0].stem):
        return False
    first, *names = (re.sub(r"\d+", "0", place.stem) for place in places)
    return first.startswith(os.path.commonprefix(names))  # noqa: RUF071 (names, not paths)


@contextmanager
def reading(console: "Console") -> Iterator[Any]:
    """Show a progress bar on a terminal, and print our own warnings as one line each; others stay as they are."""
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
