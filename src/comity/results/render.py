"""The forms of a table for terminals, papers and programs."""

import csv as csv_module
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from comity.results.conditions import show
from comity.results.table import KEPT, Block, Column, Table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table as RichTable


def markdown(table: Table) -> str:
    parts = []
    for block in table.blocks:
        rows = [_headings(table.shown), *(line.texts(table.shown) for line in block.lines)]
        escaped = [" | ".join(text.replace("|", "\\|") for text in row) for row in rows]
        ruler = " | ".join(["---", *["---:"] * (len(rows[0]) - 1)])
        lines = [f"| {row} |" for row in (escaped[0], ruler, *escaped[1:])]
        parts.append("\n".join(([f"**{block.title}**", ""] if block.title else []) + lines))
    return "\n\n".join([*parts, *table.notes]) + "\n"


def csv(table: Table) -> str:
    rows = [(block.options | line.options, line) for block in table.blocks for line in block.lines]
    keys = list(dict.fromkeys(key for options, _ in rows for key in options))
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    names = [name for column in table.columns for name in (column.name, *(f"{column.name} {p}" for p in column.parts))]
    writer.writerow([*keys, "method", "rule", "seeds", *names])
    for options, line in rows:
        row: list[Any] = [show(options[key]) if key in options else "" for key in keys]
        row += [line.method, line.rule, " ".join(map(str, line.seeds))]
        for column in table.columns:
            entry = line.entries[column.name]
            row += [entry.value, *(entry.parts or [None] * len(column.parts))]
        writer.writerow(row)
    return text.getvalue()


def _headings(columns: Sequence[Column]) -> list[str]:
    return ["", *(column.heading for column in columns)]


# LaTeX.

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


def latex(table: Table) -> str:
    headings = [_latex(heading) for heading in _headings(table.shown)]
    lines = [f"% {note}" for note in ("needs \\usepackage{booktabs}", *table.notes)]
    lines += [f"\\begin{{tabular}}{{l{'r' * len(table.shown)}}}", "\\toprule", " & ".join(headings) + " \\\\"]
    for block in table.blocks:
        lines.append("\\midrule")
        if block.title:
            lines.append(f"\\multicolumn{{{len(headings)}}}{{l}}{{\\emph{{{_latex(block.title)}}}}} \\\\")
        for line in block.lines:
            name, *texts = map(_latex, line.texts(table.shown))
            lines.append(" & ".join([f"\\quad {name}" if line.under else name, *texts]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _latex(text: str) -> str:
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)


# A terminal.

_STYLES = {"gain": "green", "loss": "red", "noise": "dim", "one seed": "dim", "best": "bold"}


def terminal(table: Table, console: "Console", options: "ConsoleOptions") -> "RenderResult":
    from rich.measure import Measurement
    from rich.text import Text

    def width(columns: Sequence[Column]) -> int:
        unbound = options.update(width=1000)
        drawn = (_drawn(block, columns) for block in table.blocks)
        return max((Measurement.get(console, unbound, block).maximum for block in drawn), default=0)

    kept = list(table.shown)
    droppable = [column for column in kept if column.name not in KEPT]
    while droppable and width(kept) > options.max_width:
        kept.remove(droppable.pop())
    for block in table.blocks:
        yield _drawn(block, kept)
        yield Text()
    for note in table.notes:
        yield Text(note, style="dim")
    if dropped := [column.heading for column in table.shown if column not in kept]:
        yield Text(f"Too narrow for: {', '.join(dropped)}.", style="dim")


def _drawn(block: Block, columns: Sequence[Column]) -> "RichTable":
    from rich.box import SIMPLE
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(
        title=block.title or None,
        title_justify="left",
        title_style="bold",
        box=SIMPLE,
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
    )
    drawn.add_column("", overflow="fold")  # rather a name on two lines than a number that is cut off
    for column in columns:
        drawn.add_column(column.heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for i, line in enumerate(block.lines):
        texts = [Text(str(e), style=_STYLES.get(e.mark, "")) for e in (line.entries[c.name] for c in columns)]
        last = i + 1 == len(block.lines) or not block.lines[i + 1].under
        drawn.add_row(Text(f"  {line.name}" if line.under else line.name), *texts, end_section=last)
    return drawn
