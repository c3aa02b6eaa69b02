"""The papers' tables: published numbers belong to cells of examples; a dry run says what differs and how long it is."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from comity.__main__ import main
from comity.config import Config, read_yaml
from comity.metrics import OWN
from comity.results import flatten
from comity.results.schema import Seconds
from comity.studies import Show, _papers, _runs, dry_run, examples, overview, published_table, study
from comity.studies._cost import NOMINAL, _flops, seconds
from comity.studies._grid import SCALES, Names, at_scale, expand, has_own_rule
from comity.studies._papers import (
    FOLDER,
    NOT_IN_PAPER,
    Published,
    Row,
    differences,
    items,
    missing,
    published,
    published_for,
    searched,
    times_of,
)

FILES = sorted(path.stem for path in FOLDER.glob("*.csv"))
SMALL: dict[str, Any] = {"data": "digits", "clients": 3, "model": "mlp", "rounds": 2, "eval_every": 1, "jobs": 1}
NOT_HERE = {("fedora-balanced", "cifar10", name) for name in ("FedProx", "pFedHN", "IFCA", "FeSEM", "FedU")}
"""Baselines of FEDORA's CIFAR-10 columns that the example leaves out."""


def paper_cells(example: str) -> list[Config]:
    return cells_at(example, "paper")


def cells_at(example: str, scale: str) -> list[Config]:
    return expand(at_scale(read_yaml(examples()[example]), scale) | {"seeds": 1})


def said(*arguments: Any, **options: Any) -> list[str]:
    lines: list[str] = []
    show = Show()
    show.say = lines.append  # type: ignore[method-assign]
    dry_run(*arguments, show=show, **options)
    return lines


@pytest.mark.parametrize("name", FILES)
def test_every_published_number_belongs_to_a_cell_of_an_example(name: str) -> None:
    cells = [cell for item in items() if name in item.published for cell in paper_cells(item.example)]
    options = [flatten(cell.plain(), own_rule=has_own_rule(cell)) for cell in cells]
    options += [flat | {"method": "Local"} for flat in options]
    for row in published(name):
        assert row.source.startswith(("ConFREE (", "FedCALM (", "FEDORA (", "FedPG ("))
        assert row.results
        assert all(0 < value <= 100 or key == "relative" for key, value in row.results.items() if value)
        fits = any(row.fits(flat) for flat in options)
        assert fits != ((name, row.options.get("data"), row.options["method"]) in NOT_HERE), row


@pytest.mark.parametrize(
    ("name", "options", "results"),
    [
        (
            "confree-table2",
            {"data": "flowers102", "clients": "60", "participation": "0.3", "method": "APFL", "rule": "ConFREE"},
            {"accuracy": 49.30},
        ),
        ("confree-table3", {"participation": "0.6", "method": "FedALA", "rule.c": "0.8"}, {"accuracy": 60.88}),
        ("confree-table1", {"data": "tiny-imagenet", "method": "Per-FedAvg", "rule": "Mean"}, {"accuracy": 25.62}),
        ("fedcalm-table9", {"method.eps": "0.1", "method.C": "10"}, {"accuracy": 62.67}),
        ("fedcalm-table6", {"data": "flowers102", "model": "resnet34", "method.stages": "1"}, {"accuracy": 69.10}),
        (
            "fedora-balanced",
            {"data": "mnist", "method": "FEDORA"},
            {"accuracy": 82.51, "relative": 8.06, "gaining": 100},
        ),
        (
            "fedpg-table2",
            {"participation": "1.0", "method": "FedPG", "method.gamma": "0.3"},
            {"accuracy": 80.8, "S-acc": 71.7, "G-acc": 71.4, "global": 72.4},
        ),
    ],
)
def test_published_numbers(name: str, options: dict[str, str], results: dict[str, float]) -> None:
    (row,) = [row for row in published(name) if options.items() <= row.options.items()]
    assert row.results == results


def test_every_item_has_an_example_and_every_paper_example_an_item() -> None:
    named = {item.example for item in items() if item.example}
    assert named <= examples().keys()
    assert {name for name in examples() if name.startswith(("confree", "fedcalm", "fedora", "fedpg"))} == named
    assert sorted({name for item in items() for name in item.published}) == FILES
    assert len({item.item for item in items()}) == len(items())


