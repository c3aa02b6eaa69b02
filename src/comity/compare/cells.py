"""Cells and settings: runs that differ only in their seed, and cells under the same conditions.

All comparisons with local training are made here: one row per client, and the mean over clients.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from comity._labels import titled
from comity._overlay import owner
from comity.compare.clients import ClientTable
from comity.compare.harm import ClientRow, Key, bounded, mean_gain, of_columns, of_samples, training_luck
from comity.compare.statistics import Difference, Spread
from comity.config import ACCURACY, LOCAL, default
from comity.metrics import CONSTANT, DECIDING, Metric
from comity.metrics import GAIN as GAIN_SUM
from comity.results import TEST_SAMPLES, TRAINING_SAMPLES, Flat, LoadedRun, State

if TYPE_CHECKING:  # numpy, which lists and errors should not wait for
    from comity.compare.evidence import Estimate, Evidence


@dataclass(eq=False)
class Cell:
    """One configuration (method, rule and guard) in one setting, with one run per seed."""

    setting: "Setting" = field(repr=False)
    options: Flat
    """The options of method, rule and guard."""
    method_label: str
    rule_label: str
    """Empty if no rule can be chosen."""
    runs: dict[int, LoadedRun] = field(default_factory=dict)
    base: "Cell | None" = None
    """The cell that this one is compared with: the same method with the plain mean, or with the rule given as base."""

    @property
    def method(self) -> str:
        return str(self.options["method"])

    @property
    def rule(self) -> str:
        return str(self.options.get("rule", ""))

    @property
    def local(self) -> bool:
        return self.method == LOCAL

    @property
    def guarded(self) -> bool:
        return self.options.get("guard") is not None

    @property
    def without_guard(self) -> "Cell | None":
        """The cell with the same method and rule without a guard, if this cell has a guard."""

        def kept(cell: Cell) -> Flat:
            return {key: v for key, v in cell.options.items() if owner(key) in ("method", "rule")}

        same = (cell for cell in self.setting.cells if not cell.guarded and kept(cell) == kept(self))
        return next(same, None) if self.guarded else None

    @property
    def label(self) -> str:
        return titled(self.method_label, self.rule_label)

    @property
    def finished(self) -> list[LoadedRun]:
        return [run for run in self.runs.values() if run.finished]

    @property
    def shown_runs(self) -> list[LoadedRun]:
        """The runs that plots show: the finished ones, or all if none is finished."""
        return self.finished or list(self.runs.values())

    def spread(self, number: Callable[[LoadedRun], float]) -> Spread | None:
        """A number of each finished run."""
        return Spread.of({run.seed: number(run) for run in self.finished})

    @cached_property
    def value(self) -> Spread | None:
        """The metric that decides: mean over clients in the last round, in display units."""
        metric = self.setting.metric
        return self.spread(lambda run: metric.points * run.metric(metric.key))

    @cached_property
    def difference(self) -> Difference | None:
        """Difference to the base cell; positive if this cell is better."""
        return None if self.base is None else self.against(self.base)

    def against(self, other: "Cell") -> Difference | None:
        """Mean difference to another cell of the setting; positive if this cell is better."""
        metric = self.setting.metric
        if pairs := self._evidence(other):
            mean = mean_gain(pairs, training_luck(self.setting.control, pairs), shared=1.0)
            return Difference.of(mean, metric.points, len(self._seeds(other)))
        return Difference.between(self.value, other.value, metric.sign)

    def _seeds(self, other: "Cell") -> list[int]:
        return [run.seed for run in self.finished if run.seed in other.runs and other.runs[run.seed].finished]

    def _evidence(self, other: "Cell") -> "dict[Key, Evidence] | None":
        """Evidence from the scores of single test samples, paired with those of another cell."""
        seeds = self._seeds(other)
        first, second = ({seed: cell.runs[seed] for seed in seeds} for cell in (self, other))
        return of_samples(first, second, pooled=self.setting.pooled)

    # Against local training.

    @cached_property
    def _compared(self) -> "tuple[list[int], dict[Key, Evidence]]":
        return ([], {}) if self.local else self.setting.against_local({run.seed: run for run in self.finished})

    @property
    def compared(self) -> list[LoadedRun]:
        """The runs that are compared with local training."""
        return [self.runs[seed] for seed in self._compared[0]]

    @property
    def evidence(self) -> "dict[Key, Evidence]":
        """Evidence of each client's gain over local training."""
        return self._compared[1]

    @cached_property
    def gain(self) -> "Estimate | None":
        """Gain over local training, mean over clients."""
        return mean_gain(self.evidence, self.luck) if self.evidence else None

    @cached_property
    def luck(self) -> float:
        """Covariance of two test results of one run that is due to the training seed."""
        return training_luck(self.setting.control, self.evidence)

    @property
    def state(self) -> State | None:
        """State of the mean over clients: worse, undecided or not worse."""
        from comity.compare.evidence import state_of_mean

        return None if self.gain is None else state_of_mean(self.gain, self.setting.margin)

    @property
    def mean_gain(self) -> Difference | None:
        """The mean gain in display units; without an interval if only mean values are known."""
        metric, local = self.setting.metric, self.setting.local
        if self.gain is not None:
            return Difference.of(self.gain, metric.points, len(self.compared))
        return None if local is None or self.local else Difference.between(self.value, local.value, metric.sign)

    @cached_property
    def clients(self) -> list[ClientRow]:
        """One row per client over all repetitions, significant losses first, then by gain; empty without Local."""
        from comity.compare.evidence import estimate, states

        if not self.evidence:
            return []
        count, name = len(self.evidence), self.setting.deciding
        estimates = {key: bounded(estimate(each, self.luck, count), name) for key, each in self.evidence.items()}
        state = states(estimates, self.setting.margin)
        rows = [self._row(key, estimates[key], state[key]) for key in estimates]
        return sorted(rows, key=lambda row: row.place)

    def _row(self, key: Key, known: "Estimate", state: State) -> ClientRow:
        client, seed = key
        runs = [run for run in self.compared if seed in (None, run.seed) and client in run.client_ids]
        metric = self.setting.metric
        value = self._mean(runs, metric.key, client)
        tests = [run.samples[client].id for run in runs if run.samples is not None and client in run.samples]
        count = len(set().union(*(ids.tolist() for ids in tests))) if tests else self._mean(runs, TEST_SAMPLES, client)
        table = runs[0].partition
        name = table.client_names[client] if table is not None and client < len(table.client_names) else ""
        return ClientRow(
            client=client,
            seed=seed,
            name=name,
            train=self._mean(runs, TRAINING_SAMPLES, client),
            tests=int(count),
            value=value,
            local=value - metric.sign * known.gain,
            gain=known.gain,
            low=known.low,
            high=known.high,
            state=state,
            detectable=known.detectable,
            constant=self._mean(runs, CONSTANT.key, client) == 1,
        )

    @staticmethod
    def _mean(runs: Sequence[LoadedRun], column: str, client: int) -> float:
        values = [v for run in runs if not math.isnan(v := run.by_client(column).get(client, math.nan))]
        return fmean(values) if values else math.nan

    @property
    def client_table(self) -> ClientTable:
        setting = f" at {self.setting.label}" if self.setting.label else ""
        return ClientTable(f"{self.label}{setting}", self.clients, self.setting.metric)

    def with_state(self, state: State) -> list[ClientRow]:
        return [row for row in self.clients if row.state == state]

    def local_values(self, run: LoadedRun) -> dict[int, float]:
        """The deciding metric of each client's local model, as recorded in the run or from Local with the same seed."""
        metric, noted = self.setting.metric, run.result.transfer if run.result is not None else None
        values = run.by_client(metric.key)
        if noted is not None:
            return {
                client: values[client] - metric.sign * gain for client, gain in noted.gain.items() if client in values
            }
        local = self.setting.local
        other = local.runs.get(run.seed) if local is not None and not self.local else None
        return other.by_client(metric.key) if other is not None and other.finished else {}


