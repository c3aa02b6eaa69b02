"""The whole app in this process, without SuperLink or SuperNodes: python try_it.py FOLDER."""

import sys
import tomllib
from pathlib import Path

from finetuning.client_app import app as client
from finetuning.server_app import app as server
from flwr.app import Context, RecordDict

sys.path.append(str(Path(__file__).parents[2] / "tests"))  # comity's own tests run on this grid

from in_process import InProcessGrid

if __name__ == "__main__":
    settings = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    settings |= {"out": sys.argv[1]}
    grid = InProcessGrid(client, clients=settings["sites"], run_config=settings)
    server(grid, Context(1, 1, {}, RecordDict(), settings))
