"""Masked sums over a grid: the bits of threads, with secrets of their own, and whoever is lost in whichever stage."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from grids import HASTY, assert_same

from comity import ComityError, Config
from comity.commands import command
from comity.engine import RunPlan, run
from comity.flower import client_app
from comity.flower._server import over
from in_process import InProcessGrid

REHEARSAL = {"secrets": "none"}


@pytest.fixture
def options(tiny: dict[str, Any]) -> dict[str, Any]:
    return tiny | {"clients": 4, "rounds": 2, "reference": "none", "masked": True, "sketch": 16, "min_clients": 3}


class Lossy(InProcessGrid):
    """A client that is gone from some message on, as a SuperNode that is killed when it gets it."""

    gone: dict[str, Collection[int]] = {}  # noqa: RUF012

    def answer(self, message: Message) -> Message:
        verb = message.metadata.message_type.partition(".")[2]
        context = self.contexts[message.metadata.dst_node_id]
        if context.node_config["partition-id"] in self.gone.get(verb, ()):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        return super().answer(message)


def grid_of(config: Config, node_configs: list[dict[str, Any]] | None = None) -> Lossy:
    assert config.clients is not None
    return Lossy(client_app(config), config.clients, node_configs=node_configs or config.clients * [REHEARSAL])


def accept(file: Path, **policy: Any) -> None:
    """Change a site's policy, in its own secrets."""
    secrets = json.loads(file.read_text())
    secrets["policy"] |= policy
    file.write_text(json.dumps(secrets))


