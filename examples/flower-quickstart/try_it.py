"""The whole app in this process, without SuperLink or SuperNodes."""

import sys
import tempfile
from contextlib import chdir
from pathlib import Path

from flwr.app import Context, RecordDict
from quickstart.client_app import app as client
from quickstart.private_client_app import app as private_client
from quickstart.server_app import app as server

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # comity's own tests run on this grid

from in_process import InProcessGrid

SETTINGS = {"num-server-rounds": 10, "fraction-train": 1.0, "local-epochs": 2, "learning-rate": 0.1}
PRIVATE = {"clipping-norm": 1.0, "epsilon": 500.0}


def main(private: bool) -> None:
    settings = SETTINGS | (PRIVATE if private else {})
    grid = InProcessGrid(private_client if private else client, clients=5, run_config=settings)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):  # it saves its final model where it stands
        server(grid, Context(1, 1, {}, RecordDict(), settings))


if __name__ == "__main__":
    main(private="--private" in sys.argv)
