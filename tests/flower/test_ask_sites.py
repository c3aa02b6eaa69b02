"""`comity ask` where tables stay at their sites: the answer of a rehearsal, open and masked, and what is rejected."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sites
from flwr.app import Array, Context, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from grids import HASTY
from sites import NAMES, without, write_tables

import comity
from comity import ComityError, Config
from comity.flower import OwnData, Tables, client_app, server_app
from comity.flower._server import ask_over, over
from comity.flower._wire import tensor
from comity.probe import Answer
from in_process import InProcessGrid

MOST = ("sex", "blood_pressure", "chest_pain", "blood_sugar", "ecg", "exercise_angina", "st_depression")
Change = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cleveland's classes are exchanged and Hungary measures the blood pressure in kPa; ``all.yaml`` is what all know.

    ``few.yaml`` has two columns, for short questions.
    """
    folder = tmp_path_factory.mktemp("tables")
    with sites.HEART.open() as file:
        rows = list(csv.DictReader(file))
    other = dict(zip(labels := sorted({row["disease"] for row in rows}), labels[::-1], strict=True))
    for row in rows:
        if row["hospital"] == "Cleveland":
            row["disease"] = other[row["disease"]]
        elif row["hospital"] == "Hungary" and row["blood_pressure"]:
            row["blood_pressure"] = f"{float(row['blood_pressure']) / 7.50062:.4g}"
    with (folder / "heart.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sites, "HEART", folder / "heart.csv")
        write_tables(folder)
    without(folder / "common.yaml", folder / "all.yaml", "vessels", "cholesterol", "st_slope", "thallium")
    without(folder / "all.yaml", folder / "few.yaml", *MOST)
    return folder


def configured(**options: Any) -> Config:
    return Config(**({"model": "logistic", "metric": "accuracy", "clients": 4} | options), data="sites")


class Sites(InProcessGrid):
    """Four nodes with a table each; one of them may change an array of its answers to a question, or be gone."""

    def __init__(self, tables: Path, config: Config, schema: str = "common.yaml", **node: Any) -> None:
        nodes = [{"data": str(tables / name / "patients.csv")} | node for name in NAMES]
        self.own = Tables(tables / schema)
        super().__init__(client_app(config, self.own), 4, node_configs=nodes)
        self.asked: list[str] = []
        self.received: dict[str, set[str]] = {}
        self.liar, self.verb, self.name, self.change = -1, "", "", None

    def lies(self, cid: int, verb: str, name: str = "", change: Change | None = None) -> None:
        self.liar, self.verb, self.name, self.change = cid, verb, name, change

    def answer(self, message: Message) -> Message:
        verb = message.metadata.message_type.partition(".")[2]
        self.asked.append(verb)
        mine = self.contexts[message.metadata.dst_node_id].node_config["partition-id"] == self.liar
        if mine and verb == self.verb and self.change is None:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "Node Unavailable"), reply_to=message)
        reply = super().answer(message)
        if verb and not reply.has_error():
            (arrays,) = reply.content.array_records.values()
            self.received.setdefault(verb, set()).update(arrays)
            if mine and verb == self.verb and self.change is not None:
                arrays[self.name] = Array(self.change(tensor(arrays[self.name]).numpy()))
        return reply

    def ask(self, config: Config, seeds: int = 6) -> Answer:
        return ask_over(self, config, self.own, seeds, patience=HASTY)


def rehearse(
    tables: Path, config: Config, seeds: int = 6, schema: str = "common.yaml", table: str = "pooled"
) -> Answer:
    about = {"data.schema": str(tables / schema), "metric": config.metric, "seed": config.seed}
    return comity.ask(tables / table / "patients.csv", seeds=seeds, **about)


def assert_same(there: Answer, here: Answer) -> None:
    """The same bits."""
    assert there.rows == here.rows
    assert there.mean == here.mean
    assert there.similar == here.similar
    assert there.findings == here.findings
    assert (there.title, there.evidence) == (here.title, here.evidence)


