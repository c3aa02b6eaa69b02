"""Terminal, Markdown, CSV, page, run summary, ``result.json`` and Python say the same of any study, and it is right."""

import csv
import io
import json
import math
import re
import tempfile
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import t

from comity.compare import COLUMNS, Cell, ClientTable, LoadedStudy, Table, clients_csv
from comity.compare.evidence import (
    Estimate,
    Evidence,
    Moments,
    estimate,
    luck,
    mean_estimate,
    state_of_mean,
    states,
)
from comity.metrics import CONSTANT, DECIDING, EVIDENCE, LOSS, MAJORITY, MIXED, Metric
from comity.report._page import page
from comity.results import TEST_SAMPLES, TRAINING_SAMPLES, ClientScores, PartitionTable, RunFolder
from run_folders import make

LOCAL, REPEATED = "Local", "Local repeated"
METHODS = ("FedRep", "Ditto", "FedCALM")
OWN_RULE = "FedCALM"
Key = tuple[int, int | None]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Spec:
    """One run: where it belongs, and what its folder holds."""

    alpha: float
    method: str
    rule: str
    guard: bool
    seed: int
    finished: bool = True
    noted: bool = True
    """Whether it holds the sums of its clients' gains."""
    sampled: bool = True
    """Whether it holds the score of each test."""

    @property
    def cell(self) -> tuple[Any, ...]:
        return self.alpha, self.method, self.rule, self.guard


@dataclass(frozen=True)
class Study:
    number: int
    """Decides all random numbers."""
    name: str
    """Of the metric that decides."""
    margin: float
    clients: int
    same_partition: bool
    specs: list[Spec]
    """Of all runs, Local and Local repeated included."""

    @property
    def metric(self) -> Metric:
        return DECIDING[self.name]

    @property
    def sign(self) -> int:
        return -1 if self.metric.better == "lower" else 1

    def random(self, *about: float | str) -> np.random.Generator:
        return np.random.default_rng([self.number, *"/".join(map(str, about)).encode()])

    def tests(self, spec: Spec, client: int) -> tuple[Floats, Floats]:
        """Ids and labels of a client's tests. The seeds of one partition draw them from the same samples."""
        pool = self.random(spec.alpha, client, "pool" if self.same_partition else spec.seed)
        size, share = int(pool.integers(4, 40)), pool.choice([0.0, 0.5, 0.8])
        labels = (pool.uniform(size=size) < share).astype(int)
        draw = self.random(spec.alpha, client, spec.seed, "draw")
        chosen = np.sort(draw.permutation(size)[: int(draw.integers(3, size + 1))])
        return np.asarray(100 * client + chosen), labels[chosen]

    def truth(self, spec: Spec, client: int) -> Floats:
        """The probability that a run's model gives the true class of each test."""
        ids, _ = self.tests(spec, client)
        skill = self.random(spec.cell, client).choice([-0.45, 0.0, 0.1, 0.45])
        luck = self.random(spec.cell, client, spec.seed).normal(0, 0.05)
        hard = self.random(spec.alpha, client, "hard").uniform(0.1, 0.9, 40)[ids - 100 * client]
        return np.clip(hard + skill + luck, 0.02, 0.98)

    def score(self, truth: Floats, labels: Floats) -> Floats | None:
        """Higher is better, in the precision of a run folder; ``None`` where the metric is undefined."""
        hits = (truth > 0.5).astype(float)
        if self.name == "accuracy":
            return hits
        if self.name == "log-loss":
            return np.float32(np.log(truth)).astype(float)
        counts = [int((labels == label).sum()) for label in sorted(set(labels.tolist()))]
        if len(counts) < 2:
            return None
        weight = {label: len(labels) / (2 * counts[place]) for place, label in enumerate(sorted(set(labels.tolist())))}
        return np.float32([hit * weight[label] for hit, label in zip(hits, labels.tolist(), strict=True)]).astype(float)

    def scores(self, spec: Spec, client: int) -> Floats | None:
        return self.score(self.truth(spec, client), self.tests(spec, client)[1])

    def mixed(self, spec: Spec, client: int) -> Floats | None:
        both = (self.truth(spec, client) + self.truth(self.run(spec, LOCAL), client)) / 2
        return self.score(both, self.tests(spec, client)[1])

    def unit(self, spec: Spec, client: int) -> float:
        """The largest difference that a test can make."""
        labels = self.tests(spec, client)[1].tolist()
        largest = max(len(labels) / (2 * labels.count(label)) for label in set(labels))
        return {"accuracy": 1.0, "balanced": largest, "log-loss": 0.0}[self.name]

    def value(self, spec: Spec, client: int) -> float:
        scores = self.scores(spec, client)
        return math.nan if scores is None else self.of(scores)

    def of(self, scores: Floats) -> float:
        """The metric; rounded scores of a perfect model exceed it."""
        return min(self.sign * float(scores.mean()), self.metric.high)

    def differences(self, spec: Spec, client: int, than: str) -> Floats | None:
        mine, theirs = self.scores(spec, client), self.scores(self.run(spec, than), client)
        return None if mine is None or theirs is None else mine - theirs

    def run(self, spec: Spec, method: str, rule: str = "") -> Spec:
        """A run of another cell under the same conditions, whether it is there or not."""
        there = (s for s in self.specs if s.cell == (spec.alpha, method, rule, False) and s.seed == spec.seed)
        return next(there, Spec(spec.alpha, method, rule, False, spec.seed, finished=False))

    def of_cell(self, *cell: Any) -> list[Spec]:
        return sorted((s for s in self.specs if s.cell == cell and s.finished), key=lambda s: s.seed)


