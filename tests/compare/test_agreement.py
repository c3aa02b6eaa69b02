"""Terminal, Markdown, CSV, page, run summary, ``result.json`` and Python say the same of any study, and it is right."""

import csv
import io
import json
import math
import re
import tempfile
from html import unescape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from random_studies import (
    LOCAL,
    NOBODY,
    OWN_RULE,
    REPEATED,
    Key,
    Spec,
    Study,
    against_local,
    clients_of,
    columns_of,
    from_samples,
    from_sums,
    has_samples,
    mean,
    studies,
    write,
)
from rich.console import Console
from scipy.stats import t

from comity.compare import COLUMNS, Cell, ClientTable, LoadedStudy, Table, clients_csv
from comity.compare.evidence import Estimate, Evidence, state_of_mean
from comity.metrics import MAJORITY, MIXED
from comity.report._page import page
from comity.results import RunFolder


@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink a study takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(study=studies())
def test_every_form_says_the_same_and_it_is_right(study: Study) -> None:
    with tempfile.TemporaryDirectory() as name, patch("os.fsync"):  # hundreds of folders that nobody needs to keep
        folder = Path(name)
        write(study, folder)
        loaded = LoadedStudy(folder, thorough=True)
        assert loaded.damaged == {}
        for cell in loaded.cells:
            if not cell.local and cell.finished:
                check_clients(study, cell)
        table, html = loaded.table(), page(loaded)
        rows = list(csv.DictReader(io.StringIO(table.csv())))
        check_numbers(study, loaded, table, rows)
        check_text_forms(table)
        check_page(loaded, table, html, rows)
        for spec, run in zip(study.specs, sorted(folder.glob("[0-9]*")), strict=True):
            if spec.finished and spec.method not in (LOCAL, REPEATED):
                check_result(study, spec, run)


def spec_of(study: Study, cell: Cell) -> Spec:
    return study.specs[int(next(iter(cell.runs.values())).path.name)]


def check_clients(study: Study, cell: Cell) -> None:
    """The rows of Python and CSV against the scores, and those that people see against the rows."""
    spec = spec_of(study, cell)
    runs = study.of_cell(*spec.cell)
    known = against_local(study, runs)
    right = clients_of(study, known, against_local(study, study.of_cell(spec.alpha, REPEATED, "", False)).evidence)
    rows = {(row.client, row.seed): row for row in cell.clients}
    assert rows.keys() == right.keys()
    for key, row in rows.items():
        judged, state = right[key]
        ran = [s for s in runs if s.seed in known.seeds and key[1] in (None, s.seed)]
        own = [s for s in ran if study.scores(s, row.client) is not None]
        local = [study.value(study.run(s, LOCAL), row.client) for s in own]
        assert row.value == pytest.approx(fmean(study.value(s, row.client) for s in own), abs=1e-6)
        assert row.local == pytest.approx(fmean(local), abs=1e-6)
        assert row.gain == pytest.approx(study.sign * (row.value - row.local), abs=1e-6)
        assert row.gain == pytest.approx(known.gains[key], abs=1e-6)
        assert (row.low, row.high) == pytest.approx((judged.low, judged.high), abs=1e-6)
        assert (row.state, row.detectable) == (state, pytest.approx(judged.detectable, abs=1e-6))
        ids = [study.tests(s, row.client)[0].tolist() for s in own if s.sampled]
        usual = int(fmean(len(study.tests(s, row.client)[0]) for s in ran))
        assert row.tests == (len(set().union(*ids)) if ids else usual)
        assert row.train == pytest.approx(10 + row.client + 3 * fmean(s.seed for s in ran))
    order = [(row.state != "worse", row.gain) for row in cell.clients]
    assert order == sorted(order)
    if cell.clients:
        check_client_table(cell.client_table)


