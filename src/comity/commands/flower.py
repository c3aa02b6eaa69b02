"""``comity flower``."""

from pathlib import Path
from typing import Literal

from comity._errors import ComityError
from comity.commands._command import RUN_OPTIONS, Command, ConfigFile
from comity.config import CLIENTS, Config, Entries, default


def flower(
    action: Literal["new", "keys"], folder: Path, file: ConfigFile, *, schema: Path | None = None, given: Entries
) -> int:
    """Write a Flower app, or key files for secure aggregation.

    With new, the command writes an app; it needs the extra flower. The app's README.md explains how to start it, and
    docs/how-to/deploy.md describes deployment. With --schema, the app is for tables that stay at their sites
    (docs/tutorials/sites.md).

    With keys, it writes one secret file per client. Give each file only to its client. The file also contains the
    minimum protection that the client requires of a run (docs/how-to/masked-sums.md).

    Examples:
        comity flower new federation --method FedRep --rule ConFREE --clients 3
        comity flower new federation --config runs/first/config.yaml
        comity flower new federation --schema common.yaml --config runs/rehearsal/config.yaml
        comity flower keys secrets --clients 3

    Options:
        action: new writes an app, keys writes secret key files
        folder: folder to write; for an app it must be empty or not exist
        schema: the common schema of the sites' tables (from `comity schema`), instead of --data
    """
    if schema is not None and (action == "keys" or "data" in given):
        raise ComityError(f"--schema is for `comity flower new` without --data, got {schema}")
    chosen = Config.of(file.entries(given))
    if schema is not None and "out" not in given:
        chosen = chosen.with_(out=None)  # not the rehearsal's
    if action == "keys":
        from comity.privacy import write_secrets

        files, least = write_secrets(folder, chosen.clients or CLIENTS), default("min_clients")
        print(f"Wrote {len(files)} files into {folder}. Give each file only to its client, then delete the folder.")
        if len(files) < least:
            print(
                f"No site accepts a sum of fewer than {least} clients, unless it lowers min_clients in its own policy."
            )
        return 0

    from comity.flower import write_app

    write_app(folder, chosen, schema)
    print(f"Wrote {folder}. Its README.md says how to run it.")
    return 0


COMMAND = Command(flower, RUN_OPTIONS, order=8, uses={"keys": ("clients",)})