@st.composite
def studies(draw: st.DrawFn) -> Study:
    mostly = st.sampled_from([True, True, True, True, False])
    alphas, seeds = draw(st.sampled_from([(0.1,), (0.1, 1.0)])), range(draw(st.integers(1, 4)))
    cells = [(m, rule, guard) for m in METHODS[:2] for rule in ("Mean", "ConFREE") for guard in (False, True)]
    chosen = draw(st.lists(st.sampled_from([*cells, (OWN_RULE, "Mean", False)]), min_size=1, max_size=4, unique=True))
    noted, sampled = draw(mostly), draw(mostly)
    specs = [
        Spec(alpha, *cell, seed, draw(mostly), noted and draw(mostly), sampled and draw(mostly))
        for alpha in alphas
        for cell in chosen
        for seed in seeds
        if draw(mostly)
    ]
    repeats = draw(st.booleans())
    for alpha in alphas:
        for seed in seeds:
            if not specs or draw(mostly):
                specs.append(Spec(alpha, LOCAL, "", False, seed, noted=False, sampled=sampled))
                specs += [Spec(alpha, REPEATED, "", False, seed, noted=noted, sampled=sampled)] if repeats else []
    name, margin = draw(st.sampled_from(["accuracy", "balanced", "log-loss"])), draw(st.sampled_from([0.02, 0.3]))
    return Study(draw(st.integers(0, 10**6)), name, margin, draw(st.integers(1, 5)), draw(st.booleans()), specs)


# Run folders.


def sums_of(d: Floats) -> list[float]:
    """Of squares, absolute values and fourth powers."""
    return [float((d**2).sum()), float(np.abs(d).sum()), float((d**4).sum())]


def least(d: Floats) -> float:
    """The smallest absolute difference that is not 0."""
    return min((abs(each) for each in d.tolist() if each), default=0.0)


def columns_of(study: Study, spec: Spec) -> dict[str, list[float]]:
    """The last evaluation of a run, as its ``result.json`` has it."""
    clients = range(study.clients)
    columns = {
        TRAINING_SAMPLES: [float(10 + client + 3 * spec.seed) for client in clients],
        TEST_SAMPLES: [float(len(study.tests(spec, client)[0])) for client in clients],
        LOSS.key: [float(-np.log(study.truth(spec, client)).mean()) for client in clients],
        CONSTANT.key: [float(study.random(spec.cell, client, "constant").uniform() < 0.2) for client in clients],
    }
    if study.name == "balanced":
        columns[study.metric.key] = [study.value(spec, client) for client in clients]
    if study.name == "log-loss":
        columns[LOSS.key] = [study.value(spec, client) for client in clients]
    if spec.method == LOCAL:
        columns[MAJORITY.key] = [0.25 + client / 100 for client in clients]
    if spec.noted:
        found = [study.differences(spec, client, LOCAL) for client in clients]
        sums = [[math.nan] * 5 if d is None else [d.mean(), *(m / len(d) for m in sums_of(d)), least(d)] for d in found]
        rows = [
            [*map(float, row), math.nan if d is None else study.unit(spec, client)]
            for client, (row, d) in enumerate(zip(sums, found, strict=True))
        ]
        columns |= {each.key: [row[place] for row in rows] for place, each in enumerate(EVIDENCE)}
    if spec.method == REPEATED:
        mixed = [study.mixed(spec, client) for client in clients]
        columns[MIXED.key] = [math.nan if m is None else study.of(m) for m in mixed]
    return columns


