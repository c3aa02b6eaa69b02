"""The table of a study: which configurations are better than the plain mean, which harm clients, and how surely.

A table consists of self-contained entries. All formats (terminal, Markdown, LaTeX, CSV, report page) show the same
entries.
"""

import csv
import html
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from comity._errors import one_line, unknown
from comity._labels import titled
from comity._words import MOST_LISTED, counted, csv_cell, listed, markdown_cell
from comity.compare.cells import Cell, Setting
from comity.compare.columns import CLIENTS, COLUMNS, DIFFERENCE, GAIN, NOTHING, VALUES, WORST, Column, Entry, columns_of
from comity.compare.harm import mean_gain, training_luck
from comity.compare.notebook import frame_of, html_table
from comity.compare.statistics import Difference, Spread
from comity.compare.study import LoadedStudy
from comity.config import BALANCED, LOCAL, MEAN
from comity.metrics import MAJORITY, MIXED
from comity.results import FALL, TUNING, Flat, LoadedRun, Tuned, show

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable

    from comity.compare.evidence import Evidence

MOST_COLUMNS = 7  # in text formats, including names, unless columns are requested
REPEATED = f"{LOCAL}, repeated"
CONTROLS = {
    MAJORITY.label: "knows only a client's class shares",
    REPEATED: "another training seed",
    MIXED.label: "mean prediction of two local models",
}
"""Reference rows beside local training, and what each is."""
ALWAYS_SHOWN = (GAIN.name, CLIENTS.name)  # columns that even a narrow terminal shows, beside the metric that decides


@dataclass(frozen=True)
class TableRow:
    """One configuration: a method with one rule."""

    method: str
    rule: str  # empty if no rule can be chosen: for Local, and for methods with their own rule
    seeds: list[int]
    entries: dict[str, Entry]  # by column
    options: Flat = field(default_factory=dict)  # options of method and rule that differ from other rows
    under: bool = False  # whether this row is shown below the same method with its base
    remark: str = ""  # “2 of 3 seeds”
    cell: Cell | None = None
    """``None`` for a reference: the majority class, the repeated local baseline, two local models mixed."""

    @property
    def local(self) -> bool:
        return self.cell is not None and self.cell.local

    @property
    def label(self) -> str:
        """The full label."""
        return titled(self.method, self.rule)

    @property
    def name(self) -> str:
        """The label in a table in which rows of the same method follow each other."""
        name = f"+ {self.rule}" if self.under else self.method if self.rule == MEAN else self.label
        return f"{name} ({self.remark})" if self.remark else name

    def texts(self, columns: Sequence[Column[Any]]) -> list[str]:
        return [self.name, *(str(self.entries[column.name]) for column in columns)]


@dataclass(frozen=True)
class Block:
    """Rows under the same conditions; ``options`` are those that differ from other blocks."""

    setting: Setting
    options: Flat
    rows: list[TableRow]

    @property
    def title(self) -> str:
        return self.setting.label


