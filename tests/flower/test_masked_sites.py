"""Masked runs on tables that stay at their sites: means and spreads from sums of which the server sees the total."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from grids import HASTY, kept
from sites import NAMES, without, write_tables
from torch import Tensor

from comity import ComityError, Config
from comity.commands import command
from comity.data import Moments, Scaler, SiteTable, read_schema, site_federation
from comity.engine import Run, run
from comity.flower import Tables, client_app
from comity.flower._server import over
from comity.flower._wire import tensors
from comity.privacy import FixedPoint
from in_process import InProcessGrid

STAGES = ("moments", "share", "mask", "agree", "unmask", "add")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``all.yaml`` has columns that all four hospitals know, ``most.yaml`` one that three know, ``common.yaml`` all."""
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    without(folder / "common.yaml", folder / "most.yaml", "vessels")
    without(folder / "most.yaml", folder / "all.yaml", "cholesterol", "st_slope", "thallium")
    nobody = (folder / "all.yaml").read_text().replace("min_count: 10", "min_count: 1000")
    (folder / "nobody.yaml").write_text(nobody)
    return folder


def configured(**options: Any) -> Config:
    chosen = {"model": "logistic", "rounds": 2, "reference": "none", "metric": "accuracy", "clients": 4}
    return Config(**(chosen | {"masked": True, "min_clients": 3} | options), data="sites")


class Sites(InProcessGrid):
    """Four nodes with a table each. What they send before the first round is written down, and some are then gone."""

    def __init__(self, tables: Path, config: Config, schema: str, secrets: Path | None = None, **app: Any) -> None:
        files = [{"data": str(tables / name / "patients.csv")} for name in NAMES]
        keys = ["none" if secrets is None else str(secrets / f"client-{cid}.json") for cid in range(4)]
        nodes = [file | {"secrets": key} for file, key in zip(files, keys, strict=True)]
        self.own = Tables(tables / schema)
        super().__init__(client_app(config, self.own, **app), 4, node_configs=nodes)
        self.received: list[tuple[str, int, dict[str, Tensor]]] = []
        self.refused: dict[int, str] = {}
        self.asked: list[str] = []
        self.gone: dict[str, Collection[int]] = {}

    def answer(self, message: Message) -> Message:
        verb, cid = message.metadata.message_type.partition(".")[2], self.client(message)
        self.asked.append(verb)
        if "fit" not in self.asked and cid in self.gone.get(verb, ()):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        reply = super().answer(message)
        if reply.has_error():
            self.refused[cid] = reply.error.reason
        elif "fit" not in self.asked and verb in STAGES:
            (arrays,) = reply.content.array_records.values()
            self.received.append((verb, cid, tensors(arrays)))
        return reply

    def client(self, message: Message) -> int:
        cid = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
        assert isinstance(cid, int)
        return cid

    def run(self, config: Config) -> Run:  # type: ignore[override]
        return over(self, config, self.own, patience=HASTY)


def rehearse(tables: Path, config: Config, schema: str) -> Run:
    """The same run with all rows in one file on this machine."""
    data = {"name": str(tables / "pooled" / "patients.csv"), "schema": str(tables / schema)}
    return run(config.with_(data=data))


def sums_of(tables: Path, config: Config, schema: str) -> list[Moments]:
    """What each hospital adds, computed where all tables lie."""
    found, agreed = [], read_schema(tables / schema)
    for cid, name in enumerate(NAMES):
        mine = SiteTable.read(tables / name / "patients.csv", tables / schema)
        about = {"seed": config.seed, "test_share": config.test_share, "val_share": config.val_share}
        x = site_federation(agreed, **about, mine=mine).clients[cid].train.x.numpy()
        found.append(Moments.of(x).without_few(agreed.min_count))
    return found


def scaler_of(sums: list[Moments]) -> Scaler:
    total = np.array(
        [
            [math.fsum(values) for values in zip(*rows, strict=True)]
            for rows in zip(*(each.stacked for each in sums), strict=True)
        ]
    )
    return Scaler.of(Moments(*total))