def samples_of(study: Study, spec: Spec) -> dict[int, ClientScores]:
    found = {}
    for client in range(study.clients):
        scores = study.scores(spec, client)
        if scores is not None:
            mixed = study.mixed(spec, client) if spec.method == REPEATED else None
            found[client] = ClientScores(*study.tests(spec, client), scores, mixed)
    return found


def write(study: Study, folder: Path) -> None:
    for i, spec in enumerate(study.specs):
        path, clients = folder / f"{i:03d}", range(study.clients)
        options: dict[str, Any] = {"partition.alpha": spec.alpha, "metric": study.name, "margin": study.margin}
        options |= {"training_seed": 1000 + spec.seed} if spec.method == REPEATED else {}
        options |= {"guard": {"name": "mixture"}} if spec.guard else {}
        repeated = study.run(spec, REPEATED)
        samples = samples_of(study, spec) if spec.sampled else {}
        make(
            path,
            [float((study.truth(spec, client) > 0.5).mean()) for client in clients],
            alone=[study.value(study.run(spec, LOCAL), c) for c in clients] if spec.noted else None,
            method=LOCAL if spec.method == REPEATED else spec.method,
            rule=spec.rule or "Mean",
            seed=spec.seed,
            rounds=2,
            done=None if spec.finished else 1,
            options=options,
            own_rule=spec.method == OWN_RULE,
            thorough=False,
            samples=samples or None,
            columns_too=columns_of(study, spec),
            control={"client": list(clients)} | columns_of(study, repeated) if repeated.finished else None,
        )
        counts = [[1 + (0 if study.same_partition else spec.seed), client] for client in clients]
        RunFolder(path).add_partition(PartitionTable(name="x", partition="y", classes=2, counts=counts))


# What the numbers must be, worked out from the scores alone.


@dataclass(frozen=True)
class Expected:
    """What is known of one comparison: a list of runs, and the mean difference of each client."""

    seeds: list[int]
    evidence: dict[Key, Evidence]
    gains: dict[Key, float]


NOBODY = Expected([], {}, {})


def pooled(study: Study, alpha: float) -> bool:
    seeds = {spec.seed for spec in study.specs if spec.alpha == alpha and spec.method != REPEATED}
    return not study.same_partition and len(seeds) > 1


def from_samples(study: Study, runs: list[Spec], than: tuple[str, str], mixed: bool = False) -> Expected | None:
    """By the scores of single tests; ``None`` where one of the runs that both have is without them."""
    pairs = [(spec, other) for spec in runs if (other := study.run(spec, *than)) in study.specs and other.finished]
    if not pairs or not all(_has_samples(study, spec) for pair in pairs for spec in pair):
        return None
    parts: dict[Key, list[tuple[Spec, Floats]]] = {}
    for spec, other in pairs:
        for client in range(study.clients):
            mine = study.mixed(spec, client) if mixed else study.scores(spec, client)
            theirs = study.scores(other, client)
            if mine is not None and theirs is not None:
                key = client, spec.seed if pooled(study, spec.alpha) else None
                parts.setdefault(key, []).append((spec, mine - theirs))
    evidence = {}
    for key, each in parts.items():
        size = fmean(len(d) for _, d in each)
        evidence[key] = Evidence.of(
            np.concatenate([study.tests(spec, key[0])[0] for spec, _ in each]),
            np.concatenate([np.full(len(d), spec.seed) for spec, d in each]),
            np.concatenate([d * size / len(d) for _, d in each]),
            max(study.unit(spec, key[0]) * size / len(d) for spec, d in each),
        )
    gains = {key: fmean(float(d.mean()) for _, d in each) for key, each in parts.items()}
    if pooled(study, runs[0].alpha):
        by_sample: dict[int, list[float]] = {}
        for key, each in parts.items():
            for spec, d in each:
                for sample, part in zip(study.tests(spec, key[0])[0].tolist(), (d - d.mean()) / len(d), strict=True):
                    by_sample.setdefault(sample, []).append(float(part))
        apart = sum(part**2 for each in by_sample.values() for part in each)
        together = sum(sum(each) ** 2 for each in by_sample.values())
        overlap = max(1.0, together / apart) if apart else 1.0
        evidence = {key: replace(each, overlap=overlap) for key, each in evidence.items()}
    ordered = sorted(evidence, key=lambda key: (key[1] or 0, key[0]))
    return Expected([spec.seed for spec, _ in pairs], {key: evidence[key] for key in ordered}, gains)


