"""``comity inspect``."""

from pathlib import Path

from comity._errors import ComityError
from comity._options import Count, Positive, ShareBetween
from comity.commands._command import Command
from comity.commands._files import FileInputs


def inspect(
    inputs: FileInputs,
    *,
    html: Path | None = None,
    lr: Positive | None = None,
    sketch: Count | ShareBetween | None = None,
) -> int:
    """Show who is in conflict among models in files, and whom their mean would harm.

    It also says what a rule would change. Nothing is written but the page, if one is asked for.

    Examples:
        comity inspect --base base.safetensors clients/*.safetensors --html conflict.html
        comity inspect --base adapters/start adapters/clinic-* --lora products

    Options:
        html: write the same as a page, with all pairs and layers
        lr: the clients' learning rate times their local steps; changes of loss are then shown too
        sketch: for very large files: estimate products from so many random measurements of each tensor, such as 1024,
            or below 1 from as many as give cosines this standard error
    """
    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise ComityError(f"--html must name a file that ends in .html, got {html}")

    from rich.console import Console
    from rich.text import Text

    from comity._write import write_text
    from comity.commands._files import reading
    from comity.files import inspect, page, show

    console = Console()
    with reading(console) as progress:
        inspection = inspect(**inputs.arguments("inspect"), lr=lr, sketch=sketch, progress=progress)
    inputs.doubt()
    show(inspection, console)
    if html is not None:
        write_text(html, page(inspection))
        console.print(Text(f"\nPage: {html}"))
    return 0


COMMAND = Command(inspect)