def assert_scaled_by(done: Run, scaler: Scaler | None) -> None:
    assert scaler is not None
    assert np.array_equal(done.server.store["scaler"].numpy(), np.stack([scaler.centre, scaler.factor]))


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        ("all.yaml", {"seed": 4}),
        ("most.yaml", {"method": "FedRep", "model": "mlp", "guard": "mixture", "reference": "auto", "control": "none"}),
        ("nobody.yaml", {"rounds": 1}),
    ],
)
def test_the_same_bits_as_in_a_rehearsal_with_one_file(tables: Path, schema: str, options: dict[str, Any]) -> None:
    """With clients that keep a head of their own, and with columns of which no hospital knows enough values."""
    config = configured(**options)
    grid = Sites(tables, config, schema)
    there, here = grid.run(config), rehearse(tables, config, schema)
    assert not any(record.failed for record in there.records)
    assert here.federation.preprocessing is not None
    assert_scaled_by(there, here.federation.preprocessing.scaler)
    assert torch.equal(there.server.theta, here.server.theta)
    for cid, state in here.server.link.states().items():
        mine, theirs = state.flat(), kept(grid, there.config, cid).flat()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert there.columns["L-acc"] == here.columns["L-acc"]
    assert grid.asked.count("moments") == grid.asked.count("add") == 4  # once for the run and its local baselines
    assert bool(there.server.store["scaler"].any()) == (schema != "nobody.yaml")


def test_masked_and_open_sums_give_the_same_bits(tables: Path) -> None:
    masked, open_ = configured(rounds=1), configured(rounds=1, masked=False)
    first, second = (Sites(tables, config, "all.yaml").run(config).server.store for config in (masked, open_))
    assert torch.equal(first["scaler"], second["scaler"])


def test_the_server_sees_no_sums_of_a_single_client(tables: Path) -> None:
    """No number of a client's sums in what it sends, and a fair coin in all that hides them."""
    config = configured(rounds=1)
    grid, sums = Sites(tables, config, "all.yaml"), sums_of(tables, config, "all.yaml")
    done = grid.run(config)
    assert_scaled_by(done, scaler_of(sums))
    assert {verb for verb, _, _ in grid.received} == set(STAGES)
    sent = [(name, tensor) for _, _, reply in grid.received for name, tensor in reply.items()]
    assert {name for name, _ in sent} == {"keys", "sealed", "digests", "words", "signature", "shares"}
    total, shape = 0, (4, sums[0].count.size)
    for verb, cid, reply in grid.received:
        own = sums[cid].stacked
        numbers = {value.tobytes() for value in (own.ravel(), own.astype(np.int64).ravel()) for value in value if value}
        for name, tensor in reply.items():
            text = tensor.numpy().tobytes()
            assert not [number for number in numbers if len(number.strip(b"\0")) > 1 and number in text], (verb, name)
        if "words" in reply:
            words = reply["words"].numpy().view(np.uint64)
            bits = np.unpackbits(words.view(np.uint8)).mean()
            assert abs(bits - 0.5) < 5 * 0.5 / np.sqrt(64 * len(words))
            if verb == "add":
                assert not (FixedPoint(4).decode_exactly(words[:-1]).reshape(shape) == own).any()
                total += 1
    assert total == 4


@pytest.mark.parametrize("stage", STAGES)
def test_one_that_drops_out_in_any_stage_costs_its_own_sums_alone(tables: Path, stage: str) -> None:
    """It takes part in the rounds that follow."""
    config = configured(method="FedRep", model="mlp")
    grid = Sites(tables, config, "all.yaml")
    grid.gone = {stage: [1]}
    done = grid.run(config)
    sums = sums_of(tables, config, "all.yaml")
    assert_scaled_by(done, scaler_of(sums[:1] + sums[2:]))
    assert [list(record.failed) for record in done.records] == [[1], []]
    assert done.records[0].failed[1].startswith(f"{stage}: ")
    assert not [words for record in done.records for words in record.warnings if "rejected" in words]


@pytest.mark.parametrize("stage", STAGES)
def test_below_min_clients_nothing_is_added_up(tables: Path, stage: str) -> None:
    config = configured()
    grid = Sites(tables, config, "all.yaml")
    grid.gone = {stage: [1, 2]}
    few = r"2 clients are left; 3 are the fewest|2 clients signed .*; 3 are|too few clients that hold shares"
    with pytest.raises(ComityError, match=rf"the clients' moments cannot be added up behind masks: ({few}).*{stage}: "):
        grid.run(config)
    assert "fit" not in grid.asked


