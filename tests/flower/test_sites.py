"""Tables that stay at their sites: the same bits as a rehearsal with all rows in one file, and what is rejected."""

import csv
import importlib
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp.mod import LocalDpMod
from flwr.common.config import flatten_dict
from grids import HASTY, kept
from sites import NAMES, write_tables

from comity import ComityError, Config
from comity.commands import command
from comity.data import Moments
from comity.deploy import load_model
from comity.engine import Run, run
from comity.extras.scaling import Features, Sums, _objection
from comity.flower import Tables, client_app
from comity.flower._server import over
from comity.results import RunFolder
from in_process import InProcessGrid


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


def configured(**options: Any) -> Config:
    chosen = {"model": "logistic", "rounds": 2, "control": "none", "metric": "accuracy", "clients": 4}
    return Config(**(chosen | options), data="sites")


def rehearse(tables: Path, config: Config, **options: Any) -> Run:
    """The same run with all rows in one file on this machine."""
    data = {"name": str(tables / "pooled" / "patients.csv"), "schema": str(tables / "common.yaml")}
    return run(config.with_(data=data, **options))


class Sites(InProcessGrid):
    """Four nodes that say which table they have, and nothing else. What they are asked is counted."""

    def __init__(self, tables: Path, config: Config, nodes: list[dict[str, Any]] | None = None, **app: Any) -> None:
        nodes = nodes or [{"data": str(tables / name / "patients.csv")} for name in NAMES]
        super().__init__(client_app(config, Tables(tables / "common.yaml"), **app), 4, node_configs=nodes)
        self.asked: list[str] = []

    def answer(self, message: Message) -> Message:
        self.asked.append(message.metadata.message_type)
        return super().answer(message)


def federated(tables: Path, config: Config, **app: Any) -> tuple[Run, Sites]:
    grid = Sites(tables, config, **app)
    return over(grid, config, Tables(tables / "common.yaml")), grid


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 4, "control": "auto"},
        {"method": "FedRep", "model": "mlp", "rule": "ConFREE", "guard": "mixture", "participation": 0.5},
    ],
    ids=lambda options: options.get("method", "FedAvg"),
)
def test_the_same_bits_as_in_a_rehearsal_with_one_file(tables: Path, options: dict[str, Any]) -> None:
    """Hospitals that have fewer than ten values of a column send no sums of it; the rehearsal does the same."""
    config = configured(**options)
    there, grid = federated(tables, config)
    here = rehearse(tables, config)
    assert torch.equal(here.server.theta, there.server.theta)
    for cid, state in here.server.link.states().items():
        mine, theirs = state.flat(), kept(grid, there.config, cid).flat()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    needs_others = {"S-acc", "G-acc"}
    for mine, theirs in ((here.columns, there.columns), (here.local, there.local), (here.control, there.control)):
        assert {name: column for name, column in (mine or {}).items() if name not in needs_others} == theirs
    assert here.result.transfer == there.result.transfer
    assert grid.asked.count("train.moments") == 4  # once for the run and its local baselines
    assert there.federation.counts.sum() == 0
    assert there.federation.client_names == NAMES
    assert there.federation.folds == here.federation.folds == 3


def test_each_site_has_a_model_that_predicts_as_that_of_the_rehearsal(tables: Path, tmp_path: Path) -> None:
    config = configured(method="FedRep", model="mlp", guard="mixture", out=tmp_path / "run")
    there, _ = federated(tables, config, keep=str(tmp_path / "keep"))
    rehearse(tables, config, out=tmp_path / "rehearsal")
    with (tables / "pooled" / "patients.csv").open() as file:
        rows = list(csv.DictReader(file))[::7]
    new = {name: [row[name] for row in rows] for name in rows[0] if name not in ("hospital", "disease")}
    for cid, name in enumerate(NAMES):
        (rehearsed,) = (tmp_path / "rehearsal" / "models").glob(f"{cid:03d}*")
        mine, theirs = load_model(tmp_path / "keep" / f"client-{cid}" / "model"), load_model(rehearsed)
        assert np.array_equal(mine.predict_proba(new), theirs.predict_proba(new))
        assert np.array_equal(mine.weights, theirs.weights)
        assert mine.artefact.info.provenance.client == name
        assert mine.artefact.info.performance.score == there.columns["L-acc"][cid]
        assert mine.artefact.info.performance.local == pytest.approx(there.local["L-acc"][cid], abs=1e-12)
        assert mine.artefact.info.performance.gain == there.result.transfer.clients[cid]
        assert [path.name for path in (tmp_path / "keep" / f"client-{cid}").glob(".*")] == []
    assert not (tmp_path / "run" / "models").exists()
    page = tmp_path / "page.html"
    assert command("report", [str(tmp_path / "run"), "-o", str(page), "--quiet"]) == 0
    assert all(name in page.read_text() for name in NAMES)
    assert RunFolder(tmp_path / "run").result().transfer.clients.keys() == set(range(4))


