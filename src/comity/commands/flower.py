"""``comity flower``."""

from pathlib import Path
from typing import Literal

from comity.commands._command import RUN_OPTIONS, Command
from comity.config import Config, Entries, over, read_yaml


def flower(
    action: Literal["new"], folder: Path, *, given: Entries, config: Path | None = None, allow_code: bool = False
) -> int:
    """Write a Flower app that runs this configuration.

    The app's README.md says how to start it; docs/deploy.md tells the rest. Needs the extra flower.

    Examples:
        comity flower new federation --method FedRep --rule ConFREE --clients 3
        comity flower new federation --config runs/first/config.yaml

    Options:
        action: what to do: new writes an app
        folder: the folder for the app; it must be empty or not there yet
        config: a YAML file with any of these options, such as a run's config.yaml; options beside it win
        allow_code: let the file in --config name classes that do not come with comity; their code is run
    """
    del action  # there is only one
    chosen = Config.of(over(read_yaml(config, allow_code=allow_code), given))

    from comity.flower import write_app

    write_app(folder, chosen)
    print(f"Wrote {folder}. Its README.md says how to run it.")
    return 0


COMMAND = Command(flower, RUN_OPTIONS)