def check_client_table(table: ClientTable) -> None:
    read = list(csv.DictReader(io.StringIO(clients_csv([table]))))
    assert [{name: str(value) for name, value in vars(row).items()} for row in table.rows] == [
        {name: value or "None" if name == "seed" else value for name, value in row.items() if name != "configuration"}
        for row in read
    ]
    console = Console(file=io.StringIO(), width=300)
    console.print(table)
    drawn = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    lines = [line for line in table.markdown().splitlines() if line.startswith("| ")][1:]
    for row, line in zip(table.rows, lines, strict=True):
        texts = [cell.strip() for cell in line[1:-1].split("|")]
        assert texts == list(table.texts(row))
        if row in table.rows[:20]:
            assert " ".join(" ".join(texts).split()) in [" ".join(each.split()) for each in drawn]
        scale, digits = table.metric.points, 1 if table.metric.unit == "%" else table.metric.digits
        shown = [float(each.replace("−", "-")) for each in re.findall(r"[+−]?\d+\.\d+", " ".join(texts[2:4]))]
        finite = math.isfinite(row.low) and math.isfinite(row.high)
        known = (row.local, row.value, row.gain, *((row.low, row.high) if finite else ()))
        assert shown == pytest.approx([scale * each for each in known], abs=0.51 * 10**-digits)
        assert texts[4].startswith(row.state)


def check_numbers(study: Study, loaded: LoadedStudy, table: Table, rows: list[dict[str, str]]) -> None:
    """The CSV of the table against the scores."""
    assert len(rows) == len(table.rows)
    seen = []
    column = {"accuracy": "accuracy", "balanced": "balanced", "log-loss": "log-loss"}[study.name]
    for line, row in zip(table.rows, rows, strict=True):
        setting = next(block.setting for block in table.blocks if line in block.rows)
        alpha = float(setting.options["partition.alpha"])
        control = against_local(study, study.of_cell(alpha, REPEATED, "", False))
        method = {"majority class": LOCAL, "Local, repeated": REPEATED, MIXED.label: REPEATED}.get(line.method, LOCAL)
        cell = (alpha, method, "", False) if line.cell is None or line.local else spec_of(study, line.cell).cell
        runs, known = study.of_cell(*cell), NOBODY
        seen.append((*cell, line.method))
        values = {s.seed: clean([study.value(s, client) for client in range(study.clients)]) for s in runs}
        if line.cell is not None and not line.local:
            known = against_local(study, runs)
            check_states(row, [state for _, state in clients_of(study, known, control.evidence).values()])
            check_difference(study, row, runs, control.evidence)
        elif line.method == "Local, repeated":
            known = control
        elif line.method == MAJORITY.label:
            values = {s.seed: [0.25 + client / 100 for client in range(study.clients)] for s in runs}
        elif line.method == MIXED.label:
            known = from_samples(study, runs, (LOCAL, ""), mixed=True) or NOBODY
            values = {s.seed: clean(columns_of(study, s)[MIXED.key]) for s in runs}
        per_seed = {seed: study.metric.points * fmean(each) for seed, each in values.items() if each}
        assert row[column] == "" if not per_seed else True
        if per_seed:
            assert float(row[column]) == pytest.approx(fmean(per_seed.values()), abs=1e-6)
            assert row[f"{column} std"] == "" if len(per_seed) == 1 else True
        if len(per_seed) > 1:
            assert float(row[f"{column} std"]) == pytest.approx(stdev(per_seed.values()), abs=1e-6)
        if known.evidence:
            check_estimate(study, row, "gain", mean(control.evidence, known))
            expected = fmean(known.gains.values())
            assert float(row["gain"]) == pytest.approx(study.metric.points * expected, abs=1e-5)
        elif line.cell is None or line.local:
            assert row.get("gain", "") == ""
        if line.cell is not None and line.cell.gain is not None:
            assert line.cell.state == state_of_mean(mean(control.evidence, known), study.margin)
    check_references(study, loaded, [about for about in seen if about[1] in (LOCAL, REPEATED)])


def clean(values: list[float]) -> list[float]:
    return [value for value in values if not math.isnan(value)]


def check_references(study: Study, loaded: LoadedStudy, seen: list[tuple[Any, ...]]) -> None:
    """Which of them are there: all that were measured, the mixture of two local models beside a guard."""
    right = []
    for setting in loaded.settings:
        alpha = float(setting.options["partition.alpha"])
        local, repeated = (study.of_cell(alpha, method, "", False) for method in (LOCAL, REPEATED))
        guarded = any(s.guard and s.finished for s in study.specs if s.alpha == alpha)
        measured = any(clean([study.value(s, client) for client in range(study.clients)]) for s in repeated)
        right += [LOCAL, MAJORITY.label] if local else []
        right += ["Local, repeated"] if measured else []
        right += [MIXED.label] if measured and guarded else []
    assert [about[-1] for about in seen] == right


