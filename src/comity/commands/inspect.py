"""``comity inspect``."""

from comity.commands._command import Command
from comity.commands._files import FileInputs


def inspect(inputs: FileInputs) -> int:
    """Show which model files conflict, and whom averaging harms.

    The files are the clients' models. The output also shows the effect of other rules. No file is written.

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
