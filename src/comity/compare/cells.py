"""Cells and settings: runs that differ by their seed alone, and cells under the same conditions.

Every comparison with Local is made here, once, and so is the count of clients that gain.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from comity._labels import titled
from comity._overlay import owner
from comity.compare.harm import Balance, transfer
from comity.compare.statistics import Difference, Spread
from comity.config import LOCAL
from comity.metrics import OWN
from comity.results import Flat, LoadedRun, Transfer


@dataclass(eq=False)
class Cell:
    """One method with one rule in one setting: its runs, one a seed."""

    setting: "Setting" = field(repr=False)
    options: Flat
    """Of method, rule and guard."""
    method_label: str
    rule_label: str
    """Empty where no rule can be chosen."""
    runs: dict[int, LoadedRun] = field(default_factory=dict)
    base: "Cell | None" = None
    """The cell that this one is compared with: the same method with the plain mean, or with the rule asked for."""

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
        """The same method and rule in the same setting, where this cell has a guard and that one none."""

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
        """The runs that plots show: the finished ones, or all of them while none is."""
        return self.finished or list(self.runs.values())

    def spread(self, number: Callable[[LoadedRun], float]) -> Spread | None:
        """A number of the finished runs."""
        return Spread.of({run.seed: number(run) for run in self.finished})

    @cached_property
    def accuracy(self) -> Spread | None:
        """Mean over clients of each client's accuracy on its own tests in the last round, in percent."""
        return self.spread(lambda run: 100 * run.metric(OWN.key))

    @cached_property
    def difference(self) -> Difference | None:
        """To the base, in points."""
        return Difference.between(self.accuracy, self.base.accuracy) if self.base is not None else None

    # Against training alone.

    def alone(self, run: LoadedRun) -> dict[int, float]:
        """Accuracy of each client alone: as the run noted it, or from the Local of the same seed; empty if neither."""
        noted = run.result.transfer if run.result is not None else None
        if noted is not None:
            joined = run.by_client(OWN.key)
            return {client: joined[client] - gain for client, gain in noted.gain.items() if client in joined}
        local = self.setting.local
        other = local.runs.get(run.seed) if local is not None and not self.local else None
        return other.by_client(OWN.key) if other is not None and other.finished else {}

    def transfer(self, run: LoadedRun) -> Transfer | None:
        """What joining changed for each client so far; ``None`` where nobody knows how they do alone."""
        noted = run.result.transfer if run.result is not None else None
        return noted if noted is not None else transfer(run.by_client(OWN.key), self.alone(run))

    @cached_property
    def transfers(self) -> dict[int, Transfer]:
        """Of the finished runs, by seed."""
        found = {run.seed: self.transfer(run) for run in self.finished}
        return {seed: known for seed, known in found.items() if known is not None and known.gain}

    @cached_property
    def gain(self) -> Difference | None:
        """Mean over clients of what they gain over training alone, in points."""
        means = {seed: sum(known.gain.values()) / len(known.gain) for seed, known in self.transfers.items()}
        return Difference.of(Spread.of({seed: 100 * mean for seed, mean in means.items()}))

    @cached_property
    def balance(self) -> Balance | None:
        """How many clients gain and which are harmed."""
        tables = {seed: self.runs[seed].partition for seed in self.transfers}
        known = [table for table in tables.values() if table is not None]
        all_known = len(known) == len(tables)
        drawn = all_known and all(table.tests_drawn for table in known)
        shares = {float(self.runs[seed].options["test_share"]) for seed in tables} if drawn else set()
        return Balance.of(
            self.transfers,
            same_clients=all_known and all(table == known[0] for table in known),  # client 3 is the same in all seeds
            names={seed: table.client_names for seed, table in tables.items() if table is not None},
            test_share=shares.pop() if len(shares) == 1 else None,
        )


@dataclass(eq=False)
class Setting:
    """The conditions that methods are compared under: data, partition, model, rounds and all the rest."""

    options: Flat
    label: str
    cells: list[Cell] = field(default_factory=list)

    @property
    def local(self) -> Cell | None:
        return next((cell for cell in self.cells if cell.local), None)

    @property
    def local_on(self) -> Literal["all", "train"]:
        """Whether Local learns from a client's validation samples too, or nobody has any."""
        held_out = any(run.options.get("val_share") for cell in self.cells for run in cell.runs.values())
        return "train" if held_out and self.options.get("local_on") != "all" else "all"

    @property
    def noted_local(self) -> Spread | None:
        """Mean accuracy of the clients alone, in percent, as the finished runs noted it."""
        noted: dict[int, float] = {}
        for cell in self.cells:
            for seed, known in cell.transfers.items():
                noted.setdefault(seed, 100 * known.local)
        return Spread.of(dict(sorted(noted.items())))
