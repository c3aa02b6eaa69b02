"""``comity data``."""

from comity._datasets import whereabouts
from comity.commands._command import RUN_OPTIONS, Command, ConfigFile
from comity.config import Config, Entries


def data(file: ConfigFile, *, given: Entries) -> int:
    """Show how many samples of which class each client holds.

    Examples:
        comity data --data digits --partition dirichlet --partition.alpha 0.1 --clients 20
        comity data --data synthetic --data.label_shift 0.9
    """
    chosen = Config.of(file.entries(given))
    whereabouts(chosen.data.name, chosen.data_dir)

    from rich.console import Console

    from comity.data import describe
    from comity.engine import RunPlan

    federation = RunPlan(chosen).everyone
    console = Console(highlight=False)
    console.print(describe(federation))
    for note in (*federation.notes, *federation.warnings, federation.caveat):
        if note:
            console.print(note, markup=False)
    return 0


TAKEN = ("data", "data_dir", "data_limit", "partition", "clients", "test_share", "val_share", "seed")
COMMAND = Command(data, [option for option in RUN_OPTIONS if option.name in TAKEN], order=9)
