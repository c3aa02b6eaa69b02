"""``comity inspect``."""

from comity.commands._command import Command
from comity.commands._files import FileInputs


def inspect(inputs: FileInputs) -> int:
    """Show who is in conflict among models in files, and whom their mean would harm.

    It also says what a rule would change. Nothing is written.

    Examples:
        comity inspect --base base.safetensors clients/*.safetensors
        comity inspect --base adapters/start adapters/clinic-* --lora products
    """
    from comity.commands._files import reading
    from comity.commands._inspection import show
    from comity.commands._terminal import Terminal
    from comity.files import inspect

    console = Terminal()
    with reading(console) as progress:
        found = inspect(**inputs.arguments("inspect"), progress=progress)
    show(found, console)
    return 0


COMMAND = Command(inspect, order=6)
