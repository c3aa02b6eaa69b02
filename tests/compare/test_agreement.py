"""The terminal's table, Markdown, CSV, the page and the run summary say the same of any study, and it is right."""

import csv
import io
import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import binomtest, false_discovery_control, t

from comity.compare import COLUMNS, Balance, LoadedStudy, Table
from comity.report._page import page
from comity.results import PartitionTable, RunFolder
from run_folders import make

TESTS = 10  # samples of each client; accuracies are tenths
SIZE, UNIFORM = "Mean (size)", "Mean (uniform)"
RULES: dict[str, dict[str, Any]] = {
    SIZE: {"rule": {"name": "Mean", "by": "size"}},
    UNIFORM: {"rule": {"name": "Mean", "by": "uniform"}},
    "ConFREE": {"rule": {"name": "ConFREE", "c": 0.5}},
    "other ConFREE": {"rule": {"name": "ConFREE", "c": 0.1}},
}
METHODS = ("FedRep", "Ditto", "FedCALM")
OWN_RULE = "FedCALM"


@dataclass(frozen=True)
class Spec:
    """One run: where it belongs, and how its clients did."""

    alpha: float
    method: str
    rule: str
    seed: int
    joined: tuple[int, ...]
    """Right answers of each client."""
    finished: bool
    noted: bool
    """Whether it noted how its clients do alone."""
    mixed: tuple[int, ...] | None
    """Of each client, samples that Local alone got right beside as many that the run alone did; not counted: None."""

    @property
    def accuracy(self) -> float:
        return 100 * fmean(hits / TESTS for hits in self.joined)


@dataclass(frozen=True)
class Study:
    specs: list[Spec]
    alone: dict[tuple[float, int], tuple[int, ...]]
    """Right answers of each client alone, by setting and seed."""
    local_runs: set[tuple[float, int]]
    """Where Local has a run of its own."""
    same_partition: bool

    def gains(self, spec: Spec) -> list[float] | None:
        key = (spec.alpha, spec.seed)
        if not spec.noted and key not in self.local_runs:
            return None
        return [(a - b) / TESTS for a, b in zip(spec.joined, self.alone[key], strict=True)]

    def only(self, spec: Spec) -> tuple[list[int], list[int]] | None:
        """How many tests of each client only Local, and only the run, got right."""
        if spec.mixed is None or not spec.noted:
            return None
        triples = list(zip(self.alone[spec.alpha, spec.seed], spec.joined, spec.mixed, strict=True))
        return [max(0, a - b) + more for a, b, more in triples], [max(0, b - a) + more for a, b, more in triples]


@st.composite
def studies(draw: st.DrawFn) -> Study:
    clients, seeds = draw(st.integers(1, 6)), range(draw(st.integers(1, 3)))
    alphas = draw(st.sampled_from([(0.1,), (0.1, 1.0)]))
    hits = st.tuples(*[st.integers(0, TESTS)] * clients)
    mixed = st.tuples(*[st.integers(0, 2)] * clients)
    pairs = [(method, rule) for method in METHODS[:2] for rule in RULES] + [(OWN_RULE, SIZE)]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=5, unique=True))
    mostly = st.sampled_from([True, True, True, True, False])
    specs = [
        Spec(alpha, method, rule, seed, draw(hits), draw(mostly), draw(mostly), draw(mixed) if draw(mostly) else None)
        for alpha in alphas
        for method, rule in chosen
        for seed in seeds
        if draw(mostly)
    ]
    alone = {(alpha, seed): draw(hits) for alpha in alphas for seed in seeds}
    local_runs = set(draw(st.lists(st.sampled_from(sorted(alone)), unique=True)))
    if not specs and not local_runs:
        local_runs = {next(iter(alone))}
    return Study(specs, alone, local_runs, draw(st.booleans()))


def write(study: Study, folder: Path) -> None:
    for i, spec in enumerate(study.specs):
        alone = [hits / TESTS for hits in study.alone[spec.alpha, spec.seed]]
        path = make(
            folder / f"{i:03d}",
            [hits / TESTS for hits in spec.joined],
            alone=alone if spec.noted else None,
            method=spec.method,
            seed=spec.seed,
            rounds=2,
            done=None if spec.finished else 1,
            tests=TESTS,
            options={"partition.alpha": spec.alpha} | RULES[spec.rule],
            own_rule=spec.method == OWN_RULE,
            thorough=False,
            only=study.only(spec),
        )
        add_partition(study, path, spec.seed, len(spec.joined))
    for alpha, seed in study.local_runs:
        accuracy = [hits / TESTS for hits in study.alone[alpha, seed]]
        options = {"partition.alpha": alpha}
        path = folder / f"local-{alpha}-{seed}"
        make(path, accuracy, method="Local", seed=seed, rounds=2, tests=TESTS, options=options, thorough=False)
        add_partition(study, path, seed, len(accuracy))


