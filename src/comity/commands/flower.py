"""``comity flower``."""

from pathlib import Path
from typing import Literal

from comity.commands._command import RUN_OPTIONS, Command, ConfigFile
from comity.config import CLIENTS, Config, Entries


def flower(action: Literal["new", "keys"], folder: Path, file: ConfigFile, *, given: Entries) -> int:
    """Write a Flower app that runs this configuration, or the secrets of its clients for masked runs.

    The app's README.md says how to start it; docs/deploy.md tells the rest. Needs the extra flower. Secrets are a file
    for each client, which it alone may have (docs/privacy.md).

    Examples:
        comity flower new federation --method FedRep --rule ConFREE --clients 3
        comity flower new federation --config runs/first/config.yaml
        comity flower keys secrets --clients 3

    Options:
        action: what to do: new writes an app, keys writes secrets
        folder: the folder for them; for an app it must be empty or not there yet
    """
    chosen = Config.of(file.entries(given))
    if action == "keys":
        from comity.privacy import write_secrets

        files = write_secrets(folder, chosen.clients or CLIENTS)
        print(f"Wrote {len(files)} files into {folder}. Hand each to its client alone, then remove the folder.")
        return 0

    from comity.flower import write_app

    write_app(folder, chosen)
    print(f"Wrote {folder}. Its README.md says how to run it.")
    return 0


COMMAND = Command(flower, RUN_OPTIONS, order=8)
