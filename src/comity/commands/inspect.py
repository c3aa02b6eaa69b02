"""``comity inspect``."""

from pathlib import Path
from typing import Literal

from comity._errors import ComityError
from comity._options import Positive
from comity.commands._command import Command, Repeated


def inspect(
    base: Path | None = None,
    clients: tuple[Path, ...] = (),
    *,
    html: Path | None = None,
    lr: Positive | None = None,
    as_updates: bool = False,
    only: Repeated = (),
    exclude: Repeated = (),
    weights: Path | None = None,
    lora: Literal["factors", "products"] = "factors",
    memory: str = "2GB",
    skip_bad: bool = False,
) -> int:
    """Show who is in conflict among models in files, and whom their mean would harm.

    It also says what a rule would change. Nothing is written but the page, if one is asked for.

    Examples:
        comity inspect base.safetensors clients/*.safetensors --html conflict.html
        comity inspect adapters/start adapters/clinic-* --lora products

    Options:
        base: the model that the clients started from: a safetensors, torch (.pt, .pth, .bin, .ckpt) or npz file, an
            index of shards, or a folder with one model or one PEFT adapter
        clients: the clients' models, in any of these forms
        html: write the same as a page, with all pairs and layers
        lr: the clients' learning rate times their local steps; changes of loss are then shown too
        as_updates: there is no BASE; the files are the updates themselves
        only: tensors that take part, by name or its end after a dot, 'lora_*'; may be repeated
        exclude: tensors that do not; may be repeated
        weights: CSV file with the columns name and size (and loss, for rules that need it)
        lora: what of PEFT adapters is compared: A and B each for itself, or the products BA
        memory: the most that the process may take
        skip_bad: leave bad files out and say so; without it they stop the command
    """
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise ComityError(f"--html must name a file that ends in .html, got {html}")

    from rich.console import Console
    from rich.text import Text

    from comity._write import write_text
    from comity.commands._files import inputs, memory_left, progress, warnings_as_lines
    from comity.files import inspect
    from comity.files._html import page
    from comity.files._show import show

    console = Console()
    with warnings_as_lines(), progress(console) as bar:
        inspection = inspect(
            *inputs(base, clients, as_updates, "inspect"),
            lr=lr,
            only=only,
            exclude=exclude,
            lora=lora,
            sizes=weights,
            memory=memory_left(memory),
            skip_bad=skip_bad,
            progress=bar,
        )
    show(inspection, console)
    if html is not None:
        try:
            write_text(html, page(inspection))
        except OSError as error:
            raise ComityError(f"{html} could not be written ({error.strerror})") from error
        console.print(Text(f"\nPage: {html}"))
    return 0


COMMAND = Command(inspect)
