"""The results of a benchmark: one for each configuration and federation, and one row per client.

They come from the studies of a benchmark, or from the CSV file of an earlier one: those are marked as stored.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from comity._components import Component, plain
from comity._errors import ComityError
from comity._labels import titled
from comity._words import csv_cell, number
from comity.compare.cells import Cell, Setting
from comity.compare.harm import ClientRow, Key, bounded, mean_gain, training_luck
from comity.compare.statistics import Difference, Spread
from comity.compare.study import LoadedStudy
from comity.config import LOCAL, MEAN
from comity.metrics import DECIDING, MAJORITY, MIXED, Metric
from comity.results import LoadedRun, flatten, show

if TYPE_CHECKING:
    from comity.compare.evidence import Evidence

Kind = Literal["configuration", "reference", "control"]
"""``reference``: local training and two local models mixed, which are ranked too; controls are not."""
REPEATED = f"{LOCAL}, repeated"
CONDITIONS = ("data.max_clients", "data.max_samples", "model", "rounds", "epochs", "batch_size", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One configuration on one federation."""

    federation: str
    metric: str
    """The name of the metric that decides."""
    configuration: str
    kind: Kind = "configuration"
    value: float
    gain: float
    low: float = math.nan
    high: float = math.nan
    """Gain over local training with its 95 % interval, in points or in the metric's own unit; positive is better."""
    worse: int = 0
    undecided: int = 0
    not_worse: int = 0
    seeds: int
    seconds: float = math.nan
    """Of training and aggregation per run, mean over seeds."""
    lr: float = math.nan
    conditions: str
    """What results of the same federation must share to be compared."""
    stored: bool = False
    """Whether it was read from an earlier benchmark's file."""

    @property
    def clients(self) -> int:
        return self.worse + self.undecided + self.not_worse

    @property
    def measured(self) -> Metric:
        return DECIDING[self.metric]

    @property
    def direction(self) -> Literal["gain", "loss", "noise"]:
        """What its interval shows."""
        if self.configuration == LOCAL or math.isnan(self.low):
            return "noise"
        return "gain" if self.low > 0 else "loss" if self.high < 0 else "noise"

    def text(self, value: float, *, sign: bool = True) -> str:
        return number(value, 1 if self.measured.unit == "%" else self.measured.digits, sign=sign)

    @property
    def interval(self) -> str:
        """“+1.2 [0.3, 2.1]”."""
        if self.configuration == LOCAL:
            return self.text(0.0)
        known = not math.isnan(self.low)
        return self.text(self.gain) + (f" [{self.text(self.low)}, {self.text(self.high)}]" if known else "")

    @property
    def tally(self) -> str:
        """“1 / 3 / 8”: clients that are worse, undecided and not worse."""
        return f"{self.worse} / {self.undecided} / {self.not_worse}" if self.clients else ""


# From studies.


def benchmark_studies(out: str | Path) -> dict[str, Path]:
    """The federations' studies in the folder of a benchmark, as far as they have begun."""
    begun = {path.parents[2] for path in Path(out).glob("*/runs/*/config.yaml")}
    folders = sorted(path.parent for path in Path(out).glob("*/study.yaml") if path.parent in begun)
    if not folders:
        raise ComityError(f"{out} holds no benchmark: there is no study in its folders")
    return {folder.name: folder for folder in folders}


def results_of(federation: str, study: LoadedStudy, least: int = 1) -> list[Result]:
    """All of one federation's study; configurations with fewer than ``least`` finished seeds are left out."""
    found: list[Result] = []
    for setting in study.settings:
        local = setting.local
        if local is None or local.value is None or len(local.finished) < least:
            continue
        common: dict[str, Any] = {"federation": federation, "metric": setting.deciding}
        common["conditions"] = _conditions(local.finished[0])
        found.append(
            Result(**common, configuration=LOCAL, kind="reference", value=local.value.mean, gain=0.0, **_cost(local))
        )
        found += _controls(setting, common)
        for cell in setting.cells:
            gain = None if cell.local or len(cell.finished) < least else cell.mean_gain
            if gain is not None and cell.value is not None:
                counts = _counts(row.state for row in cell.clients)
                own: dict[str, Any] = {
                    "configuration": label_of(cell),
                    "value": cell.value.mean,
                    **_numbers(gain),
                    **counts,
                }
                found.append(Result(**common, **own, **_cost(cell)))
    return found


def _controls(setting: Setting, common: Mapping[str, Any]) -> Iterator[Result]:
    """Two local models mixed, local training repeated, and the majority class."""
    metric, local = setting.metric, setting.local
    assert local is not None
    assert local.value is not None
    repeated = [run for run in setting.repeated.values() if run.finished]
    rows: list[tuple[str, Kind, list[LoadedRun], str, Mapping[Key, Evidence]]] = [
        (MIXED.label, "reference", repeated, MIXED.key, setting.mixed),
        (REPEATED, "control", repeated, metric.key, setting.control),
        (MAJORITY.label, "control", local.finished, MAJORITY.key, {}),
    ]
    for name, kind, runs, key, evidence in rows:
        value = Spread.of({run.seed: metric.points * run.metric(key) for run in runs})
        if value is None:
            continue
        gain, counts = Difference.between(value, local.value, metric.sign), {}
        if evidence:
            luck = training_luck(setting.control, evidence)
            gain = Difference.of(mean_gain(evidence, luck), metric.points, len(runs))
            counts = _counts(_states(setting, evidence, luck).values())
        if gain is not None:
            own: dict[str, Any] = {"value": value.mean, **_numbers(gain), **counts, "seeds": len(value.by_seed)}
            yield Result(**common, configuration=name, kind=kind, **own)


