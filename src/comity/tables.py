"""The table of a study: who is better than Mean, by how much, and whether that is more than noise.

All numbers come from run folders. Runs that differ by their seed alone make a line; options of a method or rule that
vary make more lines, any other option that varies makes a block of its own.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from comity._errors import unknown
from comity.config import COMPONENTS, Config

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable

    from comity.loading import LoadedRun

Flat = dict[str, Any]

SILENT = {f.name for f in fields(Config) if not f.metadata["decides"]} | {"seed"}


def flatten(options: Mapping[str, Any]) -> Flat:
    """What decides the numbers, seeds apart, one entry each: ``rule`` is a name, ``rule.c`` its option."""
    flat: Flat = {}
    for key, value in options.items():
        if key in COMPONENTS and isinstance(value, Mapping):
            flat |= {key if k == "name" else f"{key}.{k}": v for k, v in value.items()}
        elif key not in SILENT:
            flat[key] = value
    return flat


class Varying:
    """What differs among runs, beside method, rule and seed. A component's options count among runs that have it."""

    def __init__(self, flats: Iterable[Flat]) -> None:
        values: dict[tuple[str, Any], set[str]] = {}
        for flat in flats:
            for key in flat:
                values.setdefault(_owned(key, flat), set()).add(repr(flat[key]))
        self._keys = {owned for owned, seen in values.items() if len(seen) > 1 and owned[0] not in ("method", "rule")}

    def of(self, flat: Flat, *components: str) -> Flat:
        """The varying options of these components, or of everything but method and rule."""
        wanted = components or tuple({key.split(".")[0] for key in flat} - {"method", "rule"})
        return {k: v for k, v in flat.items() if k.split(".")[0] in wanted and _owned(k, flat) in self._keys}


def _owned(key: str, flat: Flat) -> tuple[str, Any]:
    component, dot, _ = key.partition(".")
    return key, flat[component] if dot else None


def told(options: Flat) -> str:
    """``{"data": "digits", "partition.alpha": 0.1, "clients": 20}`` as ``digits, alpha=0.1, clients=20``."""
    return ", ".join(_show(v) if k in COMPONENTS else f"{k.split('.')[-1]}={_show(v)}" for k, v in options.items())


def _show(value: Any) -> str:
    return "×".join(map(str, value)) if isinstance(value, (list, tuple)) else "default" if value is None else str(value)


# Statistics.


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    by_seed: Mapping[int, float]

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; one seed has none."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class Gain:
    """A mean difference, paired by seed, with its 95 % confidence interval; one seed has none."""

    mean: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, better: Spread, base: Spread) -> "Gain | None":
        both = [seed for seed in better.by_seed if seed in base.by_seed]
        if not both:
            return None
        difference = Spread({seed: better.by_seed[seed] - base.by_seed[seed] for seed in both})
        if difference.std is None:
            return cls(difference.mean)
        from scipy.special import stdtrit  # Student's quantile; scipy.stats has it too and takes a second to import

        half = float(stdtrit(len(both) - 1, 0.975)) * difference.std / math.sqrt(len(both))
        return cls(difference.mean, difference.mean - half, difference.mean + half)

    @property
    def mark(self) -> str:
        """``≈`` where the interval holds 0, so that nobody can say in which direction it goes."""
        if (self.low is not None and self.high is not None and self.low <= 0 <= self.high) or self.mean == 0:
            return "≈"
        return "↑" if self.mean > 0 else "↓"

    def __str__(self) -> str:
        size = f"{self.mean:.2f}" if self.mark == "≈" else f"{abs(self.mean):.2f}"
        return f"{self.mark} {size}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.low is not None else "")


# Columns.


@dataclass(frozen=True)
class Column:
    name: str
    """In CSV."""
    heading: str
    number: Callable[[Mapping[str, Any]], float | None]
    """From ``result.json``; ``None`` where a run has no such number."""
    digits: int = 1
    spread: bool = False
    """Whether ± is shown; CSV always has it."""
    whole: bool = False
    """Whether it counts something."""
    extra: bool = False
    """Whether it is shown in CSV alone, unless it is asked for."""