@dataclass(frozen=True)
class Table:
    blocks: list[Block]
    columns: tuple[Column[Any], ...]  # columns with at least one number
    legend: list[str]  # how to read the table
    remarks: list[str]  # what a reader must know about these runs
    deciding: list[str] = field(default_factory=list)  # the columns of the metrics that decide

    @classmethod
    def of(cls, study: LoadedStudy) -> "Table":
        """The table of the finished runs."""
        deciding = [VALUES[name] for name in dict.fromkeys(setting.deciding for setting in study.settings)]
        changed: dict[str, Column[Any]] = {each.name: replace(each, shown="always") for each in deciding}
        changed[DIFFERENCE.name] = replace(DIFFERENCE, heading=f"difference to {study.base_label}")
        if any(setting.metric.unit != "%" for setting in study.settings):
            changed[WORST.name] = replace(WORST, unit="")
        columns = tuple(changed.get(column.name, column) for column in columns_of(study.runs))
        columns = tuple(sorted(columns, key=lambda column: column.name not in [each.name for each in deciding]))
        made = [Block(s, study.varying.of(s.options), _rows(s, study, columns)) for s in study.settings]
        blocks = [block for block in made if block.rows]
        rows = [row for block in blocks for row in block.rows]
        kept = {each.name for each in deciding}
        kept |= {column.name for column in columns if any(row.entries[column.name] != NOTHING for row in rows)}
        used = [column for column in columns if column.name in kept]
        shown = [column for column in used if column.shown == "always"]
        for column in shown[MOST_COLUMNS - 1 :]:
            used[used.index(column)] = replace(column, shown="page")
        remarks = [study.base_remark] if study.base_remark else []
        for option in sorted(study.tuned_training):
            remarks += _choices(option, [search for search in study.tuning if search.option == option])
        if study.unfinished:
            total, are = len(study.runs) + study.waiting, "is" if study.unfinished == 1 else "are"
            remarks.append(f"{study.unfinished} of {total} runs {are} not finished and not in the table.")
        jumpy = {cell.label for cell in study.cells for run in cell.finished if run.result and run.result.unstable}
        if jumpy:
            remarks.append(
                f"Unstable training: with {', '.join(sorted(jumpy))} a client's accuracy dropped by more than "
                f"{100 * FALL:.0f} points between evaluations."
            )
        constant = {cell.client_table.title: sum(row.constant for row in cell.clients) for cell in study.cells}
        if any(constant.values()):
            counts = (f"{label}: {counted(count, 'client')}" for label, count in constant.items() if count)
            remarks.append(f"Models that give every test of a client the same class: {', '.join(counts)}.")
        trainers = {run.info.trainer: None for cell in study.cells for run in cell.finished if run.info.trainer}
        if len(trainers) > 1:
            names = ", ".join(one_line(trainer, 40) for trainer in sorted(trainers))
            remarks.append(f"Runs used different trainers: {names}; last digits may differ.")
        remarks += [f"A damaged run is not in the table: {what}" for what in study.damaged.values()]
        return cls(blocks, tuple(used), _legend(study, rows), remarks, [column.name for column in deciding])

    @property
    def rows(self) -> list[TableRow]:
        return [row for block in self.blocks for row in block.rows]

    @property
    def notes(self) -> list[str]:
        return [*self.legend, *self.reference, *self.remarks]

    @property
    def reference(self) -> list[str]:
        """Which Local gains and harm are measured against."""
        words = {"all": "all samples of a client except its tests", "train": "all except tests and validation samples"}
        settings = [block.setting for block in self.blocks]
        compared = [each.local_on for each in settings if any(cell.evidence for cell in each.cells)]
        counts = {kind: compared.count(kind) for kind in dict.fromkeys(compared)}
        return [
            f"Local training, the baseline, uses {words[kind]}"
            + (f" ({count} of {len(compared)} settings)." if len(counts) > 1 else ".")
            for kind, count in counts.items()
        ]

    @property
    def shown(self) -> list[Column[Any]]:
        """The columns of the text formats."""
        return [column for column in self.columns if column.shown == "always"]

    def only(self, names: Sequence[str]) -> "Table":
        """The table with these columns, by CSV name; the metric that decides and its gain always come first."""
        known = {column.name: column for column in (*COLUMNS, *self.columns)}
        for name in names:
            if name not in known:
                raise unknown("column", name, known)
        first = [column.name for column in self.columns if column.name in (*self.deciding, GAIN.name)]
        chosen = [known[name] for name in dict.fromkeys((*first, *names))]
        return replace(self, columns=tuple(replace(column, shown="always") for column in chosen))

    # Output formats; the report's templates contain that of the page.

    def csv(self) -> str:
        """One CSV row per row of the table, in full precision."""
        rows = [(block.options | row.options, row) for block in self.blocks for row in block.rows]
        keys = list(dict.fromkeys(key for options, _ in rows for key in options))
        names = [f"{column.name} {part}".rstrip() for column in self.columns for part in ("", *column.parts)]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*keys, "method", "rule", "seeds", *names])
        for options, row in rows:
            cells: list[Any] = [show(options[key]) if key in options else "" for key in keys]
            cells += [row.method, row.rule, " ".join(map(str, row.seeds))]
            for column in self.columns:
                entry = row.entries[column.name]
                cells += [entry.value, *(entry.parts or [None] * len(column.parts))]
            writer.writerow(map(csv_cell, cells))
        return text.getvalue()

    def markdown(self) -> str:
        parts = []
        for block in self.blocks:
            rows = [self._headings(), *(row.texts(self.shown) for row in block.rows)]
            escaped = [" | ".join(map(markdown_cell, texts)) for texts in rows]
            ruler = " | ".join(["---", *["---:"] * len(self.shown)])
            lines = [f"| {row} |" for row in (escaped[0], ruler, *escaped[1:])]
            parts.append("\n".join(([f"**{markdown_cell(block.title)}**", ""] if block.title else []) + lines))
        return "\n\n".join([*parts, *map(markdown_cell, self.notes)]) + "\n"

    def _headings(self) -> list[str]:
        return ["", *(column.heading for column in self.shown)]

    def _repr_html_(self) -> str:
        blocks = ((block.title, [row.texts(self.shown) for row in block.rows]) for block in self.blocks)
        tables = [html_table(self._headings(), rows, title) for title, rows in blocks]
        return "".join([*tables, *(f"<p><small>{html.escape(note)}</small></p>" for note in self.notes)])

    def frame(self) -> "pandas.DataFrame":
        """One row per configuration, named by method and rule, in full precision."""
        return frame_of(self.csv(), ["method", "rule"])

    def latex(self) -> str:
        """A booktabs ``tabular`` with the notes as comments above it."""
        headings = [_latex(heading) for heading in self._headings()]
        lines = [f"% {note}" for note in ("needs \\usepackage{booktabs}", *self.notes)]
        lines += [f"\\begin{{tabular}}{{l{'r' * len(self.shown)}}}", "\\toprule", " & ".join(headings) + " \\\\"]
        for block in self.blocks:
            lines.append("\\midrule")
            if block.title:
                lines.append(f"\\multicolumn{{{len(headings)}}}{{l}}{{\\emph{{{_latex(block.title)}}}}} \\\\")
            for row in block.rows:
                name, *texts = map(_latex, row.texts(self.shown))
                lines.append(" & ".join([f"\\quad {name}" if row.under else name, *texts]) + " \\\\")
        return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """In colour; the last columns are left out if the terminal is too narrow."""
        from rich.measure import Measurement
        from rich.text import Text

        def width(columns: Sequence[Column[Any]]) -> int:
            unbound = options.update(width=1000)
            drawn = (_rich_table(block, columns) for block in self.blocks)
            return max((Measurement.get(console, unbound, block).maximum for block in drawn), default=0)

        kept = self.shown
        droppable = [column for column in kept if column.name not in (*self.deciding, *ALWAYS_SHOWN)]
        while droppable and width(kept) > options.max_width:
            kept.remove(droppable.pop())
        for block in self.blocks:
            yield _rich_table(block, kept)
            yield Text()
        for note in self.notes:
            yield Text(note, style="dim")
        if dropped := [column.heading for column in self.shown if column not in kept]:
            yield Text(f"Hidden, because the terminal is too narrow: {', '.join(dropped)}.", style="dim")


