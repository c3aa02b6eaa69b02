"""The table of a study: who does better than the plain mean, who is harmed, and whether it is more than noise.

A table consists of entries that are complete by themselves. Its forms (on a terminal, in Markdown, LaTeX and CSV, and
on the page of the report) show the same entries.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from comity._errors import unknown
from comity.config import LOCAL, MEAN
from comity.results import schema
from comity.results.conditions import Flat
from comity.results.harm import HarmedClient
from comity.results.run import LoadedRun
from comity.results.statistics import Difference, Spread
from comity.results.study import Cell, LoadedStudy, Setting
from comity.results.words import number

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Mark = Literal["", "gain", "loss", "noise", "one seed", "best"]


@dataclass(frozen=True)
class Entry:
    """One number of the table: as people see it, as programs read it, and what it says of itself on hovering."""

    text: str = "–"
    small: str = ""
    """What qualifies the text: its spread, its interval, or what it is a part of."""
    value: float | None = None
    parts: tuple[float | str | None, ...] = ()
    """What CSV has beside the value, in the order of the column's parts."""
    mark: Mark = ""
    title: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.small}".rstrip()


NOTHING = Entry()


# Columns.


@dataclass(frozen=True, kw_only=True)
class Column:
    name: str
    """In CSV, and for choosing columns."""
    heading: str
    meaning: str
    unit: str = ""
    digits: int = 0
    shown: Literal["always", "page", "asked"] = "always"
    """CSV has every column. The page also has those that would make a terminal too narrow."""
    parts: ClassVar[tuple[str, ...]]
    """What CSV has of it beside the value."""

    def entry(self, cell: Cell) -> Entry:
        raise NotImplementedError

    def number(self, value: float, *, sign: bool = False) -> str:
        """A value in this column's digits, for sentences that speak of it."""
        return number(value, self.digits, sign=sign)


@dataclass(frozen=True, kw_only=True)
class SpreadColumn(Column):
    """A number of each finished run: its mean over seeds, with the standard deviation."""

    of: Callable[[LoadedRun, Cell], float]
    """NaN where a run has no such number."""
    with_std: bool = False
    """Whether people see the standard deviation too."""
    parts: ClassVar[tuple[str, ...]] = ("std",)

    def spread(self, cell: Cell) -> Spread | None:
        return cell.spread(lambda run: self.of(run, cell))

    def entry(self, cell: Cell) -> Entry:
        return self.entry_of(self.spread(cell))

    def entry_of(self, spread: Spread | None) -> Entry:
        if spread is None:
            return NOTHING
        std = spread.std
        small = f"± {self.number(std)}" if self.with_std and std is not None else ""
        return Entry(self.number(spread.mean), small, spread.mean, (std,))


@dataclass(frozen=True, kw_only=True)
class DifferenceColumn(Column):
    """A difference that is paired by seed, with its 95 % confidence interval."""

    of: Callable[[Cell], Difference | None]
    parts: ClassVar[tuple[str, ...]] = ("low", "high", "verdict")

    def entry(self, cell: Cell) -> Entry:
        difference = self.of(cell)
        if difference is None:
            return NOTHING
        mean, verdict = difference.mean, difference.verdict
        parts = (difference.low, difference.high, verdict)
        if difference.low is None or difference.high is None:
            title = "One seed cannot tell a difference from noise"
            return Entry(self.number(mean, sign=True), "(one seed)", mean, parts, verdict, title)
        arrow = {"gain": "↑", "loss": "↓"}.get(verdict)
        text = f"{arrow} {self.number(abs(mean))}" if arrow else f"≈ {self.number(mean)}"
        low, high = self.number(difference.low), self.number(difference.high)
        title = f"95 % interval from {low} to {high} points, {difference.seeds} paired seeds"
        title += ": inside the noise" if verdict == "noise" else ""
        return Entry(text, f"[{low}, {high}]", mean, parts, verdict, title)


