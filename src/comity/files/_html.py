"""An inspection as one HTML file, in the look of the report."""

import time
from html import escape
from importlib.resources import files

from comity import __version__
from comity.files._inspect import Inspection
from comity.files._words import (
    Harmful,
    Listing,
    answer,
    clients,
    conflict,
    hurts,
    layers,
    numbers,
    percent,
    rules,
)

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
.body td, .body th { text-align: right; } .body td:first-child, .body th:first-child { text-align: left; }
.names-2 td:nth-child(2), .names-2 th:nth-child(2) { text-align: left; }
.body { padding: 8px 20px 12px; } .body td { overflow-wrap: anywhere; } .body .harm { color: var(--harm); }
.rate { display: inline-block; height: 9px; border-radius: 3px; background: var(--harm); vertical-align: middle; }
.track { display: inline-block; width: 120px; text-align: left; }
.heat text { font-size: 11px; fill: var(--soft); } .heat { display: block; max-width: 100%; height: auto; }
.heat .v { font-size: 10px; fill: #1c1c28; text-anchor: middle; }
"""

AGAINST, WITH, NEITHER = (203, 67, 40), (58, 92, 190), (244, 244, 248)
PAIRS = 30
LONG = 40  # rows of a table that scrolls by itself
LABELLED = 40  # clients whose names fit beside a matrix
SPELT = 14  # clients whose numbers fit in its cells


def page(found: Inspection) -> str:
    """Everything that was found. Names come from strangers' files, so all text is escaped."""
    look = (files("comity.report") / "assets" / "report.css").read_text(encoding="utf-8")
    every_client = f"<details><summary>Every client</summary>{_table(clients(found))}</details>"
    sections = [_listing(rules(found), more=every_client)]
    if len(found.ids) > 1:
        sections += [
            _cosines(found),
            _listing(hurts(found), PAIRS),
            _listing(layers(found)),
        ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>comity inspect: {escape(found.source)}</title>",
            f"<style>{look}{STYLE}</style></head><body>",
            '<header class="bar"><div><a class="mark" href="#top">comity <span>inspect</span></a></div></header>',
            '<main id="top">',
            _headline(found),
            *sections,
            f"<footer>Made by comity {escape(__version__)} on {time.strftime('%-d %B %Y at %H:%M')}. "
            "One file, nothing is loaded from elsewhere.</footer>",
            "</main></body></html>\n",
        ]
    )


def _headline(found: Inspection) -> str:
    worst = [(rule, float(rule.shares[rule.worst])) for rule in found.verdicts]
    tiles = [
        ("pairs and layers in conflict", percent(found.conflict.overall, False), ""),
        ("harmed by the plain mean", f"{len(found.mean.harmed)} of {len(found.ids)}", "clients"),
        *((f"worst off under {rule.rule}", percent(share), found.ids[rule.worst]) for rule, share in worst),
    ]
    inner = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(small)}</small></dd></div>"
        for label, value, small in tiles
    )
    about = f"{found.source} · {numbers(found)}"
    notes = "".join(f"<li>{escape(name)} was left out: {escape(why)}</li>" for name, why in found.dropped.items())
    return (
        f'<section class="answer"><p class="kicker">{escape(about)}</p>'
        f"<h1>{escape(conflict(found))} {escape(answer(found))}</h1>"
        f'<dl class="tiles">{inner}</dl>{f"<ul class=notes>{notes}</ul>" if notes else ""}</section>'
    )


def _section(heading: str, intro: str, inner: str) -> str:
    return f'<section><h2>{escape(heading)}</h2><p class="intro">{escape(intro)}</p>{inner}</section>'


def _listing(listing: Listing, most: int | None = None, more: str = "") -> str:
    """A table under its heading, with ``more`` HTML behind it."""
    rest = f" The {most} worst are shown." if most is not None and len(listing.rows) > most else ""
    return _section(listing.title, listing.intro + rest, (_table(listing, most) if listing.rows else "") + more)


def _table(listing: Listing, most: int | None = None) -> str:
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in listing.headings)
    lines = []
    for i, row in enumerate(listing.rows[:most]):
        cells = "".join(f"<td{' class=harm' if isinstance(cell, Harmful) else ''}>{escape(cell)}</td>" for cell in row)
        if listing.bars is not None:
            width = round(120 * listing.bars[i])
            cells += f'<td><span class="track"><span class="rate" style="width:{width}px"></span></span></td>'
        lines.append(f"<tr>{cells}</tr>")
    kind = "scroll long" if len(lines) > LONG else "scroll"
    return (
        f'<div class="card body"><div class="{kind}"><table class="facts names-{listing.names}"><thead><tr>{heads}'
        f"{'' if listing.bars is None else '<td></td>'}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></div>"
    )


def _cosines(found: Inspection) -> str:
    error = f" Each comes from sketches, ± {found.error:.3f}." if found.error else ""
    return _section(
        "Who goes along with whom",
        f"The cosine of each two updates over all layers: blue go the same way, red against each other.{error}",
        f'<div class="card body"><div class="scroll">{_matrix(found)}</div></div>',
    )


def _matrix(found: Inspection) -> str:
    count = len(found.ids)
    cell = max(5, min(44, 900 // count))
    margin = min(250, 26 + 6.3 * max(len(name) for name in found.ids)) if count <= LABELLED else 8
    top = 22 if count <= LABELLED else 8
    parts = []
    for i, row in enumerate(found.cosines.tolist()):
        y = top + i * cell
        if count <= LABELLED:
            label = f"{found.ids[i] if len(found.ids[i]) <= 36 else f'…{found.ids[i][-35:]}'} · {i + 1}"
            parts.append(
                f'<text x="{margin - 8:.0f}" y="{y + cell / 2 + 4:.0f}" text-anchor="end">{escape(label)}</text>'
            )
            middle = f'<text x="{margin + (i + 0.5) * cell:.0f}" y="{top - 7}" text-anchor="middle">{i + 1}</text>'
            parts.append(middle)
        for j, value in enumerate(row):
            x = margin + j * cell
            both = f"{found.ids[i]} and {found.ids[j]}: {value:.3f}"
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{cell - 1}" height="{cell - 1}" fill="{_colour(value)}">'
                f"<title>{escape(both)}</title></rect>"
            )
            if count <= SPELT and i != j:
                spelt = f"{value:.2f}".replace("-", "−")
                parts.append(f'<text class="v" x="{x + cell / 2:.0f}" y="{y + cell / 2 + 3.5:.1f}">{spelt}</text>')
    width, height = margin + count * cell, top + count * cell
    return (
        f'<svg class="heat" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" role="img" '
        f'aria-label="Cosines of all pairs">{"".join(parts)}</svg>'
    )


def _colour(cosine: float) -> str:
    end = WITH if cosine > 0 else AGAINST
    # In many dimensions cosines are small; the root makes them visible.
    strength = min(1.0, abs(cosine)) ** 0.5 * 0.8
    return "#" + "".join(f"{round(a + (b - a) * strength):02x}" for a, b in zip(NEITHER, end, strict=True))
