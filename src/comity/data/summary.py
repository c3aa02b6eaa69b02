"""Summary of a federation as a table for the terminal."""

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from comity.data._dataset import Ints
from comity.data.federation import Federation

MOST_COLUMNS = 12  # classes up to which each gets a column
MOST_ROWS = 40  # clients up to which all are listed


def describe(federation: Federation) -> Table:
    """Clients × classes as a rich table; with many classes, a summary of each client's sizes and classes."""
    counts = federation.counts
    sizes, held = counts.sum(1), (counts > 0).sum(1)
    splits = {split: federation.count(split).sum(1) for split in ("train", "val", "test")}
    splits = {split: size for split, size in splits.items() if size.any()}
    wide = federation.classes <= MOST_COLUMNS
    table = Table(
        title=escape(f"{federation.name} · {federation.partition} · seed {federation.seed}"),
        caption=f"{sizes.sum():,} samples; per client {_span(sizes)}, {_span(held)} of {federation.classes} classes",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in ("client", *splits, *(federation.class_names if wide else ("classes", "largest", "share"))):
        table.add_column(escape(column), justify="right")
    shown = len(counts) if len(counts) <= MOST_ROWS else MOST_ROWS // 2
    for client, row in enumerate(counts[:shown]):
        cells = [escape(federation.client_names[client]), *(_short(size[client]) for size in splits.values())]
        if wide:
            styles = ["bold cyan" if count == row.max() else "" if count else "dim" for count in row]
            table.add_row(*cells, *(Text(_short(n) if n else "·", style) for n, style in zip(row, styles, strict=True)))
        else:
            largest = f"class {escape(federation.class_names[row.argmax()])}"
            table.add_row(*cells, str(held[client]), largest, f"{row.max() / row.sum():.0%}")
    if shown < len(counts):
        table.add_row("…", style="dim")
    if wide:
        table.add_section()
        totals = (*(size.sum() for size in splits.values()), *counts.sum(0))
        table.add_row("all", *map(_short, totals), style="bold")
    return table


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"


def _span(values: Ints) -> str:
    low, middle, high = int(values.min()), int(np.median(values)), int(values.max())
    return str(low) if low == high else f"{low}–{high} (median {middle})"