@dataclass(frozen=True, kw_only=True)
class CountColumn(Column):
    """How many of how many clients."""

    of: Callable[[Cell], tuple[int, int, str] | None]
    """How many, of how many, and who they are."""
    bad: bool = False
    parts: ClassVar[tuple[str, ...]] = ("of",)

    def entry(self, cell: Cell) -> Entry:
        counted = self.of(cell)
        if counted is None:
            return NOTHING
        count, whole, who = counted
        return Entry(f"{count}", f"of {whole}", count, (whole,), "loss" if self.bad and count else "", who)


def _percent(name: str, how: str = "mean") -> Callable[[LoadedRun, Cell], float]:
    return lambda run, _: 100 * run.metric(name, how)


def _best(run: LoadedRun, _: Cell) -> float:
    """Only where validation chose it: chosen by test it compares nothing."""
    best = run.result.best if run.result is not None else None
    return 100 * best.metrics[schema.OWN].mean if best is not None and best.chosen_by == "validation" else math.nan


def _relative(run: LoadedRun, cell: Cell) -> float:
    return 100 * cell.transfers[run.seed].relative_accuracy if run.seed in cell.transfers else math.nan


def _gaining(cell: Cell) -> tuple[int, int, str] | None:
    return (cell.balance.gaining, cell.balance.clients, "") if cell.balance is not None else None


def _harmed(cell: Cell) -> tuple[int, int, str] | None:
    if cell.balance is None:
        return None
    return len(cell.balance.harmed), cell.balance.clients, _named(cell.balance.harmed)


def _named(harmed: Sequence[HarmedClient], most: int = 12) -> str:
    names = ", ".join(f"{harm} (−{harm.loss})" for harm in harmed[:most])
    more = f" and {len(harmed) - most} more" if len(harmed) > most else ""
    return f"Clients {names}{more}" if harmed else "Nobody"


def _conflict(run: LoadedRun, _: Cell) -> float:
    rate = run.result.conflict_rate if run.result is not None else None
    return math.nan if rate is None else 100 * rate


def _megabytes(run: LoadedRun, _: Cell) -> float:
    return (run.result.bytes_per_round.down + run.result.bytes_per_round.up) / 1e6 if run.result else math.nan


def _seconds(run: LoadedRun, _: Cell) -> float:
    return (run.result.seconds.train + run.result.seconds.aggregate) / run.result.last.round if run.result else math.nan


ACCURACY = SpreadColumn(
    name="accuracy",
    heading="accuracy",
    unit="%",
    digits=2,
    with_std=True,
    of=_percent(schema.OWN),
    meaning="Mean over clients of the accuracy on their own tests in the last round, ± standard deviation over seeds",
)
DIFFERENCE = DifferenceColumn(
    name="difference",
    heading=f"difference to {MEAN}",
    unit="points",
    digits=2,
    of=lambda cell: cell.difference,
    meaning="Points of accuracy more than the same method with the plain mean, paired by seed, with a 95 % interval; "
    "≈ and grey where the interval holds zero",
)
WORST = SpreadColumn(
    name="worst10",
    heading="worst tenth",
    unit="%",
    digits=1,
    with_std=True,
    of=_percent(schema.OWN, "worst10"),
    meaning="Mean accuracy of the tenth of the clients that do worst",
)
GAIN = DifferenceColumn(
    name="gain",
    heading="gain over Local",
    unit="points",
    digits=2,
    shown="page",
    of=lambda cell: cell.gain,
    meaning="Points of accuracy more than when each client trains alone, mean over clients, with a 95 % interval",
)
GAINING = CountColumn(
    name="gaining",
    heading="clients that gain",
    of=_gaining,
    meaning="Clients that do better than alone (positive transfer); of the clients of all seeds where each seed has a "
    "partition of its own",
)
HARMED = CountColumn(
    name="harmed",
    heading="clients harmed",
    of=_harmed,
    bad=True,
    meaning="Clients that do worse than alone; of the clients of all seeds where each seed has a partition of its own",
)
CONFLICT = SpreadColumn(
    name="conflict",
    heading="conflict",
    unit="%",
    of=_conflict,
    meaning="Share of pairs of clients whose updates have a negative cosine, mean over layers and rounds",
)
COLUMNS: tuple[Column, ...] = (
    ACCURACY,
    DIFFERENCE,
    SpreadColumn(
        name="best",
        heading="best round",
        unit="%",
        digits=2,
        with_std=True,
        of=_best,
        meaning="Accuracy in the best round, where validation chose that round",
    ),
    WORST,
    GAIN,
    SpreadColumn(
        name="relative",
        heading="relative to Local",
        unit="%",
        digits=1,
        with_std=True,
        of=_relative,
        meaning="Relative accuracy: mean over clients of (accuracy − alone) / alone",
    ),
    GAINING,
    HARMED,
    CONFLICT,
    SpreadColumn(
        name="MB",
        heading="MB a round",
        digits=2,
        of=_megabytes,
        meaning="Megabytes sent and received by all clients of a round together",
    ),
    SpreadColumn(
        name="seconds",
        heading="s a round",
        digits=2,
        of=_seconds,
        meaning="Seconds of training and aggregation on the machine that it ran on",
    ),
    *(
        SpreadColumn(
            name=name,
            heading=heading,
            unit="%",
            digits=2,
            with_std=True,
            shown="asked",
            of=_percent(metric),
            meaning=meaning,
        )
        for name, heading, metric, meaning in (
            ("S-acc", "S-acc", schema.SOME, "Accuracy on the clients' own tests and those of some others"),
            ("G-acc", "G-acc", schema.ALL, "Accuracy on everybody's tests"),
            ("global", "common model", schema.COMMON, "Accuracy of the common model on the clients' own tests"),
        )
    ),
)
KEPT = (ACCURACY.name, DIFFERENCE.name, HARMED.name)
"""What a narrow terminal shows in any case."""