@pytest.mark.parametrize(
    "more",
    [
        {"method": "FedRep", "rule": "ConFREE"},
        {"rule": {"name": "Mean", "by": "uniform"}, "dp_noise": 1.0},
        {"model": "resnet4", "rule": {"name": "CALM", "scope": "model"}, "rounds": 1},
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
    with pytest.raises(ComityError, match="policy rejects this run: min_clients is 3, and this site's least is 5"):
        over(grid_of(config, files), config)
    for file in files:  # each site decides for itself
        accept(Path(file["secrets"]), min_clients=3)
    done = over(grid_of(config, files), config)
    assert not any(record.failed for record in done.records)
    assert torch.equal(done.server.theta, run(config).server.theta)

    others = tmp_path / "others"  # a client that is not in the list of the others
    assert command("flower", ["keys", str(others), "--clients", "4"]) == 0
    accept(others / "client-3.json", min_clients=3)
    files[3] = {"secrets": str(others / "client-3.json")}
    config = config.with_(seed=1)  # with the same secrets no run is repeated
    done = over(grid_of(config, files), config)
    assert all(record.failed.keys() == {3} for record in done.records)
    assert "not signed as the federation's list says" in done.records[0].failed[3]


@pytest.mark.parametrize("verb", ["fit", "share", "mask", "agree", "unmask", "against"])
@pytest.mark.parametrize("seed", range(3))
def test_a_node_that_dies_in_any_stage_costs_nobody_else(options: dict[str, Any], verb: str, seed: int) -> None:
    config = Config(**(options | {"rounds": 1, "rule": "ConFREE", "seed": seed}))
    grid = grid_of(config)
    grid.gone = {verb: [2]}
    (record,) = over(grid, config, patience=HASTY).records
    assert record.failed.keys() == {2}
    assert not [words for words in record.warnings if "rejected" in words]
    assert record.against is not None
    assert record.against.clients == 3


@pytest.mark.parametrize("verb", ["share", "mask", "agree", "unmask"])
@pytest.mark.parametrize("lost", [[1, 2], [0, 1, 2, 3]])
def test_a_round_that_loses_too_many_is_named_and_the_run_goes_on(
    options: dict[str, Any], verb: str, lost: list[int]
) -> None:
    config = Config(**options)
    grid = grid_of(config)
    grid.gone = {verb: lost}
    done = over(grid, config, patience=HASTY)
    assert len(done.records) == 2
    for record in done.records:
        assert [words for words in record.warnings if "is rejected and changes nothing" in words]
        assert record.failed.keys() == set(lost) or f"no client answered '{verb}'" in record.warnings[0]


def with_keys(folder: Path, **policy: Any) -> list[dict[str, Any]]:
    """Sites with secrets of their own and this policy."""
    if not folder.exists():
        assert command("flower", ["keys", str(folder), "--clients", "4"]) == 0
        for cid in range(4):
            accept(folder / f"client-{cid}.json", min_clients=3, **policy)
    return [{"secrets": str(folder / f"client-{cid}.json")} for cid in range(4)]


UNIFORM = {"rule": {"name": "Mean", "by": "uniform"}}


@pytest.mark.parametrize(
    ("operator", "site", "why"),
    [
        ({"masked": False}, {}, "masked is false, and this site takes part only in masked runs"),
        ({"masked": False, "method": "Local"}, {}, "masked is false"),
        ({"min_clients": 2}, {}, "min_clients is 2, and this site's least is 3"),
        ({"max_weight": 1.0}, {}, "max_weight is 1, and this site's most is 0.5"),
        ({"dp_noise": 0.001, **UNIFORM}, {"min_noise": 1.0}, "dp_noise is 0.001, and this site's least is 1"),
        ({}, {"max_epsilon": 8.0}, "it has no dp_noise, and this site's largest epsilon is 8"),
        ({"method": "FedPer"}, {"methods": ["FedAvg", "FedRep"]}, "method FedPer is not one of its methods"),
        ({"rule": "ConFREE"}, {"rules": ["Mean"]}, "rule ConFREE is not one of its rules"),
        ({}, {"versions": ["0.0.1"]}, "this site runs 0.0.1"),
    ],
    ids=str,
)
def test_nothing_on_the_operators_side_lowers_what_a_site_accepts(
    options: dict[str, Any], tmp_path: Path, operator: dict[str, Any], site: dict[str, Any], why: str
) -> None:
    files, config = with_keys(tmp_path / "secrets", **site), Config(**(options | operator))
    with pytest.raises(ComityError, match=f"the site's policy rejects this run: .*{re.escape(why)}"):
        over(grid_of(config, files), config)
    assert not list(tmp_path.rglob("*.answered"))


def test_a_site_may_allow_runs_without_masks(options: dict[str, Any], tmp_path: Path) -> None:
    config = Config(**(options | {"masked": False}))
    over(grid_of(config, with_keys(tmp_path / "secrets", masked=False)), config)


@pytest.mark.parametrize("policy", [{"min_cleints": 3}, {"max_weight": 2}, {"masked": "perhaps"}, 7], ids=str)
def test_a_policy_with_mistakes_is_rejected(options: dict[str, Any], tmp_path: Path, policy: Any) -> None:
    files, config = with_keys(tmp_path / "secrets"), Config(**options)
    for cid in range(4):
        file = tmp_path / "secrets" / f"client-{cid}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"policy": policy}))
    with pytest.raises(ComityError, match="polic"):
        over(grid_of(config, files), config)


def test_the_same_app_twice_with_one_client_away(options: dict[str, Any], tmp_path: Path) -> None:
    """The difference of the two sums would be that client's update: nobody takes part a second time."""
    files, config = with_keys(tmp_path / "secrets"), Config(**(options | {"rounds": 1}))
    assert not over(grid_of(config, files), config).records[0].failed
    again = grid_of(config, files)
    again.gone = {"fit": [3]}
    done = over(again, config, patience=HASTY)
    assert all("again: this round of this run" in done.records[0].failed[cid] for cid in (0, 1, 2))
    assert torch.equal(done.server.theta, RunPlan(config).build()[1].theta)


def test_what_fails_at_a_masked_site_is_in_its_own_log_alone(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any) -> None:
        raise ValueError("the largest entry is 3.25")

    monkeypatch.setattr("comity.methods.FedAvg.fit", failing)
    config = Config(**options)
    with pytest.raises(ComityError, match="failed; the site's own log says why") as error:
        over(grid_of(config), config, patience=HASTY)
    assert "3.25" not in str(error.value)
    assert "3.25" in log.text


def test_without_secrets_a_client_takes_no_part(options: dict[str, Any]) -> None:
    config = Config(**options)
    with pytest.raises(ComityError, match="a masked run needs this client's secrets"):
        over(grid_of(config, 4 * [{}]), config)


def test_what_is_secret_is_not_on_the_sites_disk(options: dict[str, Any], tmp_path: Path) -> None:
    """But in the SuperNode's memory, until the round is over."""
    config = Config(**(options | {"rounds": 1}))
    grid = grid_of(config, 4 * [REHEARSAL | {"keep": str(tmp_path)}])
    grid.gone = {"unmask": [1]}  # it still has all secrets of a round that ended without it
    over(grid, config, patience=HASTY)
    names = [name for record in grid.contexts[grid.node_of(1)].state.array_records.values() for name in record]
    assert not [name for name in names if name.startswith("secret/")]  # it was evaluated since, and forgot
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"secret/" in file.read_bytes()]


def test_mods_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ComityError, match="masked it sends none"):
        client_app(Config(**options), mods=[lambda message, context, next: next(message, context)])
