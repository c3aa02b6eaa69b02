"""What several tests need: running over a grid in this process, and grids that misbehave."""

from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import Message
from msgspec.structs import replace

from comity import Config
from comity.engine import ClientState, Run, RunPlan
from comity.flower import client_app
from comity.flower._keep import Keep
from comity.flower._link import Patience
from comity.flower._server import over
from comity.results import Seconds
from helpers import bits
from in_process import InProcessGrid

HASTY = Patience(answer=60, query=20, start=0.5)
"""Clients that are not there are not waited for; those that are may take their time, on a busy machine too."""


class Silent(InProcessGrid):
    """Nodes of the clients in ``silent`` get their messages and never answer."""

    silent: frozenset[int] = frozenset()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            context = self.contexts.get(message.metadata.dst_node_id)
            if context is not None and context.node_config["partition-id"] in self.silent:
                ids.append(message.object_id)
            else:
                ids += super().push_messages([message])
        return ids


def on_grid(config: Config, **settings: Any) -> tuple[Run, InProcessGrid]:
    """A run with all its clients on a grid in this process."""
    grid = InProcessGrid(client_app(config), config.clients)
    return over(grid, config, **settings), grid


def kept(grid: InProcessGrid, config: Config, cid: int) -> ClientState:
    """What a client has in its context."""
    states = Keep(grid.contexts[grid.node_of(cid)], RunPlan(config).config.key, cid).states
    return states[max(states)].state


def recorded(done: Run) -> Any:
    """Everything that is recorded of a run, but not how long it took."""
    return [replace(record, seconds=Seconds()) for record in done.records], done.weights, done.cosines


def assert_same_bits(here: Run, there: Run, grid: InProcessGrid) -> None:
    """The same bits, including what clients keep, and the same metrics."""
    mine, theirs = bits(here), bits(there)
    for cid in here.server.link.states():
        theirs |= {f"{cid}/{name}": tensor for name, tensor in kept(grid, there.config, cid).flat().items()}
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name
        assert tensor.shape == theirs[name].shape
    assert here.columns == there.columns


def assert_same(here: Run, there: Run, grid: InProcessGrid) -> None:
    """The same bits and the same records."""
    assert_same_bits(here, there, grid)
    assert repr(recorded(here)) == repr(recorded(there))