def _rows(setting: Setting, study: LoadedStudy, columns: Sequence[Column[Any]]) -> list[TableRow]:
    cells = [cell for cell in setting.cells if cell.finished]
    most = max((len(cell.finished) for cell in study.cells), default=0)
    column = VALUES[setting.deciding]
    values = [cell.value.mean for cell in cells if cell.value and not cell.local]
    best = (min if setting.metric.better == "lower" else max)(values, default=math.nan)
    rows = []
    for cell in cells:
        entries = {column.name: column.entry(cell) for column in columns}
        if not cell.local and cell.value and cell.value.mean == best:
            entries[column.name] = replace(entries[column.name], mark="best")
        seeds = [run.seed for run in cell.finished]
        rows.append(
            TableRow(
                cell.method_label,
                cell.rule_label,
                seeds,
                entries,
                study.varying.of(cell.options, "method", "rule"),
                under=cell.base is not None and bool(cell.base.finished),
                remark=f"{len(seeds)} of {most} seeds" if len(seeds) < most else "",
                cell=cell,
            )
        )
    local = sum(row.local for row in rows)
    return [*rows[:local], *_references(setting, columns, any(cell.guarded for cell in cells)), *rows[local:]]


def _references(setting: Setting, columns: Sequence[Column[Any]], guarded: bool) -> list[TableRow]:
    """Reference rows beside local training: the majority class, training luck, and the effect of mixing."""
    metric, column = setting.metric, VALUES[setting.deciding]
    local = setting.local
    repeated = [run for run in setting.repeated.values() if run.finished]
    references: list[tuple[str, list[LoadedRun], str, Mapping[Any, Evidence]]] = [
        (MAJORITY.label, local.finished if local else [], MAJORITY.key, {}),
        (REPEATED, repeated, metric.key, setting.control),
        (MIXED.label, repeated if guarded else [], MIXED.key, setting.mixed),
    ]
    rows = []
    for name, runs, key, evidence in references:
        values = Spread.of({run.seed: metric.points * run.metric(key) for run in runs})
        if values is None:
            continue
        entries = {each.name: NOTHING for each in columns} | {column.name: column.show(values)}
        if evidence:
            mean = mean_gain(evidence, training_luck(setting.control, evidence))
            entries[GAIN.name] = GAIN.by(metric).show(Difference.of(mean, metric.points, len(runs)))
        rows.append(TableRow(name, "", sorted(values.by_seed), entries))
    return rows


