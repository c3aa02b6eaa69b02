"""One row per client, as text, HTML and CSV."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from comity._words import capital, counted, csv_cell, markdown_cell, number
from comity.compare.harm import ClientRow, by_client
from comity.compare.notebook import frame_of, html_table
from comity.metrics import CONSTANT, DECIDING, Metric
from comity.results import TEST_SAMPLES, TRAINING_SAMPLES, Newcomers, Result

if TYPE_CHECKING:
    import pandas
    from rich.console import Console, ConsoleOptions, RenderResult

HEADINGS = ("client", "samples", "local → joined", "gain [95 % CI]", "state")
WRAPPED = ("client", "state")  # columns that may wrap in a narrow terminal
DROPPED = ("samples", "local → joined")  # columns that a narrow terminal hides, in this order
MOST_ROWS = 20  # maximum number of rows in a terminal; the others are counted


@dataclass(frozen=True)
class ClientTable:
    """The clients of one configuration, those with a significant loss first."""

    title: str
    rows: Sequence[ClientRow]
    metric: Metric
    added: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """Further columns before the state: by heading, the text of each client."""

    @classmethod
    def of_result(cls, title: str, result: Result | Newcomers, names: Sequence[str] = ()) -> "ClientTable | None":
        """The table of one run; ``None`` if it has no local baseline."""
        transfer = result.transfer
        if transfer is None:
            return None
        metric = DECIDING[transfer.metric]
        keys = (metric.key, TRAINING_SAMPLES, TEST_SAMPLES, CONSTANT.key)
        values, train, tests, constant = (by_client(result.clients, key) for key in keys)
        rows = [
            ClientRow(
                client=client,
                seed=None,
                name=names[client] if client < len(names) else "",
                train=train[client],
                tests=int(tests[client]),
                value=values[client],
                local=values[client] - metric.sign * each.gain,
                gain=each.gain,
                low=each.low,
                high=each.high,
                state=each.state,
                detectable=math.inf if math.isnan(each.detectable) else each.detectable,
                constant=constant.get(client) == 1,
            )
            for client, each in transfer.clients.items()
        ]
        return cls(title, sorted(rows, key=lambda row: row.place), metric)

    def texts(self, row: ClientRow) -> tuple[str, ...]:
        """The cells of one row, in the order of ``headings``."""
        metric = self.metric
        digits = 1 if metric.unit == "%" else metric.digits
        unit = " %" if metric.unit == "%" else ""
        value, local = (number(metric.points * each, digits) for each in (row.value, row.local))
        gain, low, high = (number(metric.points * each, digits, sign=True) for each in (row.gain, row.low, row.high))
        known = math.isfinite(row.low) and math.isfinite(row.high)
        return (
            str(row),
            f"{row.train:.0f} + {row.tests}",
            f"{local} → {value}{unit}",
            f"{gain} [{low}, {high}]" if known else gain,
            *(column.get(row.client, "–") for column in self.added.values()),
            self.state(row),
        )

    @property
    def headings(self) -> tuple[str, ...]:
        return *HEADINGS[:-1], *self.added, HEADINGS[-1]

    def state(self, row: ClientRow) -> str:
        """“undecided (≥ 12)”: an undecided client, with the smallest loss that its tests would detect."""
        if row.state != "undecided":
            return row.state
        if not math.isfinite(row.detectable):
            return "undecided (too few tests)"
        digits = 0 if self.metric.unit == "%" else self.metric.digits - 1
        return f"undecided (≥ {number(self.metric.points * row.detectable, digits)})"

    @property
    def note(self) -> str:
        return self.note_without(())

    def note_without(self, hidden: Sequence[str]) -> str:
        """The note below the table, without the ``hidden`` columns."""
        points = " in points" if self.metric.unit == "%" else ""
        samples = "Samples: training + test; with cross-validation, training of one fold + test of all folds. "
        words = "" if "samples" in hidden else samples
        words += f"{capital(self.metric.label)}, and gain{points}."
        if any(row.state == "undecided" for row in self.rows):
            words += " (≥ …): the smallest loss that these tests would detect (power 80 %)."
        return f"{words} Hidden, because the terminal is too narrow: {', '.join(hidden)}." if hidden else words

    # Output formats.

    def markdown(self) -> str:
        ruler = f"|---|{'---:|' * (len(self.headings) - 2)}---|"
        rows = [" | ".join(map(markdown_cell, self.texts(row))) for row in self.rows]
        lines = [f"| {' | '.join(self.headings)} |", ruler, *(f"| {row} |" for row in rows)]
        return "\n".join([*([f"**{markdown_cell(self.title)}**", ""] if self.title else []), *lines]) + "\n"

    def _repr_html_(self) -> str:
        return html_table(self.headings, list(map(self.texts, self.rows)), self.title, self.note)

    def frame(self) -> "pandas.DataFrame":
        """A data frame with one named row per client, in full precision."""
        return frame_of(clients_csv([self]), ["configuration", "name"])

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.box import SIMPLE
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(
            title=Text(self.title) if self.title else None,
            title_justify="left",
            title_style="bold",
            box=SIMPLE,
            padding=(0, 1, 0, 0),
        )
        drawn.pad_edge = drawn.show_edge = False
        shown = self.rows[:MOST_ROWS]
        texts = list(map(self.texts, shown))
        columns = {heading: [row[i] for row in texts] for i, heading in enumerate(self.headings)}
        hidden = []
        for heading in DROPPED:  # rather than cut off a number or fold names letter by letter
            if sum(_narrowest(*column) for column in columns.items()) > options.max_width:
                hidden.append(heading)
                del columns[heading]
        wide = sum(2 + max(map(len, [heading, *cells])) for heading, cells in columns.items()) <= options.max_width
        for heading in columns:
            side: Literal["left", "right"] = "left" if heading in WRAPPED else "right"
            short = heading if wide or heading in HEADINGS else heading.replace(" ", "\n")
            drawn.add_column(short, justify=side, no_wrap=heading not in WRAPPED, overflow="fold", vertical="bottom")
        styles = {"worse": "red", "not worse": "green", "undecided": "dim"}
        for row, (*cells, state) in zip(shown, zip(*columns.values(), strict=True), strict=True):
            drawn.add_row(*map(Text, cells), Text(state, style=styles[row.state]))
        yield drawn
        if len(self.rows) > MOST_ROWS:
            yield Text(f"… and {counted(len(self.rows) - MOST_ROWS, 'more client')}.", style="dim")
        yield Text(self.note_without(hidden), style="dim")


def _narrowest(heading: str, cells: Sequence[str]) -> int:
    """Characters that a column needs in a terminal, including the gap after it."""
    texts = [heading, *cells] if heading in HEADINGS else [*heading.split(), *cells]  # added headings are on two lines
    return 2 + max(map(len, " ".join(texts).split() if heading in WRAPPED else texts))


def clients_csv(tables: Sequence[ClientTable]) -> str:
    """One row per client and configuration, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["configuration", *ClientRow.__dataclass_fields__])
    rows = ((table.title, *vars(row).values()) for table in tables for row in table.rows)
    writer.writerows([*map(csv_cell, row)] for row in rows)
    return text.getvalue()