def _states(setting: Setting, evidence: "Mapping[Key, Evidence]", luck: float) -> dict[Key, str]:
    from comity.compare.evidence import estimate, states

    estimates = {key: bounded(estimate(each, luck, len(evidence)), setting.deciding) for key, each in evidence.items()}
    return dict(states(estimates, setting.margin))


def _counts(states: Iterable[str]) -> dict[str, int]:
    every = list(states)
    return {name: every.count(name.replace("_", " ")) for name in ("worse", "undecided", "not_worse")}


def _numbers(gain: Difference) -> dict[str, float]:
    low, high = (math.nan if value is None else value for value in (gain.low, gain.high))
    return {"gain": gain.mean, "low": low, "high": high}


def _cost(cell: Cell) -> dict[str, Any]:
    results = [run.result for run in cell.finished if run.result is not None]
    seconds = [each.seconds.train + each.seconds.aggregate for each in results]
    return {
        "seeds": len(cell.finished),
        "seconds": fmean(seconds) if seconds else math.nan,
        "lr": float(cell.finished[0].options.get("lr", math.nan)),
    }


def label_of(cell: Cell) -> str:
    """Label of a configuration, equal on all federations, without the plain mean and default options."""
    rule = "" if cell.rule in ("", MEAN) and not _changed(cell, "rule") else f"{cell.rule}{_changed(cell, 'rule')}"
    guard = cell.options.get("guard")
    shown = None if guard is None else f"{guard}{_changed(cell, 'guard')}"
    return titled(f"{cell.method}{_changed(cell, 'method')}", rule, shown)


def _changed(cell: Cell, kind: str) -> str:
    own = {key.partition(".")[2]: value for key, value in cell.options.items() if key.startswith(f"{kind}.")}
    try:
        usual: Mapping[str, Any] = Component.parse(kind, cell.options.get(kind)).options
    except ComityError:  # a class of somebody else's that is not here
        usual = {}
    changed = {key: value for key, value in own.items() if key in usual and plain(value) != plain(usual[key])}
    words = (value if isinstance(value, str) else f"{key}={show(value)}" for key, value in changed.items())
    return f" ({', '.join(words)})" if changed else ""


def _conditions(run: LoadedRun) -> str:
    flat = flatten(run.options)
    names = [*CONDITIONS, *(key for key in flat if key.startswith("model."))]
    return ", ".join(f"{name.rpartition('.')[2]}={show(flat[name])}" for name in names if flat.get(name) is not None)


@dataclass(frozen=True)
class FederationClients:
    """One row per client of a federation, one column per configuration."""

    federation: str
    metric: Metric
    configurations: dict[str, dict[str, ClientRow]]
    """By configuration, then by client."""


def clients_of(federation: str, study: LoadedStudy, least: int = 1) -> FederationClients | None:
    found: dict[str, dict[str, ClientRow]] = {}
    for cell in study.cells:
        if len(cell.finished) >= least and cell.clients:
            found[label_of(cell)] = {str(row): row for row in cell.clients}
    return FederationClients(federation, study.settings[0].metric, found) if found else None


# Files.


def results_csv(results: Iterable[Result]) -> str:
    """One line for each configuration and federation."""
    text = io.StringIO()
    names = [each.name for each in fields(Result) if each.name != "stored"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for result in results:
        values = (getattr(result, name) for name in names)
        writer.writerow(csv_cell(f"{value:.6g}" if isinstance(value, float) else value) for value in values)
    return text.getvalue()


def read_results(file: Path, stored: bool = True) -> list[Result]:
    """Results that ``results_csv`` wrote."""
    kinds: dict[str, Any] = {each.name: each.type for each in fields(Result)}
    found = []
    try:
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
            values: dict[str, Any] = {
                name: kinds[name](text) if kinds[name] in (int, float) else text for name, text in row.items()
            }
            found.append(Result(**values, stored=stored))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ComityError(f"{file} is no file of a leaderboard: {error}") from error
    return found


def benchmark_clients_csv(federations: Iterable[FederationClients]) -> str:
    """One line for each client, configuration and federation."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("train", "tests", "local", "value", "gain", "low", "high")
    writer.writerow(["federation", "configuration", "client", *names, "state"])
    for each in federations:
        for configuration, rows in each.configurations.items():
            for row in rows.values():
                numbers = (f"{getattr(row, name):.5g}" for name in names)
                writer.writerow([each.federation, configuration, csv_cell(str(row)), *numbers, row.state])
    return text.getvalue()