def check_states(row: dict[str, str], right: list[str]) -> None:
    names = ("worse", "worse undecided", "worse not worse", "worse of")
    counts = [right.count(state) for state in ("worse", "undecided", "not worse")]
    assert [row.get(name, "") for name in names] == ([*map(str, counts), str(len(right))] if right else [""] * 4)


def check_estimate(study: Study, row: dict[str, str], name: str, known: Estimate) -> None:
    numbers = [float(row[f"{name}{part}"]) for part in ("", " low", " high")]
    right = [study.metric.points * each for each in (known.gain, known.low, known.high)]
    assert numbers == pytest.approx(right, abs=1e-5)
    check_direction(row, name, right)


def check_direction(row: dict[str, str], name: str, right: list[float]) -> None:
    gain, low, high = right
    if min(abs(low), abs(high)) > 1e-6:  # at the very edge of the noise floats decide
        assert row[f"{name} verdict"] == ("noise" if low < 0 < high else "gain" if gain > 0 else "loss")


def check_difference(study: Study, row: dict[str, str], runs: list[Spec], control: dict[Key, Evidence]) -> None:
    """To the same method with the plain mean, by single tests or over seeds."""
    spec = runs[0]
    base = [s for s in study.specs if s.cell == (spec.alpha, spec.method, "Mean", spec.guard)]
    if spec.rule == "Mean" or spec.method == OWN_RULE or not base:
        assert row.get("difference", "") == ""
        return
    shared = [(s, other) for s in runs for other in base if other.finished and other.seed == s.seed]
    by_seed = []
    for pair in shared:
        mine, theirs = (clean([study.value(s, client) for client in range(study.clients)]) for s in pair)
        by_seed += [study.metric.points * study.sign * (fmean(mine) - fmean(theirs))] if mine and theirs else []
    if not by_seed:
        assert row.get("difference", "") == ""
    elif all(has_samples(study, s) for pair in shared for s in pair):
        plain = {id(s): other for s, other in shared}
        with patch.object(Study, "run", lambda _self, s, *_than: plain.get(id(s), s)):
            known = from_samples(study, [s for s, _ in shared], ("", ""))
        assert known is not None
        check_estimate(study, row, "difference", mean(control, known, shared=1.0))
    else:
        middle = fmean(by_seed)
        assert float(row["difference"]) == pytest.approx(middle, abs=1e-5)
        if len(by_seed) == 1:
            assert row["difference verdict"] == "unknown"
            return
        half = float(t.ppf(0.975, len(by_seed) - 1)) * stdev(by_seed) / math.sqrt(len(by_seed))
        right = [middle, middle - half, middle + half]
        assert [float(row[f"difference {end}"]) for end in ("low", "high")] == pytest.approx(right[1:], abs=1e-5)
        check_direction(row, "difference", right)


