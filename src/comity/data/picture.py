"""The federation to look at: a table for the terminal, a picture for a page."""

import math
from html import escape
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.markup import escape as escape_markup
from rich.table import Table
from rich.text import Text

from comity.data._dataset import Ints
from comity.data.federation import Federation

MOST_COLUMNS = 12  # classes that still get a column each in the terminal
MOST_ROWS = 40  # clients that are all listed in the terminal
MOST_DRAWN = 400  # clients in a picture


def describe(federation: Federation) -> Table:
    """Clients × classes as a rich table; with many classes, each client's sizes and class mix in short."""
    counts = federation.counts
    sizes, held = counts.sum(1), (counts > 0).sum(1)
    splits = {split: federation.count(split).sum(1) for split in ("train", "val", "test")}
    splits = {split: size for split, size in splits.items() if size.any()}
    wide = federation.classes <= MOST_COLUMNS
    table = Table(
        title=f"{federation.name} · {federation.partition} · seed {federation.seed}",
        caption=f"{sizes.sum():,} samples: {_span(sizes)} a client, in {_span(held)} of {federation.classes} classes",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for column in ("client", *splits, *(federation.class_names if wide else ("classes", "largest", "share"))):
        table.add_column(escape_markup(column), justify="right")
    shown = len(counts) if len(counts) <= MOST_ROWS else MOST_ROWS // 2
    for client, row in enumerate(counts[:shown]):
        cells = [escape_markup(federation.client_names[client]), *(_short(size[client]) for size in splits.values())]
        if wide:
            table.add_row(*cells, *(_cell(count, row) for count in row))
        else:
            table.add_row(
                *cells,
                str(held[client]),
                f"class {escape_markup(federation.class_names[row.argmax()])}",
                f"{row.max() / row.sum():.0%}",
            )
    if shown < len(counts):
        table.add_row("…", style="dim")
    if wide:
        table.add_section()
        table.add_row(
            "all", *(_short(size.sum()) for size in splits.values()), *map(_short, counts.sum(0)), style="bold"
        )
    return table


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.0f}k"


def _cell(count: int, row: Ints) -> Text:
    if not count:
        return Text("·", style="dim")
    return Text(_short(count), style="bold cyan" if count == row.max() else "")


def _span(values: Ints) -> str:
    low, middle, high = int(values.min()), int(np.median(values)), int(values.max())
    return str(low) if low == high else f"{low}–{high} (median {middle})"


STYLE = """
  .page { fill: #ffffff; stroke: #e4e4ea } .ink { fill: #1c1c28 } .soft { fill: #6c6c7d }
  .line { stroke: #ececf2 } .bar { fill: #c9cbdc } .dot { fill-opacity: .82 } .key { fill: #8d90ab }
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; font-size: 11px }
  .title { font-size: 19px; font-weight: 650; letter-spacing: -.2px } .label { font-size: 12px; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #15161d; stroke: #2b2d3a } .ink { fill: #f0f0f6 } .soft { fill: #9a9cb0 }
    .line { stroke: #262834 } .bar { fill: #454961 } .key { fill: #8d90ab }
  }
""".strip()

EDGE = 28  # around everything
LEFT, TOP = 78, 128  # of the first cell
BARS = 120  # the longest bar of a client's size


def draw(federation: Federation, path: str | Path) -> Path:
    """Write the federation as an SVG: a row a client, a column a class, the area of a bubble its samples."""
    counts = federation.counts[:MOST_DRAWN]
    clients, classes = counts.shape
    across = float(np.clip(760 / classes, 6, 46))
    down = float(np.clip(620 / clients, 10, 30))
    # bubbles may touch neighbours of the same client; they never reach far into another client's row
    largest = min(0.62 * down, 0.5 * max(across, down))
    plot_width, plot_height = across * classes, down * clients
    width = LEFT + plot_width + 24 + BARS + 52 + EDGE
    height = TOP + plot_height + 92
    scale = largest / math.sqrt(counts.max())

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img">',
        f"<title>{escape(_headline(federation))}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="12"/>',
        _text(EDGE, 46, _headline(federation), "title ink"),
        _text(EDGE, 68, f"{federation.partition} · seed {federation.seed}", "soft"),
        _text(EDGE, 85, _summary(federation), "soft"),
        *_axes(federation, clients, across, down),
        *_bubbles(federation, counts, across, down, scale),
        *_sizes(counts.sum(1), LEFT + plot_width + 24, down),
        *_key(counts, scale, TOP + plot_height + 62),
        "</svg>",
    ]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    return path