@pytest.mark.parametrize(("metric", "seeds"), [("accuracy", 4), ("auc", 1)])
def test_the_same_bits_as_in_a_rehearsal_with_one_file(
    tables: Path, metric: str, seeds: int, log: pytest.LogCaptureFixture
) -> None:
    """Four seeds test some rows twice; AUC has no value where a hospital's tests are of one class."""
    config = configured(metric=metric, seed=3)
    grid = Sites(tables, config)
    there = grid.ask(config, seeds)
    assert_same(there, rehearse(tables, config, seeds))
    named = {(finding.client, finding.kind, finding.what[0]) for finding in there.findings}
    assert ("Hungary", "unit", "blood_pressure") in named
    assert ("Cleveland", "labels") in {finding[:2] for finding in named}
    assert grid.asked.count("ask_known") == grid.asked.count("ask_gains") == 4
    assert grid.asked.count("ask_slopes") < 4 * 100, "the fits of all folds ask together"
    said = [record.getMessage() for record in log.records]
    assert sum(line.startswith("Check: ") for line in said) == len(there.findings)
    assert there.title in said
    assert any(line.startswith("Long Beach") and "similar" not in line for line in said)


def replaced(value: Any) -> Change:
    """Another last number, as float64."""

    def change(bits: np.ndarray) -> np.ndarray:
        new = bits.copy()
        new.reshape(-1)[-1] = np.array(value, dtype=np.float64).view(np.int64)
        return new

    return change


def shorter(bits: np.ndarray) -> np.ndarray:
    return bits[..., :-1]


@pytest.mark.parametrize(
    ("verb", "name", "change", "why"),
    [
        ("ask_known", "", None, "Node Unavailable"),
        ("ask_known", "bits", replaced(-1.0), "counts that are no counts"),
        ("ask_known", "columns", lambda bits: bits[::-1].copy(), "quartiles that cannot be|counts that are no counts"),
        ("ask_known", "classes", shorter, "sums of another shape"),
        ("ask_slopes", "", None, "Node Unavailable"),
        ("ask_slopes", "bits", shorter, "gradients of another shape"),
        ("ask_slopes", "bits", replaced(np.nan), "a loss or a gradient that cannot be"),
        ("ask_slopes", "bits", replaced(1e300), "a loss or a gradient that cannot be"),
        ("ask_slopes", "bits", lambda bits: bits.astype(np.int32), "gradients of another shape or type"),
    ],
)
def test_a_site_whose_answer_cannot_be_used_is_left_out_in_one_line(
    tables: Path, log: pytest.LogCaptureFixture, verb: str, name: str, change: Change | None, why: str
) -> None:
    """The answer is that of the other three hospitals."""
    config = configured()
    grid = Sites(tables, config, "few.yaml")
    grid.lies(3, verb, name, change)
    there = grid.ask(config, seeds=1)
    with (tables / "pooled" / "patients.csv").open() as file:
        header, *rows = csv.reader(file)
    (tables / "three").mkdir(exist_ok=True)
    with (tables / "three" / "patients.csv").open("w", newline="") as file:
        csv.writer(file).writerows([header, *(row for row in rows if "Switzerland" not in row)])
    assert_same(there, rehearse(tables, config, 1, "few.yaml", "three"))
    left_out = [line for line in map(str, log.messages) if line.startswith("Switzerland is left out: ")]
    assert len(left_out) == 1
    assert verb in left_out[0]
    assert re.search(why, left_out[0])


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("bits", shorter, "gains of another shape"),
        ("bits", replaced(0.5), "sums of differences that cannot be"),
        ("bits", lambda bits: np.where(np.arange(bits.shape[1]) == 1, replaced(0.5)(bits)[0, -1], bits), "not that of"),
        ("bits", lambda bits: np.where(np.arange(bits.shape[1]) == 6, 0, bits), "sums of differences that cannot be"),
        ("new", lambda new: new + 5, "unknown classes"),
        ("new", shorter, "classes of another shape"),
    ],
)
def test_gains_that_cannot_be_cost_their_sender_its_row_alone(
    tables: Path, log: pytest.LogCaptureFixture, name: str, change: Change, why: str
) -> None:
    config = configured()
    grid = Sites(tables, config, "few.yaml")
    grid.lies(3, "ask_gains", name, change)
    there, here = grid.ask(config, seeds=1), rehearse(tables, config, 1, "few.yaml")
    gains = {row.name: row.gain for row in here.rows if row.name != "Switzerland"}
    assert {row.name: row.gain for row in there.rows} == gains
    assert any("Switzerland is left out: ask_gains: " in line and why in line for line in map(str, log.messages))