def test_a_run_is_resumed_with_the_sums_that_it_began_with(tables: Path, tmp_path: Path) -> None:
    config = configured(out=tmp_path / "run", rounds=3, checkpoint_every=1)
    own, grid = Tables(tables / "common.yaml"), Sites(tables, config)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("comity.engine._server.Server._merge", dies)
        with pytest.raises(KeyboardInterrupt):
            over(grid, config, own)
    resumed = over(grid, config, own, resume=True)
    assert grid.asked.count("train.moments") == 4
    assert torch.equal(resumed.server.theta, rehearse(tables, config, out=None).server.theta)


# What is rejected.


def rewrite(source: Path, to: Path, change: dict[str, str] | None = None, without: str | None = None) -> Path:
    """A table with a changed first row, or without a column."""
    with source.open() as file:
        rows = list(csv.DictReader(file))
    rows[0] |= change or {}
    names = [name for name in rows[0] if name != without]
    with to.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return to


@pytest.mark.parametrize(
    ("change", "without", "node", "why"),
    [
        ({"age": "4711"}, None, {}, "1 of 303 rows do not fit the schema; line 2, column age: 4711 is above"),
        ({"sex": "unknown"}, None, {}, "column sex: unknown value unknown; known: female, male"),
        ({"hospital": "Hungary"}, None, {}, "a site's table is of one client, got Cleveland, Hungary"),
        ({"hospital": "Basel"}, None, {}, "column hospital: unknown client Basel"),
        ({}, "age", {}, "lacks age of the schema"),
        ({}, "hospital", {}, "which client is this? Its table has no column hospital; one of Cleveland, Hungary"),
        ({}, "hospital", {"client": "Basel"}, "unknown client Basel; the schema has Cleveland, Hungary, Long Beach"),
        ({}, None, {"client": "Hungary"}, "a site's table is of one client, got Cleveland, Hungary"),
        ({}, None, {"data": "/nowhere/patients.csv"}, "No such file"),
        ({}, None, {"data": None}, "this node needs its table: --node-config \"data='/srv/patients.csv'\""),
        ({}, None, {"partition-id": 2}, "partition-id is 2, but the table is of client 0"),
    ],
)
def test_a_table_that_cannot_be_used_is_explained_at_the_site_alone(
    tables: Path,
    tmp_path: Path,
    log: pytest.LogCaptureFixture,
    change: dict[str, str],
    without: str | None,
    node: dict[str, Any],
    why: str,
) -> None:
    """The server is told that there is a problem, and no value of a row."""
    config = configured(reference="none")
    table = rewrite(tables / "Cleveland" / "patients.csv", tmp_path / "patients.csv", change, without)
    settings = {"data": str(table)} | node
    grid = Sites(tables, config, [{key: value for key, value in settings.items() if value is not None}] * 4)
    with pytest.raises(ComityError, match="0 of 4 clients are connected"):
        over(grid, config, Tables(tables / "common.yaml"), patience=HASTY)
    at_site = [record.getMessage() for record in log.records if record.levelname == "ERROR"]
    at_server = [record.getMessage() for record in log.records if "takes no part: " in record.getMessage()]
    assert any(why in line and line.startswith("This site takes no part: ") for line in at_site)
    assert all("\n" not in line for line in at_site)
    assert {line.partition("takes no part: ")[2] for line in at_server if line.startswith("Node ")} == {
        "ComityError: its table cannot be used; the log of its SuperNode says why"
    }


def test_a_table_without_the_column_of_clients(tables: Path, tmp_path: Path) -> None:
    config, nodes = configured(reference="none"), list[dict[str, Any]]()
    for name in NAMES:
        table = rewrite(tables / name / "patients.csv", tmp_path / f"{name}.csv", without="hospital")
        nodes.append({"data": str(table), "client": name})
    own = Tables(tables / "common.yaml")
    done = over(Sites(tables, config, nodes), config, own)
    assert torch.equal(done.server.theta, rehearse(tables, config).server.theta)