def test_the_list_has_a_line_for_each_item_and_needs_no_torch(tmp_path: Path) -> None:
    rows = overview(tmp_path)
    assert [row.item for row in rows] == [item.item for item in items()]
    table = next(row for row in rows if row.item == "FedPG Table 3")
    assert (table.example, table.needs, table.missing) == ("fedpg-table3", ("fashion-mnist",), ("fashion-mnist",))
    code = (
        "import sys; from comity.__main__ import main; main(['reproduce', '--list']); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(item.example in done.stdout for item in items())
    assert missing(["digits", "cifar100"], tmp_path).keys() == {"cifar100"}


@pytest.mark.parametrize("columns", [80, 160])
def test_the_list_has_one_line_per_item_at_any_width(
    columns: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=columns)
    monkeypatch.setattr("comity.commands._terminal.wide_console", lambda: console)
    assert main(["reproduce", "--list", "--data-dir", str(tmp_path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert max(map(len, [head, *lines])) <= columns
    for row, line in zip(overview(tmp_path), lines[: len(items())], strict=True):
        assert line.startswith(row.item)
        for text in (row.example, row.desk, row.paper, row.marks):
            assert text in line
        assert (f"0 of {len(row.needs)}" in line) == (columns == 80 and bool(row.needs))
    assert "needs; missing: flowers102, cifar100, " in " ".join(line.strip() for line in lines)


def test_times_and_marks_of_the_list() -> None:
    assert times_of({}) == ("–", "–")
    assert times_of({"minutes": 8, "hours": 19}) == ("8 min", "19 h")
    assert times_of({"hours": 240}) == ("–", "10 d")
    assert times_of({"hours": 80_824}) == ("–", "9 years")
    claims = ("shown", "shown in part", "contradicted", "no effect larger than 1.8", "not tested")
    assert Row("a", "b", (), (), "–", "–", claims, "").marks == "✓~✗○·"


def test_published_numbers_stand_beside_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        Published("Table 9", {"data": "digits", "method": "FedRep", "rule": "Mean"}, {"accuracy": 12.34}),
        Published("Table 9", {"data": "mnist", "method": "FedAvg"}, {"accuracy": 56.78}),
    )
    monkeypatch.setattr(_papers, "published", lambda _: rows)
    done = study(method=["FedAvg", "FedRep"], out=tmp_path / "x", control="none", **SMALL)
    text = published_table(done, "confree-table3")
    cell = next(cell for cell in done.cells if cell.method == "FedRep")
    (own,) = [100 * run.metric(OWN.key) for run in cell.finished]
    peak = max(100 * record.metrics[OWN.key].mean for record in cell.finished[0].records if record.metrics)
    assert f"| FedRep + Mean | 12.34 | {own:.2f} | {peak:.2f} |" in text
    assert "FedAvg" not in text
    assert "Paper: Table 9." in text
    assert "optimistic" in text
    monkeypatch.setattr(_papers, "published", lambda _: rows[1:])
    assert published_table(done, "confree-table3") == f"{NOT_IN_PAPER}\n"
    assert published_table(done, "fedcalm-figure6") == ""  # a figure without numbers


@pytest.mark.parametrize("name", sorted({item.example for item in items() if item.published}))
def test_no_cell_below_the_papers_scale_has_its_numbers_beside_it(name: str) -> None:
    entries = read_yaml(examples()[name])
    for scale in [scale for scale in SCALES if scale in entries and scale != "paper"]:
        cells = cells_at(name, scale)
        flat = [flatten(cell.plain(), own_rule=has_own_rule(cell)) for cell in cells]
        fits = any(row.fits(options) for row in published_for(name) for options in flat)
        assert fits == (
            name in {"confree-decisive", "fedcalm-decisive", "fedora-four"}
        )  # the papers' settings, fewer rounds


def test_a_published_number_belongs_to_one_partition() -> None:
    shifted = cells_at("fedora-shifts", "desk")
    assert {str(cell.data) for cell in shifted} == {"fashion-mnist"}
    rows = [row for row in published("fedora-balanced") if row.options["data"] == "fashion-mnist"]
    for cell in shifted:
        options = flatten(cell.plain(), own_rule=has_own_rule(cell))
        assert not any(row.fits(options) for row in rows)
        if cell.method.name == "FEDORA":
            turned = flatten(cell.with_(partition="rotated").plain(), own_rule=has_own_rule(cell))
            assert [row.results["accuracy"] for row in rows if row.fits(turned)] == [74.33]


def test_differences_to_the_paper() -> None:
    paper = expand({"data": "cifar10", "method": ["FedAvg", "FedRep"], "rounds": 500, "sweep": {"clients": [20, 60]}})
    ours = expand({"data": "digits", "method": "FedRep", "rounds": 500, "clients": 60, "rule": "ConFREE"})
    assert differences(paper, paper) == [[]] * 4
    (texts,) = differences(ours, paper)
    assert "data digits (paper: cifar10)" in texts
    assert "rule ConFREE (paper: Mean)" in texts
    assert not any(text.startswith(("clients", "rounds", "method")) for text in texts)
    assert searched({"lr": [0.1, 0.2]}, {}, paper) == ["lr chosen by validation among 0.1, 0.2 (paper: 0.05)"]
    assert searched({"lr": [0.1]}, {"lr": [0.1]}, paper) == []


def test_the_cost_model_counts_operations_and_rounds() -> None:
    assert _flops("mlp", '{"widths": [200]}', (1, 28, 28), 10) == 2 * (784 * 200 + 200 * 10)
    config = Config.of({"data": "cifar10", "model": "cnn", "clients": 20, "rounds": 100, "eval_every": 1000})
    once = seconds(config)
    assert seconds(config.with_(rounds=200)) == pytest.approx(2 * once, rel=0.05)
    assert seconds(config.with_(participation=0.5)) == pytest.approx(once / 2, rel=0.05)
    assert seconds(config, (600, (3, 32, 32), 10)) == pytest.approx(once / 100, rel=0.05)
    assert seconds(config.with_(method="Ditto")) > 1.5 * once


@pytest.mark.parametrize("name", [name for name in examples() if name != "demo"])
def test_the_cost_model_knows_every_example(name: str) -> None:
    entries = read_yaml(examples()[name])
    for scale in [scale for scale in SCALES if scale in entries] or [None]:
        for cell in expand(at_scale(entries, scale) | {"seeds": 1}):
            assert cell.data.name in NOMINAL
            if cell.model is not None:
                assert seconds(cell) > 0


def test_a_dry_run_times_the_cheapest_cell_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[int] = []

    def time_one_round(_: Any, config: Config) -> tuple[float, float, float]:
        timed.append(config.rounds)
        return (2.0, 1.0, 1.0)

    monkeypatch.setattr("comity.studies._runs.Runs.time_one_round", time_one_round)
    options = SMALL | {"sweep": {"rounds": [2, 10]}, "control": "none", "eval_every": 100}
    lines = said(options, out=tmp_path / "x")
    assert timed == [2]  # two rounds and an evaluation take 5 s, and ten take as much more as the model says
    assert lines[0].startswith("4 runs to do")
    assert lines[1].startswith("First estimate, from stored costs: ")
    assert lines[2].startswith("  measured: a round of the cheapest run")
    assert lines[-1].startswith("Estimate for this machine: ")


@pytest.mark.parametrize(
    ("wall", "cpu", "expected"),
    [
        ((40, 40, 40), (10, 20, 40), (5.0, 2.5, 2.5)),  # in the first round three quarters of the time were others'
        ((40, 20, 40), (20, 20, 20), (10.0, 5.0, 5.0)),
        ((40, 40, 40), (160, 160, 160), (20.0, 10.0, 10.0)),  # four threads on four cores
    ],
)
def test_time_in_which_other_programs_have_the_cores_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
    wall: tuple[float, ...],
    cpu: tuple[float, ...],
    expected: tuple[float, float, float],
) -> None:
    now = {"wall": 0.0, "cpu": 0.0}

    def slowly(*, stop: Callable[[], bool], plan: Any) -> Any:
        assert plan.config.device == "cpu"
        assert not stop()
        records = [SimpleNamespace(seconds=Seconds(train=18.0, aggregate=2.0, evaluate=10.0)) for _ in wall]
        for each in zip(wall, cpu, strict=True):
            for clock, passed in zip(now, each, strict=True):
                now[clock] += passed
            stop()
        return SimpleNamespace(records=records, server=SimpleNamespace(record=records[-1]))

    monkeypatch.setattr(_runs, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(_runs, "process_time", lambda: now["cpu"])
    monkeypatch.setattr(_runs, "run", slowly)
    config = Config.of({"data": "digits", "general_every": "never"})
    assert _runs.Runs().time_one_round(config) == pytest.approx(expected)


@pytest.mark.parametrize("name", sorted({item.example for item in items() if item.example}))
def test_a_dry_run_announces_no_empty_list_of_differences(name: str) -> None:
    for scale in ("desk", "paper"):
        entries, cells, lines = at_scale(read_yaml(examples()[name]), scale), cells_at(name, scale), list[str]()
        _papers.report_differences(name, entries, cells, Names(cells), lines.append)
        assert lines[0].startswith("For ")
        assert lines[0].endswith("What differs from the paper:") == (len(lines) > 1 and lines[1].startswith("  "))
        assert (lines[-1] == NOT_IN_PAPER) == (
            scale == "desk" and bool(published_for(name)) and "decisive" not in name and name != "fedora-four"
        )


def test_a_dry_run_of_an_example_says_what_differs_and_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.studies._runs.Runs.time_one_round", lambda *_: (2.0, 1.0, 1.0))
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "confree-table3", "--dry-run"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "For ConFREE Table 3. What differs from the paper: all cells: data digits (paper: flowers102)" in out
    assert "lr chosen by validation among 0.1, 0.2, 0.4, ... (paper: 0.005)" in out
    assert "at every scale: accuracy: the paper reports the largest test accuracy" in out
    assert list(tmp_path.iterdir()) == []