def test_a_smaller_federation_than_min_clients_is_rejected(tables: Path) -> None:
    config = configured(min_clients=5)
    with pytest.raises(ComityError, match="a round has 4 clients, and min_clients is 5"):
        over(Sites(tables, configured(), "all.yaml"), config, Tables(tables / "all.yaml"))


def test_a_column_that_few_clients_know_is_not_added_up(tables: Path) -> None:
    """One hospital alone knows how many vessels: the total would be its own sums."""
    config = configured()
    grid = Sites(tables, config, "common.yaml")
    with pytest.raises(ComityError, match="fewer than 3 clients know vessels, and its sums would tell of single ones"):
        grid.run(config)
    assert "add" not in grid.asked


def test_clients_do_not_open_a_column_that_too_few_may_know(tables: Path) -> None:
    """Three hospitals know cholesterol; one is lost after that was counted, and it may be one of them."""
    config = configured()
    grid = Sites(tables, config, "most.yaml")
    grid.gone = {"add": [0]}
    with pytest.raises(ComityError, match="1 clients signed what they were sent; 3 are the fewest"):
        grid.run(config)
    assert grid.asked.count("unmask") == 4  # of the columns that each knows, and never of the sums
    assert grid.refused.keys() == {1, 2}  # the last one does not know it
    assert all("known: too few clients know a column that it knows" in why for why in grid.refused.values())


def test_the_same_sums_are_added_up_once_with_the_same_secrets(tables: Path, tmp_path: Path) -> None:
    """In another run one client could be left out, and the difference would be its own sums."""
    assert command("flower", ["keys", str(tmp_path / "secrets"), "--clients", "4"]) == 0
    for file in (tmp_path / "secrets").glob("*.json"):
        file.write_text(file.read_text().replace('"min_clients": 5', '"min_clients": 3'))
    first, second = configured(rounds=1), configured(rounds=1, lr=0.01)
    done = Sites(tables, first, "all.yaml", tmp_path / "secrets").run(first)
    assert_scaled_by(done, scaler_of(sums_of(tables, first, "all.yaml")))
    with pytest.raises(ComityError, match="again: this round of this run, or of this model, was answered before"):
        Sites(tables, second, "all.yaml", tmp_path / "secrets").run(second)
    other = configured(rounds=1, seed=1)
    assert not Sites(tables, other, "all.yaml", tmp_path / "secrets").run(other).records[0].failed


@pytest.mark.parametrize("folder", [None, "keep"])
def test_a_run_is_resumed_with_the_sums_that_it_began_with(tables: Path, tmp_path: Path, folder: str | None) -> None:
    """Also where sites keep states on disk: nothing of the sums is in them, and clients are started all the same."""
    config = configured(method="FedRep", model="mlp", out=tmp_path / "run", checkpoint_every=1)
    grid = Sites(tables, config, "all.yaml", keep=None if folder is None else str(tmp_path / folder))

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.methods.FedRep.begin", dies)
        with pytest.raises(KeyboardInterrupt):
            grid.run(config)
    resumed = over(grid, config, grid.own, resume=True)
    assert grid.asked.count("moments") == 4
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and b"secret/" in file.read_bytes()]
    assert torch.equal(resumed.server.theta, rehearse(tables, config.with_(out=None), "all.yaml").server.theta)


def test_masked_tables_need_a_least_count(tables: Path) -> None:
    text, config = (tables / "all.yaml").read_text(), configured()
    (tables / "none.yaml").write_text(text.replace("min_count: 10", "min_count: 0"))
    grid = Sites(tables, config, "none.yaml")
    with pytest.raises(ComityError, match="masked, the schema must say of how many values a sum is at least"):
        grid.run(config)
    assert "moments" not in grid.asked


def test_noise_on_updates_alone_is_rejected(tables: Path) -> None:
    config = configured(dp_noise=1.0, rule={"name": "Mean", "by": "uniform"})
    with pytest.raises(ComityError, match="the sums for means and spreads of tables would leave their sites without"):
        Sites(tables, configured(), "all.yaml").run(config)