def check_text_forms(table: Table) -> None:
    lines = [line for line in table.markdown().splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    heads, bodies = [row for row in rows if row[0] == ""], [row for row in rows if row[0] != ""]
    columns = {column.heading: column.name for column in (*COLUMNS, *table.columns)}
    assert len(heads) == len(table.blocks)
    console = Console(file=io.StringIO(), width=400)
    console.print(table)
    drawn = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    for row, line in zip(bodies, table.rows, strict=True):
        texts = [str(line.entries[columns[heading]]) for heading in heads[0][1:]]
        assert row == [line.name, *texts]
        assert " ".join(" ".join([line.name, *texts]).split()) in drawn
        for column in table.columns:
            entry = line.entries[column.name]
            if entry.value is not None and column.name != "worse":  # what is shown is the value, rounded
                shown = float(entry.text.replace("−", "-"))
                digits = len(entry.text.partition(".")[2])
                assert shown == pytest.approx(entry.value, abs=0.51 * 10**-digits)


def check_page(study: LoadedStudy, table: Table, html: str, rows: list[dict[str, str]]) -> None:
    """The HTML table against CSV, to the last bit; the pictures' numbers against the rows; the title."""
    found = page_rows(html)
    assert len(found) == len(rows)
    columns = {re.sub(r", %$", "", heading): place for place, heading in enumerate(headings(html))}
    for entries, line, row in zip(found, table.rows, rows, strict=True):
        assert entries[0]["data-v"] == line.label
        for column in table.columns:
            entry = entries[columns[column.heading]]
            assert entry.get("data-v", "") == row[column.name], column.name
            assert entry["shown"] == str(line.entries[column.name])
    data = json.loads(re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)[0])
    for cell, drawn in zip(study.cells, data["cells"], strict=True):
        if cell.local or not cell.clients:
            continue
        clients = drawn["clients"]
        assert list(zip(clients["id"], clients["seed"], clients["state"], strict=True)) == [
            (row.client, row.seed, row.state) for row in cell.clients
        ]
        for name in ("value", "local", "gain", "low", "high", "detectable", "tests"):
            right = [v if math.isfinite(v := getattr(row, name)) else None for row in cell.clients]
            assert clients[name] == [v if v is None else pytest.approx(v, abs=6e-5) for v in right], name
        assert drawn["mean"]["gain"] == pytest.approx(cell.gain.gain, abs=1e-6)
        assert drawn["mean"]["state"] == cell.state
    verdict = study.verdict
    assert f"<h1>{verdict.title}</h1>" in html
    if any(run.finished and not run.local for run in study.runs):
        assert verdict.evidence in unescape(html)
    for what, why in verdict.advice:
        assert f"<dt>{what}</dt><dd>{why}</dd>" in unescape(html)


def headings(html: str) -> list[str]:
    table = re.findall(r'<section id="results">.*?</thead>', html, re.DOTALL)[0]
    return [unescape(text) for text in re.findall(r"<th .*?<button[^>]*>(.*?)</button>", table, re.DOTALL)]


def page_rows(html: str) -> list[list[dict[str, str]]]:
    """The page's table: for each cell its value, what it shows and its small print."""
    found = []
    for row in re.findall(r"<tr [^>]*data-setting=.*?</tr>", html, flags=re.DOTALL):
        cells = re.findall(r"<td([^>]*)>(.*?)</td>", row, flags=re.DOTALL)
        named = [dict(re.findall(r'([\w-]+)="([^"]*)"', attributes)) for attributes, _ in cells]
        shown = [re.sub(r"<i .*?</i>", "", inner).replace("<small>", " ").strip() for _, inner in cells]
        told = [{"shown": re.sub("<[^>]*>", "", each)} for each in shown]
        found.append([{key: unescape(text) for key, text in (a | b).items()} for a, b in zip(named, told, strict=True)])
    return found


def check_result(study: Study, spec: Spec, run: Path) -> None:
    """``result.json`` and what a run says at its end, against the sums, and against the table of this run alone."""
    result = RunFolder(run).result()
    known, repeated = (from_sums(study, [each], alone=True) for each in (spec, study.run(spec, REPEATED)))
    if not known.evidence:
        assert result.transfer is None
        return
    found = result.transfer
    right = clients_of(study, known, repeated.evidence)
    assert found.clients.keys() == {client for client, _ in right}
    for client, each in found.clients.items():
        judged, state = right[client, None]
        ends = [value if math.isfinite(value) else math.nan for value in (judged.low, judged.high)]
        assert (each.gain, each.low, each.high) == pytest.approx((judged.gain, *ends), abs=1e-6, nan_ok=True)
        assert each.state == state
    overall = mean(repeated.evidence, known)
    assert (found.mean.gain, found.mean.low) == pytest.approx((overall.gain, overall.low), abs=1e-6)
    assert found.mean.state == state_of_mean(overall, study.margin)
    there = [i for i, other in enumerate(study.specs) if other in (study.run(spec, LOCAL), study.run(spec, REPEATED))]
    alone = LoadedStudy(run, *(run.with_name(f"{i:03d}") for i in there))
    summary = ClientTable.of_result("", result)
    (cell,) = (cell for cell in alone.cells if not cell.local)
    assert [row.client for row in summary.rows] == [row.client for row in cell.clients]
    assert [summary.texts(row) for row in summary.rows] == [summary.texts(row) for row in cell.clients]