def _has_samples(study: Study, spec: Spec) -> bool:
    return spec.sampled and bool(samples_of(study, spec))


def from_sums(study: Study, runs: list[Spec], *, alone: bool = False) -> Expected:
    """By what each run notes; which sample is which is not known. ``alone``: nothing else is known of other seeds."""
    noted = [spec for spec in runs if spec.noted and spec.finished]
    parts: dict[Key, list[tuple[Floats, float]]] = {}
    for spec in noted:
        for client in range(study.clients):
            if (d := study.differences(spec, client, LOCAL)) is not None:
                key = client, spec.seed if pooled(study, spec.alpha) and not alone else None
                parts.setdefault(key, []).append((d, study.unit(spec, client)))
    evidence = {}
    for key, each in parts.items():
        size = fmean(len(d) for d, _ in each)
        scaled = [d * size / len(d) for d, _ in each]
        moments = [Moments._make((len(d), float(d.sum()), *sums_of(d), least(d))) for d in scaled]
        unit = max(unit * size / len(d) for d, unit in each)
        evidence[key] = Evidence.of_moments(moments, 1 if key[1] is not None else len(noted), unit)
    gains = {key: fmean(float(d.mean()) for d, _ in each) for key, each in parts.items()}
    return Expected([spec.seed for spec in noted], evidence, gains)


def against_local(study: Study, runs: list[Spec]) -> Expected:
    shared = {spec.seed for spec in runs if spec.noted or study.run(spec, LOCAL) in study.specs}
    found = from_samples(study, runs, (LOCAL, ""))
    if found is not None and found.evidence and (len(shared) > 1 or not any(spec.noted for spec in runs)):
        return found
    return from_sums(study, runs)


def training_luck(control: dict[Key, Evidence], joined: dict[Key, Evidence]) -> float:
    return luck(list(control.values()), list(joined.values()))


def mean(control: dict[Key, Evidence], known: Expected, shared: float = 0.5) -> Estimate:
    return mean_estimate(list(known.evidence.values()), training_luck(control, known.evidence), shared)


def clients_of(study: Study, known: Expected, control: dict[Key, Evidence]) -> dict[Key, tuple[Estimate, str]]:
    """Estimate and state of each client."""
    common, found = training_luck(control, known.evidence), {}
    for key, each in known.evidence.items():
        made = estimate(each, common, len(known.evidence))
        if study.metric.unit == "%":
            detectable = made.detectable if made.detectable <= 1 else math.inf
            made = Estimate(made.gain, max(made.low, -1), min(made.high, 1), made.p, detectable)
        found[key] = made
    state = states(found, study.margin)
    return {key: (found[key], state[key]) for key in found}


# The test.


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
    assert len(rows) == len(table.lines)
    seen = []
    column = {"accuracy": "accuracy", "balanced": "balanced", "log-loss": "log-loss"}[study.name]
    for line, row in zip(table.lines, rows, strict=True):
        setting = next(block.setting for block in table.blocks if line in block.lines)
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
    elif all(_has_samples(study, s) for pair in shared for s in pair):
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
    for row, line in zip(bodies, table.lines, strict=True):
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
    for entries, line, row in zip(found, table.lines, rows, strict=True):
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
        assert cell.gain is not None
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
    assert found is not None
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
    assert summary is not None
    assert [row.client for row in summary.rows] == [row.client for row in cell.clients]
    assert [summary.texts(row) for row in summary.rows] == [summary.texts(row) for row in cell.clients]