def add_partition(study: Study, path: Path, seed: int, clients: int) -> None:
    counts = [[1 + (0 if study.same_partition else seed), client] for client in range(clients)]
    RunFolder(path).add_partition(PartitionTable(name="x", partition="y", classes=2, counts=counts))


# What the numbers must be, worked out from the specification alone.


@dataclass
class Expected:
    accuracy: dict[int, float] = field(default_factory=dict)
    difference: dict[int, float] = field(default_factory=dict)
    gains: dict[int, list[float]] = field(default_factory=dict)
    p_values: dict[int, list[float]] = field(default_factory=dict)

    def beyond_chance(self, same_partition: bool) -> int | None:
        """Of the harmed; None where a run has not counted."""
        if not self.gains or self.gains.keys() != self.p_values.keys():
            return None
        gains = self.by_client(same_partition)
        if same_partition or len(self.gains) == 1:
            pairs = zip(*self.p_values.values(), strict=True)
            p_values = [min(1.0, 2 * fmean(each)) if len(each) > 1 else each[0] for each in pairs]
        else:
            p_values = [p for each in self.p_values.values() for p in each]
        real = false_discovery_control(p_values) <= 0.05
        return sum(gain < -1e-12 and bool(beyond) for gain, beyond in zip(gains, real, strict=True))

    def by_client(self, same_partition: bool) -> list[float]:
        """Each client's gain: its mean where clients are the same in all seeds, else those of all seeds."""
        if same_partition or len(self.gains) == 1:
            return [fmean(gains) for gains in zip(*self.gains.values(), strict=True)]
        return [gain for gains in self.gains.values() for gain in gains]


def expected(study: Study) -> dict[tuple[float, str, str], Expected]:
    by_cell: dict[tuple[float, str, str], Expected] = {}
    for spec in study.specs:
        if spec.finished:
            cell = by_cell.setdefault((spec.alpha, spec.method, spec.rule), Expected())
            cell.accuracy[spec.seed] = spec.accuracy
            gains = study.gains(spec)
            if gains is not None:
                cell.gains[spec.seed] = gains
            only = study.only(spec)
            if only is not None:
                pairs = zip(*only, strict=True)
                cell.p_values[spec.seed] = [
                    float(binomtest(b, a + b, alternative="less").pvalue) if a + b else 1.0 for a, b in pairs
                ]
    begun = {(spec.alpha, spec.method, spec.rule) for spec in study.specs}
    for (alpha, method, rule), cell in by_cell.items():
        mean = next((mean for mean in (SIZE, UNIFORM) if (alpha, method, mean) in begun), None)
        if method != OWN_RULE and mean is not None and mean != rule:
            base = by_cell.get((alpha, method, mean), Expected()).accuracy
            cell.difference = {seed: cell.accuracy[seed] - base[seed] for seed in cell.accuracy if seed in base}
    return by_cell


def rows_of(html: str) -> list[list[dict[str, str]]]:
    """The page's table: for each cell its value, what it shows and its small print, and what hovering tells."""
    found = []
    for row in re.findall(r"<tr [^>]*data-setting=.*?</tr>", html, flags=re.DOTALL):
        cells = re.findall(r"<td([^>]*)>(.*?)</td>", row, flags=re.DOTALL)
        named = [dict(re.findall(r'([\w-]+)="([^"]*)"', attributes)) for attributes, _ in cells]
        shown = [re.sub(r"<i .*?</i>", "", inner).replace("<small>", " ").strip() for _, inner in cells]
        told = [{"shown": re.sub("<[^>]*>", "", each)} for each in shown]
        found.append([{key: unescape(text) for key, text in (a | b).items()} for a, b in zip(named, told, strict=True)])
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(study=studies())
def test_every_form_says_the_same_and_it_is_right(study: Study) -> None:
    with tempfile.TemporaryDirectory() as name, patch("os.fsync"):  # hundreds of folders that nobody needs to keep
        folder = Path(name)
        write(study, folder)
        loaded = LoadedStudy(folder)
        table, page_rows = loaded.table(), rows_of(page(loaded))
        rows = list(csv.DictReader(io.StringIO(table.csv())))
        assert bool(table.blocks) == (bool(study.local_runs) or any(spec.finished for spec in study.specs))
        if not table.blocks:
            assert page_rows == []
            return
        check_against_the_specification(study, table, rows)
        check_the_page(loaded, table, page_rows, rows)
        check_text_forms(table)
        for spec, run in zip(study.specs, sorted(folder.glob("[0-9]*")), strict=True):
            if spec.finished and spec.noted:
                check_the_summary(study, spec, run)
                break