def _choices(option: str, searches: Sequence[Tuned]) -> list[str]:
    """The values that validation chose, listed by name if they are few."""
    each = [f"{search.cell} {search.chosen}" for search in searches]
    ends = [search.cell for search in searches if search.at_an_end]
    more = ""
    if len(searches) > MOST_LISTED:
        counts = Counter(search.chosen for search in searches).most_common()
        each = [f"{value} for {counted(count, 'configuration')}" for value, count in counts]
        more = f"; {TUNING} has each"
        ends = [f"{len(ends)} of {len(searches)} configurations"] if ends else []
    words = [f"{option} was chosen by validation: {', '.join(each)}{more}."]
    return words + ([f"A better {option} may lie beyond those that were tried for {listed(ends)}."] if ends else [])


def _legend(study: LoadedStudy, rows: list[TableRow]) -> list[str]:
    if not rows:
        return []
    seeds = sorted({seed for row in rows for seed in row.seeds})
    settings = study.settings
    metrics = listed(dict.fromkeys(setting.metric.label for setting in settings))
    margins = {(setting.metric.points * setting.margin, setting.metric.unit == "%") for setting in settings}
    largest = [f"{margin:g}{' points' if share else ''}" for margin, share in sorted(margins)]
    folds = {run.partition.folds for setting in settings for run in setting.runs if run.partition is not None} - {0}
    chosen = BALANCED in {setting.deciding for setting in settings}
    chosen = chosen and any(run.partition is not None and run.partition.is_uneven for run in study.runs)
    uneven = " (classes are imbalanced)" if chosen else ""
    controls = [f"{row} ({CONTROLS[row]})" for row in dict.fromkeys(row.method for row in rows) if row in CONTROLS]
    over = f"{len(seeds)} seeds" if len(seeds) > 1 else f"One seed ({seeds[0]})"
    folded = f", {min(folds)}-fold cross-validation" if folds else ""
    return [
        f"{over}{folded}. The metric that decides is {metrics}{uneven}: mean over clients, last round"
        + (", ± standard deviation over seeds." if len(seeds) > 1 else "."),
        "Gains and differences have 95 % confidence intervals that account for overlapping tests and random variation "
        "of training. A client is worse if its loss is significant after correction for all clients, and not worse if "
        f"its interval rules out a loss of more than {listed(largest)}.",
        *([f"Controls: {'; '.join(controls)}."] if controls else []),
    ]


_LATEX = {
    "↑": "$\\uparrow$",
    "↓": "$\\downarrow$",
    "≈": "$\\approx$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "−": "$-$",
    "–": "--",
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
} | {character: f"\\{character}" for character in "%&_#${}"}


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


_STYLES = {"gain": "green", "loss": "red", "noise": "dim", "unknown": "dim", "best": "bold"}


def _rich_table(block: Block, columns: Sequence[Column[Any]]) -> "RichTable":
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    look: dict[str, Any] = {"box": SIMPLE, "padding": (0, 1), "pad_edge": False, "show_edge": False}
    drawn = RichTable(
        title=Text(block.title) if block.title else None, title_justify="left", title_style="bold", **look
    )
    drawn.add_column("", overflow="fold")  # a name on two lines rather than a number that is cut off
    for column in columns:
        heading = column.heading.replace(" /", "\N{NO-BREAK SPACE}/")
        entries = (str(row.entries[column.name]) for row in block.rows)
        width = max(map(len, (*entries, *heading.split(" "))))
        wrapped = "\n".join(wrap(heading, width)).replace("\N{NO-BREAK SPACE}", " ")
        drawn.add_column(Text(wrapped), justify="right", no_wrap=True)
    for i, row in enumerate(block.rows):
        texts = [Text(str(e), style=_STYLES.get(e.mark, "")) for e in (row.entries[c.name] for c in columns)]
        following = block.rows[i + 1] if i + 1 < len(block.rows) else None
        last = following is None or not (following.under or following.cell is None)
        drawn.add_row(Text(f"  {row.name}" if row.under else row.name), *texts, end_section=last)
    return drawn