def _percent(*path: str) -> Callable[[Mapping[str, Any]], float | None]:
    def number(result: Mapping[str, Any]) -> float | None:
        value: Any = result
        for key in path:
            value = (value or {}).get(key)
        return None if value is None else 100 * value

    return number


def _best(result: Mapping[str, Any]) -> float | None:
    """Only where validation chose it: chosen by test it compares nothing."""
    best = result["best"]
    return 100 * best["eval/L-acc/mean"] if best["chosen by"] == "validation" else None


def _harmed(result: Mapping[str, Any]) -> float | None:
    return float(len(result["transfer"]["harmed"])) if "transfer" in result else None


def _seconds(result: Mapping[str, Any]) -> float:
    return float((result["seconds"]["train"] + result["seconds"]["aggregate"]) / result["last"]["round"])


ACCURACY = Column("accuracy", "accuracy", _percent("last", "eval/L-acc/mean"), 2, True)
COLUMNS = (
    ACCURACY,
    Column("best", "best round", _best, 2, True),
    Column("worst10", "worst 10 %", _percent("last", "eval/L-acc/worst10"), 1, True),
    Column("relative", "relative to Local", _percent("transfer", "relative-accuracy"), 1, True),
    Column("positive", "positive transfer", _percent("transfer", "positive-transfer"), 0),
    Column("harmed", "clients harmed", _harmed, 1, whole=True),
    Column("conflict", "conflict", _percent("conflict-rate"), 0),
    Column("MB", "MB a round", lambda r: (r["bytes a round"]["down"] + r["bytes a round"]["up"]) / 1e6, 2),
    Column("seconds", "s a round", _seconds, 2),
    Column("S-acc", "S-acc", _percent("last", "eval/S-acc/mean"), 2, True, extra=True),
    Column("G-acc", "G-acc", _percent("last", "eval/G-acc/mean"), 2, True, extra=True),
    Column("global", "common model", _percent("last", "eval/global-acc/mean"), 2, True, extra=True),
)

# The table.


@dataclass
class Line:
    """One method with one rule."""

    method: str
    rule: str | None
    """``None`` where the method has none to choose: Local, and methods that bring their own."""
    options: Flat
    """Those of method and rule that other lines have otherwise."""
    results: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    gain: Gain | None = None
    """Over the same method with Mean."""
    head: bool = True
    """Whether this line begins its method, rather than going on under it."""

    @property
    def label(self) -> str:
        if not self.head:
            return f"+ {self.rule}"
        return self.method if self.rule is None or self.rule == "Mean" else f"{self.method} + {self.rule}"

    def spread(self, column: Column) -> Spread | None:
        values = {seed: column.number(result) for seed, result in self.results.items()}
        known = {seed: value for seed, value in values.items() if value is not None}
        return Spread(known) if known else None


@dataclass(frozen=True)
class Block:
    """Lines under the same conditions; ``options`` are those that other blocks have otherwise."""

    options: Flat
    lines: list[Line]

    @property
    def title(self) -> str:
        return told(self.options)


