"""Files of run folders: written and read back, and rejected in one line where they cannot be true."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from comity import ComityError
from comity.compare import LoadedStudy
from comity.metrics import EVIDENCE, OWN, Metric
from comity.results import (
    CELLS,
    Conflict,
    LoadedRun,
    MetricInfo,
    RoundRecord,
    RuleNote,
    RunFolder,
    Summary,
    Weights,
)
from run_folders import make

SUMMARY = {"mean": 0.5, "std": 0.0, "samples": 0.5, "worst10": 0.5}


def with_(file: str, **changes: Any) -> Any:
    """A file of JSON with other values at these places: ``last__round`` is ``last.round``."""

    def change(path: Path) -> None:
        content = json.loads((path / file).read_text())
        for place, value in changes.items():
            *outer, name = place.split("__")
            entry = content
            for key in outer:
                entry = entry[key]
            entry[name] = value
        (path / file).write_text(json.dumps(content))

    return change


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("rounds.jsonl", "{nonsense\n", r"line 1 is not JSON"),
        ("rounds.jsonl", "[1]\n", r"rounds.jsonl, line 1: Expected `object`, got `array`"),
        ("rounds.jsonl", '{"round": 1, "metrics": {"L-acc": 3}}\n', r"Expected `object`, got `int` - at `\$.metrics"),
        ("rounds.jsonl", '{"round": 1, "metrics": {"x": {}}}\n', "missing required field `mean`"),
        ("rounds.jsonl", '{"round": 1, "train_loss": 1e400}\n', "Number out of range"),
        ("rounds.jsonl", '{"round": true}\n', r"Expected `int`, got `bool` - at `\$.round`"),
        ("rounds.jsonl", '{"round": 99}\n', "round 99 comes after round 0"),
        ("rounds.jsonl", '{"round": 1, "cohort": [7]}\n', "round 1 refers to unknown client ids"),
        ("rounds.jsonl", '{"round": 1, "seconds": {"train": -1}}\n', "Expected `float` >= 0"),
        ("rounds.jsonl", '{"round": 1, "conflict": {"rate": 1.5}}\n', "Expected `float` <= 1"),
        ("result.json", "{", "result.json is not JSON"),
        ("result.json", "{}", "result.json: Object missing required field `last`"),
        ("result.json", with_("result.json", title="x"), "Object contains unknown field `title`"),
        ("result.json", with_("result.json", last__round=9), "the last round is 9 of 5"),
        ("result.json", with_("result.json", clients__x=[1, 2, 3]), "has a column 'x', which is not known"),
        ("result.json", with_("result.json", clients__client=[0, 1, 1]), "has a client twice"),
        ("result.json", with_("result.json", clients__AUC=[0, 1, 2]), "AUC has a value outside its range"),
        ("result.json", with_("result.json", transfer__metric="luck"), "Invalid enum value 'luck'"),
        ("result.json", with_("result.json", transfer__clients={"0": 3}), "Expected `object`, got `int`"),
        ("result.json", with_("result.json", transfer__margin=-1), "Expected `float` >= 0"),
        ("result.json", with_("result.json", last__metrics__x={}), "missing required field `mean`"),
        ("result.json", with_("result.json", last__metrics__rare=SUMMARY), "a metric 'rare', which is not known"),
        ("config.yaml", "a: [", "config.yaml is not YAML"),
        ("config.yaml", "clients: 3", "is not the configuration of a run"),
        ("partition.json", '{"counts": 3}', "partition.json: Expected `array`, got `int`"),
        ("partition.json", with_("partition.json", counts=[[-1] * 10] * 3), "Expected `int` >= 0"),
        ("run.json", '{"schema": 1}', "was written by another version of comity; run it again"),
        ("run.json", None, "was written by an earlier comity; run it again"),
        ("run.json", with_("run.json", metrics=[{"key": "a b", "label": "", "meaning": ""}]), "matching regex"),
        ("run.json", with_("run.json", metrics=[{"key": "a\n", "label": "", "meaning": ""}]), "matching regex"),
        ("run.json", with_("run.json", metrics=[{"key": "a", "label": "\x1b[31m", "meaning": ""}]), "matching regex"),
        (
            "run.json",
            with_("run.json", metrics=[{"key": OWN.key, "label": "", "meaning": ""}]),
            "name of another column",
        ),
    ],
)
def test_what_cannot_be_true_is_rejected(tmp_path: Path, file: str, text: Any, told: str) -> None:
    path = make(tmp_path / "a", [0.6] * 3, alone=[0.5] * 3)
    if text is None:
        (path / file).unlink()
    elif callable(text):
        text(path)
    else:
        (path / file).write_text(text)
    with pytest.raises(ComityError, match=told) as caught:
        LoadedRun(path).check(thorough=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["3", '[{"folder": "x"}]', "{", '[{"folder": "../x", "title": ""}]', "[" * 100_000])
def test_a_plan_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    make(tmp_path / "a", [0.6] * 3)
    (tmp_path / CELLS).write_text(text)
    with pytest.raises(ComityError, match=r"cells\.json"):
        LoadedStudy(tmp_path)


def test_files_that_are_too_large_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a", [0.6] * 3)
    monkeypatch.setattr("comity.results.folder.LARGEST_OTHER", 100)
    with pytest.raises(ComityError, match=r"result\.json has \d+ bytes; at most 100 are read"):
        _ = LoadedRun(path).result
    monkeypatch.setattr("comity.results.folder.LONGEST_LINE", 100)
    with pytest.raises(ComityError, match=r"rounds\.jsonl has a line of more than 100 bytes"):
        _ = LoadedRun(path).records


def test_a_start_that_was_killed_is_no_obstacle(tmp_path: Path) -> None:
    run = RunFolder(make(tmp_path / "whole", [0.6] * 3))
    for name in ("run.json", ".config.yaml.123.part"):
        (tmp_path / "killed").mkdir(exist_ok=True)
        (tmp_path / "killed" / name).write_text("{}")
    again = RunFolder(tmp_path / "killed")
    again.open(run.info(), run.options(), resume=True, overwrite=False)
    assert again.started
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    with pytest.raises(ComityError, match="is not empty and holds no run"):
        RunFolder(tmp_path / "other").open(run.info(), run.options(), resume=False, overwrite=True)


def test_records_are_read_as_they_were_written(tmp_path: Path) -> None:
    record = RoundRecord(
        round=3,
        failed={4: "no answer"},
        metrics={OWN.key: Summary(mean=0.5, std=math.nan, samples=0.4, worst10=1e-7)},
        conflict=Conflict(rate=0.5, layers={"a": math.nan}),
        rule=RuleNote(certificate="é", residual=1e22),
        method={"step": [1, {"ratio": 0.5}]},
    )
    weights = Weights(round=3, group="", ids=[0, "1@2"], coefficients=[[math.inf, 1.0]])
    folder = RunFolder(tmp_path)
    folder.add_round(record, [weights])
    line = (tmp_path / "rounds.jsonl").read_text()
    assert line.startswith('{"round": 3, "cohort": [], "lost": [], "failed": {"4": "no answer"}, "warnings": [], ')
    assert '"metrics": {"L-acc": {"mean": 0.5, "std": null, "samples": 0.4, "worst10": 1e-07}}' in line
    assert '"rule": {"certificate": "\\u00e9", "residual": 1e+22' in line
    (again,) = folder.rounds()
    assert math.isnan(again.train_loss)
    assert math.isnan(again.metrics[OWN.key].std)
    assert math.isnan(again.conflict.layers["a"])  # type: ignore[union-attr]
    assert (again.failed, again.method, again.rule) == (record.failed, record.method, record.rule)
    (seen,) = folder.weights()
    assert seen.ids == [0, "1@2"]
    assert math.isnan(seen.coefficients[0][0])


def test_metrics_of_an_extension_are_columns_after_the_others(tmp_path: Path) -> None:
    shown = {"label": "rare classes", "meaning": "Recall of rare classes", "unit": "%", "low": 0, "high": 1}
    rare = MetricInfo.of(Metric(key="rare", compute=lambda _: None, **shown))  # type: ignore[arg-type]
    run = LoadedRun(make(tmp_path, [0.6] * 3, metrics_too={"rare": 0.25}, info={"metrics": [rare]}))
    run.check(thorough=True)
    assert (run.info.metrics, run.metrics["rare"].label) == ([rare], "rare classes")
    with (tmp_path / "clients.csv").open() as stream:
        header, first, *_ = csv.reader(stream)
    assert header[-3:] == [EVIDENCE[-1].key, "rare", "name"]
    assert dict(zip(header, first, strict=True))["rare"] == "0.25"