def test_one_site_is_not_a_federation(tables: Path) -> None:
    config = configured()
    grid = Sites(tables, config)
    grid.contexts = dict([*grid.contexts.items()][:1])
    with pytest.raises(ComityError, match="1 sites are left; a federation needs at least 2"):
        ask_over(grid, config, grid.own, 1, patience=HASTY, at_least=1)


# Masked.


def masked(**options: Any) -> Config:
    return configured(masked=True, min_clients=3, **options)


def test_masked_the_gains_are_those_of_the_rehearsal_and_no_sums_of_a_site_are_seen(
    tables: Path, log: pytest.LogCaptureFixture
) -> None:
    """Sums are exact and rounded once, not added in the order of the sites: models agree to their last digits."""
    config = masked()
    grid = Sites(tables, config, "all.yaml", secrets="none")
    there, here = grid.ask(config, seeds=2), rehearse(tables, config, 2, "all.yaml")
    for mine, theirs in zip(there.rows, here.rows, strict=True):
        assert (mine.name, mine.state) == (theirs.name, theirs.state)
        assert mine.gain == pytest.approx(theirs.gain, abs=1e-9)
    assert here.findings
    assert not there.findings
    assert any("Columns and classes are not compared between sites" in line for line in map(str, log.messages))
    keys, words, shares = {"keys"}, {"words"}, {"shares"}
    said = {"ask_known": keys, "ask_slopes": keys, "mask": words, "add": words, "unmask": shares, "ask_gains": {"bits"}}
    assert {verb: grid.received[verb] for verb in said} == said
    assert grid.received.keys() - said.keys() == {"share", "agree"}


def test_masked_the_same_sums_are_added_up_once(tables: Path) -> None:
    """With one client more in one of two sums, the difference would be its own: neither in a question nor in a run."""
    config = masked(rounds=1, reference="none")
    grid = Sites(tables, config, "few.yaml", secrets="none")
    grid.ask(config, seeds=1)
    for again in (lambda: grid.ask(config, seeds=1), lambda: over(grid, config, grid.own, patience=HASTY)):
        with pytest.raises(ComityError, match="again: this round of this run, or of this model, was answered before"):
            again()


@pytest.mark.parametrize("stage", ["ask_slopes", "add"])
def test_masked_a_site_that_drops_out_ends_the_question(tables: Path, stage: str) -> None:
    config = masked()
    grid = Sites(tables, config, "few.yaml", secrets="none")
    grid.lies(2, stage)
    with pytest.raises(ComityError, match="a site dropped out of a masked question; ask again with another seed"):
        grid.ask(config, seeds=1)


# The app.


def test_the_app_answers_in_place_of_training(tables: Path, log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    config = configured(out=tmp_path / "run")
    grid = Sites(tables, config, "few.yaml")
    server_app(config, grid.own)(grid, Context(7, 1, {}, RecordDict(), {"flower.ask": 1}))
    assert rehearse(tables, config, 1, "few.yaml").title in log.messages
    assert "fit" not in grid.asked
    assert not (tmp_path / "run").exists()


def test_other_data_than_tables_is_not_asked(tables: Path) -> None:
    config = configured()
    for own in (None, OwnData((3,), 2, lambda _: None)):  # type: ignore[arg-type, return-value]
        with pytest.raises(ComityError, match=r"flower\.ask is for tables at their sites"):
            ask_over(Sites(tables, config), config, own, 1)
