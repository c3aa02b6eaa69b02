"""Flower's simulation engine on Ray: many virtual nodes shared out among processes, with the bits of threads."""

import logging
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from comity import Config
from comity.engine import Run, run
from comity.flower import Patience, client_app
from comity.flower._server import over

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed: pip install 'flwr[simulation]'"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, of many kinds
]

NODES = 60


def test_sixty_virtual_nodes_on_ray(tiny: dict[str, Any]) -> None:
    from flwr.simulation import run_simulation

    config = Config(**(tiny | {"method": "FedRep", "rule": "ConFREE", "clients": NODES, "rounds": 2, "eval_every": 2}))
    done: list[Run] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        done.append(over(grid, config, patience=Patience(query=600.0)))  # its processes have to start first

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    before = logging.getLogger("flwr").level
    try:
        run_simulation(server, client_app(config), NODES, backend_config=resources)
    finally:
        logging.getLogger("flwr").setLevel(before)
    here = run(config)
    assert torch.equal(done[0].server.theta, here.server.theta)
    assert done[0].columns == here.columns
    assert [record.failed for record in done[0].records] == [{}, {}]
