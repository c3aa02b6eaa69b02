"""Masked sums over a grid: the bits of threads, with secrets of their own, and whoever is lost in whichever stage."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from grids import HASTY, assert_same

from comity import ComityError, Config
from comity.commands import command
from comity.engine import run
from comity.flower import client_app
from comity.flower._server import over
from in_process import InProcessGrid

REHEARSAL = {"secrets": "none"}


@pytest.fixture
def options(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"clients": 4, "rounds": 2, "reference": "none", "masked": True, "sketch": 16}


class Lossy(InProcessGrid):
    """A client that is gone from some message on, as a SuperNode that is killed when it gets it."""

    gone: dict[str, int] = {}  # noqa: RUF012

    def answer(self, message: Message) -> Message:
        verb = message.metadata.message_type.partition(".")[2]
        context = self.contexts[message.metadata.dst_node_id]
        if self.gone.get(verb) == context.node_config["partition-id"]:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        return super().answer(message)


def grid_of(config: Config, node_configs: list[dict[str, Any]] | None = None) -> Lossy:
    assert config.clients is not None
    return Lossy(client_app(config), config.clients, node_configs=node_configs or config.clients * [REHEARSAL])


@pytest.mark.parametrize(
    "more",
    [
        {"method": "FedRep", "rule": "ConFREE"},
        {"rule": {"name": "Mean", "by": "uniform"}, "dp_noise": 1.0},
        {"model": "resnet4", "rule": {"name": "CALM", "scope": "layer"}, "rounds": 1},
    ],
    ids=str,
)
def test_the_same_bits_as_through_threads(options: dict[str, Any], more: dict[str, Any]) -> None:
    config = Config(**(options | more))
    grid = grid_of(config)
    assert_same(run(config), over(grid, config), grid)


def test_with_secrets_of_its_own_each_client_gives_the_same_sum(options: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**options)
    assert command("flower", ["keys", str(tmp_path / "secrets"), "--clients", "4"]) == 0
    files = [{"secrets": str(tmp_path / "secrets" / f"client-{cid}.json")} for cid in range(4)]
    done = over(grid_of(config, files), config)
    assert not any(record.failed for record in done.records)
    assert torch.equal(done.server.theta, run(config).server.theta)

    others = tmp_path / "others"  # a client that is not in the list of the others
    assert command("flower", ["keys", str(others), "--clients", "4"]) == 0
    files[3] = {"secrets": str(others / "client-3.json")}
    done = over(grid_of(config, files), config)
    assert all(record.failed.keys() == {3} for record in done.records)
    assert "not signed as the federation's list says" in done.records[0].failed[3]


@pytest.mark.parametrize("verb", ["fit", "share", "mask", "unmask", "against"])
def test_a_node_that_dies_in_any_stage_costs_nobody_else(options: dict[str, Any], verb: str) -> None:
    config = Config(**(options | {"rounds": 1, "rule": "ConFREE", "seed": 3}))  # others reach max_weight (issue 34)
    grid = grid_of(config)
    grid.gone = {verb: 2}
    (record,) = over(grid, config, patience=HASTY).records
    assert record.failed.keys() == {2}
    assert not [words for words in record.warnings if "rejected" in words]
    assert record.against is not None
    assert record.against.clients == 3


def test_without_secrets_a_client_takes_no_part(options: dict[str, Any]) -> None:
    config = Config(**options)
    with pytest.raises(ComityError, match="a masked run needs this client's secrets"):
        over(grid_of(config, 4 * [{}]), config)


def test_what_is_secret_is_not_on_the_sites_disk(options: dict[str, Any], tmp_path: Path) -> None:
    """But in the SuperNode's memory, until the round is over."""
    config = Config(**(options | {"rounds": 1}))
    grid = grid_of(config, 4 * [REHEARSAL | {"keep": str(tmp_path)}])
    grid.gone = {"unmask": 1}  # it still has all secrets of a round that ended without it
    over(grid, config, patience=HASTY)
    names = [name for record in grid.contexts[grid.node_of(1)].state.array_records.values() for name in record]
    assert not [name for name in names if name.startswith("secret/")]  # it was evaluated since, and forgot
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"secret/" in file.read_bytes()]


def test_mods_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ComityError, match="masked it sends none"):
        client_app(Config(**options), mods=[lambda message, context, next: next(message, context)])