def check_against_the_specification(study: Study, table: Table, rows: list[dict[str, str]]) -> None:
    by_cell = expected(study)
    seen = set()
    for line, row in zip(table.lines, rows, strict=True):
        if line.local:
            assert {row.get(name, "") for name in ("difference", "gain", "harmed")} == {""}
            continue
        assert line.cell is not None
        spec = study.specs[int(next(iter(line.cell.runs.values())).path.name)]
        key = (spec.alpha, spec.method, spec.rule)
        seen.add(key)
        right = by_cell[key]
        assert row["seeds"] == " ".join(map(str, sorted(right.accuracy)))
        assert float(row["accuracy"]) == pytest.approx(fmean(right.accuracy.values()))
        if len(right.accuracy) > 1:
            assert float(row["accuracy std"]) == pytest.approx(stdev(right.accuracy.values()), abs=1e-9)
        check_difference(row, "difference", list(right.difference.values()))
        check_difference(row, "gain", [100 * fmean(gains) for gains in right.gains.values()])
        gains = right.by_client(study.same_partition)
        counts = sum(gain > 1e-12 for gain in gains), sum(gain < -1e-12 for gain in gains), len(gains)
        shown = [row.get(name, "") for name in ("gaining", "harmed", "harmed of")]
        assert shown == (list(map(str, counts)) if gains else ["", "", ""])
        beyond = right.beyond_chance(study.same_partition)
        assert row.get("harmed beyond chance", "") == ("" if beyond is None else str(beyond))
    assert seen == set(by_cell)


def check_difference(row: Mapping[str, str], name: str, differences: list[float]) -> None:
    if not differences:
        assert row.get(name, "") == ""
        return
    mean = fmean(differences)
    assert row.get(name), f"no {name}"
    assert float(row[name]) == pytest.approx(mean, abs=1e-9)
    if len(differences) == 1:
        assert row[f"{name} verdict"] == "one seed"
        return
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    assert float(row[f"{name} low"]) == pytest.approx(mean - half, abs=1e-6)
    assert float(row[f"{name} high"]) == pytest.approx(mean + half, abs=1e-6)
    if abs(abs(mean) - half) > 1e-6:  # at the very edge of the noise floats decide
        assert row[f"{name} verdict"] == ("noise" if abs(mean) < half else "gain" if mean > 0 else "loss")


def check_the_page(
    study: LoadedStudy, table: Table, page_rows: list[list[dict[str, str]]], rows: list[dict[str, str]]
) -> None:
    for (name, *entries), line, row in zip(page_rows, table.lines, rows, strict=True):
        assert name["data-v"] == (f"{row['method']} + {row['rule']}" if row["rule"] else row["method"])
        if len(study.settings) > 1:
            assert entries.pop(0)["shown"] in {setting.label for setting in study.settings}
        for column, entry in zip(table.on_page, entries, strict=True):
            assert entry.get("data-v", "") == row[column.name], column.name  # the same to the last bit
            assert entry["shown"] == str(line.entries[column.name])


def check_text_forms(table: Table) -> None:
    lines = [line for line in table.markdown().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    heads, bodies = [row for row in rows if row[0] == ""], [row for row in rows if row[0] != ""]
    columns = {column.heading: column.name for column in (*COLUMNS, *table.columns)}
    assert len(heads) == len(table.blocks)
    console = Console(file=io.StringIO(), width=400)
    console.print(table)
    out = console.file.getvalue()  # type: ignore[attr-defined]
    for row, line in zip(bodies, table.lines, strict=True):
        texts = [str(line.entries[columns[heading]]) for heading in heads[0][1:]]
        assert row == [line.name, *texts]
        assert any(re.sub(r"\s+", " ", drawn).strip() == " ".join([line.name, *texts]) for drawn in out.splitlines())


def check_the_summary(study: Study, spec: Spec, run: Path) -> None:
    """What a run says of itself at its end, against the table and the page of this run alone."""
    balance = Balance.of_run(RunFolder(run).result())
    gains = study.gains(spec)
    assert balance is not None
    assert gains is not None
    harmed = sum(gain < 0 for gain in gains)
    assert len(balance.harmed) == harmed
    alone = LoadedStudy(run)
    (row,) = (row for row in csv.DictReader(io.StringIO(alone.table().csv())) if row["method"] != "Local")
    assert [int(row["harmed"]), int(row["harmed of"])] == [harmed, len(gains)]
    assert balance.sentence in unescape(page(alone))