def _headline(federation: Federation) -> str:
    return f"{federation.name}: {len(federation):,} clients × {federation.classes} classes"


def _summary(federation: Federation) -> str:
    counts = federation.counts
    summary = f"{counts.sum():,} samples; {_span(counts.sum(1))} a client, in {_span((counts > 0).sum(1))} classes"
    return summary if len(counts) <= MOST_DRAWN else f"{summary}; the first {MOST_DRAWN} clients drawn"


def _text(x: float, y: float, content: str, kind: str, anchor: str = "start", turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}"{turned}>{escape(content)}</text>'


def _axes(federation: Federation, clients: int, across: float, down: float) -> list[str]:
    classes = federation.classes
    right, bottom = LEFT + across * classes, TOP + down * clients
    parts = [
        _text(LEFT + across * classes / 2, bottom + 38, "class", "label ink", "middle"),
        _text(EDGE + 8, TOP + down * clients / 2, "client", "label ink", "middle", turn=-90),
    ]
    for client in range(clients):
        y = TOP + down * (client + 0.5)
        parts.append(f'<line class="line" x1="{LEFT}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if client % _every(down, 13) == 0:
            parts.append(_text(LEFT - 12, y + 4, _fitting(federation.client_names[client], 11), "soft", "end"))
    for label in range(0, classes, _every(across, 22)):
        name = _fitting(federation.class_names[label], max(3, int(across / 6)))
        parts.append(_text(LEFT + across * (label + 0.5), bottom + 18, name, "soft", "middle"))
    return parts


def _fitting(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _every(step: float, room: float) -> int:
    """Which labels fit: every one, every second, fifth, tenth, ..."""
    return next(every for every in (1, 2, 5, 10, 20, 50, 100, 1000) if every * step >= room)


def _bubbles(federation: Federation, counts: Ints, across: float, down: float, scale: float) -> list[str]:
    parts = []
    radii = np.maximum(0.8, scale * np.sqrt(counts))
    for label in range(counts.shape[1]):
        x = LEFT + across * (label + 0.5)
        parts.append(f'<g class="dot" fill="{_colour(label / counts.shape[1])}">')
        for client in np.flatnonzero(counts[:, label]):
            y = TOP + down * (client + 0.5)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radii[client, label]:.2f}">'
                f"<title>client {escape(federation.client_names[client])}, "
                f"class {escape(federation.class_names[label])}: {counts[client, label]:,}</title></circle>"
            )
        parts.append("</g>")
    return parts


def _sizes(sizes: Ints, left: float, down: float) -> list[str]:
    """Bars beside the rows: how many samples each client has."""
    thick = min(0.56 * down, 11)
    parts = [_text(left, TOP - 12, "samples", "label ink")]
    for client, size in enumerate(sizes):
        y, length = TOP + down * (client + 0.5), BARS * size / sizes.max()
        parts.append(
            f'<rect class="bar" x="{left:.1f}" y="{y - thick / 2:.1f}" width="{max(1, length):.1f}" '
            f'height="{thick:.1f}" rx="{min(2.5, thick / 3):.1f}"/>'
        )
        if down >= 13:  # otherwise a number would lie on the next bar
            parts.append(_text(left + length + 7, y + 4, f"{size:,}", "soft"))
    return parts


def _key(counts: Ints, scale: float, y: float) -> list[str]:
    """Three bubbles of round numbers that say what an area means."""
    x = float(LEFT)
    parts = []
    for count in dict.fromkeys(_round(counts.max() * part) for part in (0.04, 0.25, 1.0)):
        radius = max(0.8, scale * math.sqrt(count))
        parts.append(f'<circle class="key" cx="{x + radius:.1f}" cy="{y:.1f}" r="{radius:.2f}"/>')
        parts.append(_text(x + 2 * radius + 6, y + 4, f"{count:,}", "soft"))
        x += 2 * radius + 18 + 7 * len(f"{count:,}")
    return [*parts, _text(x + 4, y + 4, "samples (area)", "soft")]


def _round(value: float) -> int:
    """The next lower of 1, 2, 5, 10, 20, 50, ..."""
    ten = 10 ** math.floor(math.log10(max(value, 1)))
    return int(ten * max(step for step in (1, 2, 5) if step * ten <= max(value, 1)))


def _colour(turn: float) -> str:
    """A hue of even lightness (Ottosson's OKLCH), spelt in sRGB for viewers that know no other."""
    lightness, chroma, angle = 0.68, 0.15, 2 * math.pi * (turn + 0.7)
    a, b = chroma * math.cos(angle), chroma * math.sin(angle)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