# The table.


@dataclass(frozen=True)
class Line:
    """One method with one rule."""

    method: str
    rule: str
    """Empty where no rule can be chosen: for Local, and for methods that bring their own."""
    seeds: list[int]
    entries: dict[str, Entry]
    """By column."""
    options: Flat = field(default_factory=dict)
    """Options of method and rule that other lines have otherwise."""
    under: bool = False
    """Whether this line stands under that of the same method with its base."""
    remark: str = ""
    """“2 of 3 seeds”."""
    cell: Cell | None = None
    """``None`` for Local as other runs noted it."""

    @property
    def local(self) -> bool:
        return self.cell is None or self.cell.local

    @property
    def label(self) -> str:
        """Complete by itself."""
        return f"{self.method} + {self.rule}" if self.rule else self.method

    @property
    def name(self) -> str:
        """Where lines of the same method stand under each other."""
        name = f"+ {self.rule}" if self.under else self.method if self.rule == MEAN else self.label
        return f"{name} ({self.remark})" if self.remark else name

    def texts(self, columns: Sequence[Column]) -> list[str]:
        return [self.name, *(str(self.entries[column.name]) for column in columns)]


@dataclass(frozen=True)
class Block:
    """Lines under the same conditions; ``options`` are those that other blocks have otherwise."""

    setting: Setting
    options: Flat
    lines: list[Line]

    @property
    def title(self) -> str:
        return self.setting.label


