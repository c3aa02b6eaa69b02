"""``comity inspect``."""

from comity._options import Count, Positive, ShareBetween
from comity.commands._command import Command
from comity.commands._files import FileInputs


def inspect(
    inputs: FileInputs,
    *,
    lr: Positive | None = None,
    sketch: Count | ShareBetween | None = None,
) -> int:
    """Show who is in conflict among models in files, and whom their mean would harm.

    It also says what a rule would change. Nothing is written.

    Examples:
        comity inspect --base base.safetensors clients/*.safetensors
        comity inspect --base adapters/start adapters/clinic-* --lora products

    Options:
        lr: the clients' learning rate times their local steps; changes of loss are then shown too
        sketch: for very large files: estimate products from so many random measurements of each tensor, such as 1024,
            or below 1 from as many as give cosines this standard error
    """
    from rich.console import Console

    from comity.commands._files import reading
    from comity.files import inspect, show

    console = Console()
    with reading(console) as progress:
        inspection = inspect(**inputs.arguments("inspect"), lr=lr, sketch=sketch, progress=progress)
    inputs.warn_if_base_looks_like_a_client()
    show(inspection, console)
    return 0


COMMAND = Command(inspect, order=6)