def test_what_would_leave_a_site_unprotected_is_rejected(tables: Path) -> None:
    config, own = configured(), Tables(tables / "common.yaml")
    clip = LocalDpMod(clipping_norm=1.0, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    with pytest.raises(ComityError, match="FedAvg also sends bits, which would leave without noise"):
        client_app(config, own, [clip])
    with pytest.raises(ComityError, match="data sites: each site reads its own table, on Flower"):
        run(config)


def test_samples_are_used_with_the_means_of_the_schemas_features_only(tables: Path) -> None:
    config, own = configured(reference="none"), Tables(tables / "common.yaml")

    class Forgetful(Sites):
        along: list[float]

        def answer(self, message: Message) -> Message:
            record = message.content.config_records.get("config")
            if record is not None and "comity-along" in record:
                del record["comity-along"]
                if self.along:
                    record["comity-along"] = self.along
            return super().answer(message)

    wrong = {(): "the request has no means and standard deviations", (0.5, 1.0): "of other features than the schema's"}
    for along, why in wrong.items():
        grid = Forgetful(tables, config)
        grid.along = list(along)
        with pytest.raises(ComityError, match=why):
            over(grid, config, own)


GOOD = Moments.of(np.array([[1.0, 0.0], [3.0, 1.0]])).stacked


@pytest.mark.parametrize(
    ("row", "value", "why"),
    [
        (0, 1.5, "counts that are no counts"),
        (0, -1.0, "counts that are no counts"),
        (0, float("nan"), "counts that are no counts"),
        (3, 3.0, "counts that are no counts"),
        (1, 1e9, "contradict their squares"),
        (1, float("nan"), "contradict their squares"),
        (2, -1.0, "squares out of range"),
        (2, 1e300, "squares out of range"),
    ],
)
def test_sums_that_cannot_be_are_not_added(row: int, value: float, why: str) -> None:
    def objection(sums: Any, features: int = 2) -> str | None:
        return _objection(Features(features=features), Sums(bits=torch.from_numpy(sums).view(torch.int64)))

    wrong = GOOD.copy()
    wrong[row, 0] = value
    assert objection(GOOD) is None
    assert why in str(objection(wrong))
    assert "of another shape" in str(objection(GOOD, features=3))


# The app that is written.


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's own
def test_the_written_app_is_the_run(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, schema = tmp_path / "hearts", ["--schema", str(tables / "common.yaml")]
    options = ["--rounds", "2", "--reference", "none", "--model", "logistic"]
    assert command("flower", ["new", str(folder), *schema, *options]) == 0
    assert (folder / "hearts" / "schema.yaml").read_text() == (tables / "common.yaml").read_text()
    assert b"hearts/schema.yaml" in build_fab_from_disk(folder)
    about = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    settings = flatten_dict(about["config"])
    chosen = {name: settings[name] for name in ("data.name", "clients", "metric", "out")}
    assert chosen == {"data.name": "sites", "clients": 4, "metric": "accuracy", "out": "runs/hearts"}
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    server, client = (importlib.import_module(name.split(":")[0]).app for name in about["components"].values())
    nodes = [{"data": str(tables / name / "patients.csv")} for name in NAMES]
    grid = InProcessGrid(client, 4, run_config=settings, node_configs=nodes)
    server(grid, Context(7, 1, {}, RecordDict(), settings))
    result = RunFolder(tmp_path / "runs" / "hearts" / "flower-7").result()
    assert result.clients["L-acc"] == rehearse(tables, configured(reference="none")).columns["L-acc"]
    assert all(load_model(tmp_path / "comity" / "hearts" / f"client-{cid}" / "model").classes_.size for cid in range(4))

    pooled = tmp_path / "schema.yaml"  # as a run on a pooled table leaves it
    pooled.write_text((tables / "common.yaml").read_text().replace("min_count: 10", "min_count: 0"))
    assert command("flower", ["new", str(tmp_path / "third"), "--schema", str(pooled), *options]) == 0
    assert "min_count: 10\n" in (tmp_path / "third" / "third" / "schema.yaml").read_text()
    assert "fewer than 10 known values" in (tmp_path / "third" / "README.md").read_text()
    with pytest.raises(ComityError, match="--schema is for `comity flower new` without --data"):
        command("flower", ["new", str(tmp_path / "other"), *schema, "--data", "digits"])
    with pytest.raises(ComityError, match="partition must be left out, got iid"):
        command("flower", ["new", str(tmp_path / "other"), *schema, "--partition", "iid"])
    with pytest.raises(ComityError, match="clients is 3, but the federation that was given has 4"):
        command("flower", ["new", str(tmp_path / "other"), *schema, "--clients", "3"])
    noise = ["--masked", "--min-clients", "3", "--dp-noise", "1", "--rule", "Mean", "--rule.by", "uniform"]
    with pytest.raises(ComityError, match="the sums for means and spreads of tables would leave"):
        command("flower", ["new", str(tmp_path / "other"), *schema, *noise])
    assert not (tmp_path / "other").exists()
