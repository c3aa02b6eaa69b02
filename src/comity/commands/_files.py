"""Shared code of ``comity inspect`` and ``comity aggregate``."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from comity._errors import ComityError, complain
from comity.commands._command import Repeated

if TYPE_CHECKING:
    from rich.console import Console

LEAST = 16_000_000  # minimum working memory in bytes; below it pieces are too small


@dataclass(frozen=True)
class FileInputs:
    """The clients' files, and which of their tensors are used.

    Options:
        files: the clients' models: safetensors, torch (.pt, .pth, .bin, .ckpt) or npz files, index files of sharded
            checkpoints, or folders with one model or one PEFT adapter
        base: the model that the clients started from
        as_updates: the files are updates; there is no base
        only: use only these tensors, by full name or last part of it, such as 'lora_*'; may be repeated
        exclude: leave these tensors out; may be repeated
        weights: CSV file with the columns name and size (and loss, for rules that need it)
        lora: merge PEFT adapters as A and B separately (factors), or as products BA reduced to a rank (products)
        memory: maximum memory of the process
        skip_bad: leave bad files out and report them; by default one bad file stops the command
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
        """Arguments for the functions of ``comity.files``."""
        from comity._memory import parse_bytes, resident, show_bytes

        if (self.base is None) != self.as_updates:
            raise ComityError(
                "give the model that the clients started from with --base, or say --as-updates if the files are updates"
            )
        if not self.files:
            raise ComityError(f"comity {command} takes the clients' files; see comity {command} --help")
        limit, taken = parse_bytes(self.memory), resident()
        if limit - taken < LEAST:
            raise ComityError(
                f"memory {show_bytes(limit)} is too little: Python and torch alone take {show_bytes(taken)}; "
                f"give {show_bytes(taken + LEAST)}"
            )
        return {
            "base": self.base,
            "clients": self.files,
            "only": self.only,
            "exclude": self.exclude,
            "lora": self.lora,
            "sizes": self.weights,
            "memory": limit - taken,
            "skip_bad": self.skip_bad,
        }


@contextmanager
def reading(console: "Console") -> Iterator[Any]:
    """Show a progress bar in a terminal, and print comity's warnings as one line each; others stay unchanged."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from comity.rules import DroppedWarning, SolverWarning

    columns = ("reading", BarColumn(bar_width=30), DownloadColumn(), "·", TimeRemainingColumn())
    shown = console.is_terminal and not console.quiet
    with warnings.catch_warnings(), Progress(*columns, console=console, transient=True, disable=not shown) as bars:
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
            ours = issubclass(category, (DroppedWarning, SolverWarning))
            complain(message) if ours else usual(message, category, *where)

        warnings.showwarning = show  # type: ignore[assignment]
        for kind in (DroppedWarning, SolverWarning):
            warnings.simplefilter("always", kind)
        task = bars.add_task("", total=None)
        yield (lambda done, total: bars.update(task, completed=done, total=total)) if shown else None