@dataclass(frozen=True)
class Table:
    blocks: list[Block]
    notes: list[str]
    columns: tuple[Column, ...]

    def only(self, names: Sequence[str]) -> "Table":
        """With these columns, by their names in CSV; accuracy comes first in any case."""
        known = {column.name: column for column in COLUMNS}
        for name in names:
            if name not in known:
                raise unknown("column", name, known)
        chosen = [known[name] for name in dict.fromkeys((ACCURACY.name, *names))]
        return replace(self, columns=tuple(replace(column, extra=False) for column in chosen))

    @property
    def _shown(self) -> list[Column]:
        return [column for column in self.columns if not column.extra]

    @classmethod
    def of(cls, runs: Sequence["LoadedRun"], planned: int = 0) -> "Table":
        """The finished ones among ``runs``."""
        done = [run for run in runs if run.finished]
        flats = [_flat(run) for run in done]
        varying = Varying(flats)
        blocks: dict[str, tuple[Flat, dict[tuple[str, str | None], Line]]] = {}
        for run, flat in zip(done, flats, strict=True):
            options = varying.of(flat)
            method = _named(flat["method"], varying.of(flat, "method"))
            rule = _named(flat["rule"], varying.of(flat, "rule")) if "rule" in flat else None
            _, found = blocks.setdefault(repr(options), (options, {}))
            line = found.setdefault((method, rule), Line(method, rule, varying.of(flat, "method", "rule")))
            line.results[run.options["seed"]] = run.result
        made = [Block(options, _under_methods(found.values())) for options, found in blocks.values()]
        lines = [line for block in made for line in block.lines]
        columns = tuple(column for column in COLUMNS if any(line.spread(column) for line in lines))
        return cls(made, _notes(lines, max(planned, len(runs)) - len(done)), columns)

    # For people.

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """In colour; the last columns are left out where the terminal is too narrow for them."""
        from rich.measure import Measurement
        from rich.text import Text

        def width(table: Table) -> int:
            drawn = (table._drawn(block) for block in table.blocks)
            unbound = options.update(width=1000)
            return max((Measurement.get(console, unbound, block).maximum for block in drawn), default=0)

        kept = replace(self, columns=tuple(self._shown))
        while len(kept.columns) > 1 and width(kept) > options.max_width:
            kept = replace(kept, columns=kept.columns[:-1])
        yield from map(kept._drawn, kept.blocks)
        for note in self.notes:
            yield Text(note, style="dim")
        if missing := [column.heading for column in self._shown[len(kept.columns) :]]:
            yield Text(f"Too narrow for: {', '.join(missing)}.", style="dim")

    def _drawn(self, block: Block) -> "RichTable":
        from rich.box import SIMPLE
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(
            title=block.title or None, title_justify="left", title_style="bold", box=SIMPLE, padding=(0, 1)
        )
        for i, heading in enumerate(self._headings()):
            table.add_column(heading.replace(" ", "\n", 1), justify="right" if i else "left", no_wrap=True)
        for i, line in enumerate(block.lines):
            label, accuracy, gain, *others = self._cells(line)
            sure = line.gain is not None and line.gain.low is not None
            colour = {"↑": "green", "↓": "red"}.get(gain[:1], "dim") if sure else "dim"
            ends = i + 1 == len(block.lines) or block.lines[i + 1].head
            label = label if line.head else f"  {label}"
            table.add_row(Text(label), accuracy, Text(gain, style=colour), *others, end_section=ends)
        return table

    def markdown(self) -> str:
        parts = []
        for block in self.blocks:
            rows = [self._headings(), *map(self._cells, block.lines)]
            escaped = [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
            ruler = " | ".join(["---", *["---:"] * (len(rows[0]) - 1)])
            lines = [f"| {row} |" for row in (escaped[0], ruler, *escaped[1:])]
            parts.append("\n".join(([f"**{block.title}**", ""] if block.title else []) + lines))
        return "\n\n".join([*parts, *self.notes]) + "\n"

    def _repr_markdown_(self) -> str:
        """What a notebook shows."""
        return self.markdown()

    def latex(self) -> str:
        """A booktabs ``tabular``; the notes as comments above it."""
        headings = [_latex(heading) for heading in self._headings()]
        lines = [f"% {note}" for note in ("needs \\usepackage{booktabs}", *self.notes)]
        lines += [f"\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", "\\toprule", " & ".join(headings) + " \\\\"]
        for block in self.blocks:
            lines.append("\\midrule")
            if block.title:
                lines.append(f"\\multicolumn{{{len(headings)}}}{{l}}{{\\emph{{{_latex(block.title)}}}}} \\\\")
            for line in block.lines:
                label, *cells = map(_latex, self._cells(line))
                lines.append(" & ".join([label if line.head else f"\\quad {label}", *cells]) + " \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"

    def _headings(self) -> list[str]:
        first, *others = (column.heading for column in self._shown)
        return ["", first, "difference to Mean", *others]

    def _cells(self, line: Line) -> list[str]:
        seeds = max(len(other.results) for block in self.blocks for other in block.lines)
        missing = f" ({len(line.results)} of {seeds} seeds)" if len(line.results) < seeds else ""
        cells = [_number(line.spread(column), column) for column in self._shown]
        return [line.label + missing, cells[0], str(line.gain or ""), *cells[1:]]

    # For programs.

    def csv(self) -> str:
        """One row a line, in full precision; means and standard deviations over seeds."""
        rows = [(block.options | line.options, line) for block in self.blocks for line in block.lines]
        keys = list(dict.fromkeys(key for options, _ in rows for key in options))
        header = [*keys, "method", "rule", "seeds", "difference", "low", "high", "mark"]
        header += [part for column in self.columns for part in (column.name, f"{column.name} std")]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        for options, line in rows:
            row: list[Any] = [_show(options[key]) if key in options else "" for key in keys]
            row += [line.method, line.rule or "", " ".join(map(str, sorted(line.results)))]
            row += [line.gain.mean, line.gain.low, line.gain.high, line.gain.mark] if line.gain else [None] * 4
            for spread in map(line.spread, self.columns):
                row += [spread.mean, spread.std] if spread else [None, None]
            writer.writerow(row)
        return text.getvalue()


def _flat(run: "LoadedRun") -> Flat:
    """Without a rule where the method has none to choose, as its title tells."""
    flat = flatten(run.options)
    alone = run.result["title"] == flat["method"]
    return {key: value for key, value in flat.items() if not (alone and key.split(".")[0] == "rule")}


def _named(name: str, options: Flat) -> str:
    return f"{name} ({told(options)})" if options else name


def _under_methods(lines: Iterable[Line]) -> list[Line]:
    """Local, then each method with Mean first and its other rules under it, compared with Mean."""
    by_method: dict[str, list[Line]] = {}
    for line in lines:
        by_method.setdefault(line.method, []).append(line)
    ordered = []
    for method in sorted(by_method, key=lambda name: name != "Local"):
        mine = sorted(by_method[method], key=lambda line: line.rule is not None and not _is_mean(line.rule))
        base = mine[0].spread(ACCURACY) if mine[0].rule and _is_mean(mine[0].rule) else None
        for line in mine[1:]:
            line.head = base is None
            spread = line.spread(ACCURACY)
            line.gain = Gain.of(spread, base) if base and spread else None
        ordered += mine
    return ordered


def _is_mean(rule: str) -> bool:
    return rule == "Mean" or rule.startswith("Mean (")


def _notes(lines: list[Line], missing: int) -> list[str]:
    seeds = sorted({seed for line in lines for seed in line.results})
    notes = []
    if len(seeds) == 1:
        notes.append(f"One seed ({seeds[0]}): no standard deviation and no interval; a difference may be noise.")
    elif seeds:
        notes.append(
            f"Mean ± standard deviation over {len(seeds)} seeds ({', '.join(map(str, seeds))}). Differences to Mean "
            "are paired by seed, with a 95 % confidence interval (Student's t); ≈: the interval holds 0, so the "
            "difference is inside the noise."
        )
    notes.append(
        "Accuracy: mean over clients of each client's model on its own tests, last round, in percent; differences in "
        "points. Relative to Local: mean over clients of (accuracy - Local) / Local. Seconds: training and aggregation."
    )
    if missing:
        notes.append(f"{missing} runs are not finished and not in this table.")
    return notes


def _number(spread: Spread | None, column: Column) -> str:
    if spread is None:
        return "–"
    mean = f"{spread.mean:.{column.digits}f}"
    if column.whole:
        mean = mean.removesuffix(".0")
    return f"{mean} ± {spread.std:.{column.digits}f}" if column.spread and spread.std is not None else mean


_LATEX = {
    "↑": "$\\uparrow$",
    "↓": "$\\downarrow$",
    "≈": "$\\approx$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "–": "--",
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
} | {character: f"\\{character}" for character in "%&_#${}"}


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