@dataclass(frozen=True)
class Table:
    blocks: list[Block]
    columns: tuple[Column, ...]
    """Those that have a number somewhere."""
    legend: list[str]
    """How to read it."""
    remarks: list[str]
    """What a reader must know of these runs."""

    @classmethod
    def of(cls, study: LoadedStudy) -> "Table":
        """Of the finished runs."""
        heading = f"difference to {study.base_label}"
        columns = tuple(replace(column, heading=heading) if column is DIFFERENCE else column for column in COLUMNS)
        made = [Block(s, study.varying.of(s.options), _lines(s, study)) for s in study.settings]
        blocks = [block for block in made if block.lines]
        lines = [line for block in blocks for line in block.lines]
        used = tuple(column for column in columns if any(line.entries[column.name] != NOTHING for line in lines))
        remarks = [study.base_remark] if study.base_remark else []
        if study.unfinished:
            total = len(study.runs) + study.waiting
            are = "is" if study.unfinished == 1 else "are"
            remarks.append(f"{study.unfinished} of {total} runs {are} not finished and not in the table.")
        return cls(blocks, used, _legend(lines, study.base_label), remarks)

    @property
    def lines(self) -> list[Line]:
        return [line for block in self.blocks for line in block.lines]

    @property
    def notes(self) -> list[str]:
        return [*self.legend, *self.remarks]

    def only(self, names: Sequence[str]) -> "Table":
        """With these columns, by their names in CSV; accuracy and its difference come first in any case."""
        known = {column.name: column for column in (*COLUMNS, *self.columns)}
        for name in names:
            if name not in known:
                raise unknown("column", name, known)
        first = [column.name for column in self.columns if column.name in (ACCURACY.name, DIFFERENCE.name)]
        chosen = [known[name] for name in dict.fromkeys((*first, *names))]
        return replace(self, columns=tuple(replace(column, shown="always") for column in chosen))

    @property
    def shown(self) -> list[Column]:
        """The columns of the forms for people."""
        return [column for column in self.columns if column.shown == "always"]

    @property
    def on_page(self) -> list[Column]:
        return [column for column in self.columns if column.shown != "asked"]

    # Its forms.

    def markdown(self) -> str:
        from comity.results.render import markdown

        return markdown(self)

    def latex(self) -> str:
        """A booktabs ``tabular``; the notes as comments above it."""
        from comity.results.render import latex

        return latex(self)

    def csv(self) -> str:
        """One row a line, in full precision."""
        from comity.results.render import csv

        return csv(self)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """In colour; the last columns are left out where the terminal is too narrow for them."""
        from comity.results.render import terminal

        return terminal(self, console, options)

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()


def _lines(setting: Setting, study: LoadedStudy) -> list[Line]:
    cells = [cell for cell in setting.cells if cell.finished]
    most = max((len(cell.finished) for cell in study.cells), default=0)
    best = max((cell.accuracy.mean for cell in cells if cell.accuracy and not cell.local), default=math.nan)
    lines = []
    for cell in cells:
        entries = {column.name: column.entry(cell) for column in COLUMNS}
        if not cell.local and cell.accuracy is not None and cell.accuracy.mean == best:
            entries[ACCURACY.name] = replace(entries[ACCURACY.name], mark="best")
        seeds = [run.seed for run in cell.finished]
        lines.append(
            Line(
                cell.method_label,
                cell.rule_label if cell.rule else "",
                seeds,
                entries,
                study.varying.of(cell.options, "method", "rule"),
                under=cell.base is not None and bool(cell.base.finished),
                remark=f"{len(seeds)} of {most} seeds" if len(seeds) < most else "",
                cell=cell,
            )
        )
    if lines and not any(line.local for line in lines) and (noted := setting.noted_local):
        entries = {column.name: NOTHING for column in COLUMNS} | {ACCURACY.name: ACCURACY.entry_of(noted)}
        lines.insert(0, Line(LOCAL, "", list(noted.by_seed), entries))
    return lines


def _legend(lines: list[Line], base: str) -> list[str]:
    seeds = sorted({seed for line in lines for seed in line.seeds})
    legend = []
    if len(seeds) == 1:
        legend.append(f"One seed ({seeds[0]}): no standard deviation and no interval; a difference may be noise.")
    elif seeds:
        legend.append(
            f"Mean ± standard deviation over {len(seeds)} seeds ({', '.join(map(str, seeds))}). Differences to {base} "
            "are paired by seed, with a 95 % confidence interval (Student's t); ≈: the interval holds 0, so the "
            "difference is inside the noise."
        )
    legend.append(
        "Accuracy: mean over clients of each client's model on its own tests, last round, in percent; differences in "
        "points. Relative to Local: mean over clients of (accuracy − Local) / Local. Clients harmed: those that do "
        "worse than alone, of the clients of all seeds where each seed has a partition of its own. Seconds: training "
        "and aggregation."
    )
    return legend