@dataclass(eq=False)
class Setting:
    """The conditions under which configurations are compared: data, partition, model, rounds and further options."""

    options: Flat
    label: str
    cells: list[Cell] = field(default_factory=list)
    repeated: dict[int, LoadedRun] = field(default_factory=dict)
    """Local baselines repeated with another training seed, by seed."""

    @property
    def local(self) -> Cell | None:
        return next((cell for cell in self.cells if cell.local), None)

    @property
    def runs(self) -> list[LoadedRun]:
        return [run for cell in self.cells for run in cell.runs.values()]

    @property
    def deciding(self) -> str:
        """Name of the metric that decides."""
        return str(self.options.get("metric") or ACCURACY)

    @property
    def metric(self) -> Metric:
        return DECIDING[self.deciding]

    @property
    def margin(self) -> float:
        """The largest loss that still counts as not worse."""
        usual = float(default("margin"))
        return max((float(run.options.get("margin", usual)) for run in self.runs), default=usual)

    @cached_property
    def pooled(self) -> bool:
        """Whether each seed has its own partition: then client 3 of one seed is not client 3 of another."""
        tables = {run.seed: run.partition for run in self.runs}
        known = list(tables.values())
        return len(tables) > 1 and any(table is None or table != known[0] for table in known)

    @property
    def folds(self) -> int:
        """Number of consecutive seeds that together test each sample once; 0 without folds."""
        return next((run.partition.folds for run in self.runs if run.partition is not None), 0)

    def repetitions(self, runs: int) -> int:
        """Number of runs that test the same sample, out of ``runs``."""
        return -(-runs // self.folds) if self.folds else runs

    def against_local(self, runs: Mapping[int, LoadedRun]) -> "tuple[list[int], dict[Key, Evidence]]":
        """The seeds of the runs that are compared with local training, and the evidence of each client.

        It comes from the scores of single test samples. If these are missing, or there is only one run, it comes from
        the sums that the runs record, as in ``result.json``.
        """
        local = self._finished_local
        noted = {seed: run.evaluation for seed, run in sorted(runs.items()) if GAIN_SUM.key in run.evaluation}
        both = {seed: run for seed, run in sorted(runs.items()) if seed in local}
        several = len(noted.keys() | both.keys()) > 1
        if (several or not noted) and (found := of_samples(both, local, pooled=self.pooled)):
            return list(both), found
        if self.pooled:
            each = ((seed, of_columns([columns])) for seed, columns in noted.items())
            return list(noted), {(client, seed): e for seed, found in each for client, e in found.items()}
        known = of_columns(list(noted.values()), self.repetitions(len(noted)))
        return list(noted), {(client, None): each for client, each in known.items()}

    @property
    def _finished_local(self) -> dict[int, LoadedRun]:
        return {run.seed: run for run in self.local.finished} if self.local is not None else {}

    @property
    def _finished_repeated(self) -> dict[int, LoadedRun]:
        return {seed: run for seed, run in self.repeated.items() if run.finished}

    @cached_property
    def control(self) -> "dict[Key, Evidence]":
        """The repeated local baseline compared with the local baseline: the effect of the training seed."""
        return self.against_local(self._finished_repeated)[1]

    @cached_property
    def mixed(self) -> "dict[Key, Evidence]":
        """A mixture of two local models compared with one."""
        runs = self._finished_repeated, self._finished_local
        return of_samples(*runs, pooled=self.pooled, column="mixed") or {}

    @property
    def local_on(self) -> Literal["all", "train"]:
        """Whether Local also learns from a client's validation samples (or there are none)."""
        held_out = any(run.options.get("val_share") for run in self.runs)
        return "train" if held_out and self.options.get("local_on") != "all" else "all"
