"""An inspection as one HTML file, in the look of the report."""

import math
import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from comity import __version__
from comity.files._inspect import Inspection
from comity.files._words import MEANING, answer, conflict, loss, numbers, percent, verdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

STYLE = """
.body td, .body th { text-align: right; } .body td:first-child, .body th:first-child { text-align: left; }
.names-2 td:nth-child(2), .names-2 th:nth-child(2) { text-align: left; }
.body { padding: 8px 20px 12px; } .body td { overflow-wrap: anywhere; } .body .harm { color: var(--harm); }
.facts td.name { white-space: normal; min-width: 12em; }
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
    """Everything that was found; whatever names the files have, nothing of them is taken for HTML."""
    sections = [_rules(found)]
    if len(found.ids) > 1:
        sections += [_cosines(found), _hurts(found), _layers(found)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>comity inspect: {escape(found.source)}</title>",
            f"<style>{_look()}{STYLE}</style></head><body>",
            '<header class="bar"><div><a class="mark" href="#top">comity <span>inspect</span></a></div></header>',
            '<main id="top">',
            _headline(found),
            *sections,
            f"<footer>Made by comity {escape(__version__)} on {time.strftime('%-d %B %Y at %H:%M')}. "
            "One file, nothing is loaded from elsewhere.</footer>",
            "</main></body></html>\n",
        ]
    )


def _look() -> str:
    return (files("comity.report") / "assets" / "report.css").read_text(encoding="utf-8")


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


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """Cells are HTML already; ``names`` columns are words, the others numbers."""
    heads = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "scroll long" if lines.count("<tr>") > LONG else "scroll"
    return (
        f'<div class="card body"><div class="{kind}"><table class="facts names-{names}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div></div>"
    )


def _share(share: float) -> str:
    return f'<span class="{"harm" if share < -0.0005 else ""}">{escape(percent(share))}</span>'


def _rules(found: Inspection) -> str:
    known = found.lr is not None
    rows = []
    for rule in found.verdicts:
        name, worst, _, change, harmed, length = map(escape, verdict(found, rule))
        share = _share(float(rule.shares[rule.worst]))
        rows.append([f"<b>{name}</b>", worst, share, *([change] if known else []), harmed, length])
    heads = ["rule", "worst-off client", "its gain", *(["change of its loss"] if known else []), "harmed", "own step"]
    order = sorted(range(len(found.ids)), key=lambda j: _last(float(found.mean.shares[j])))
    each = []
    for j in order:
        gains = [_share(float(rule.shares[j])) for rule in found.verdicts]
        each.append([escape(found.ids[j]), f"{float(found.lengths[j]):.3g}", *gains])
    inner = _table(heads, rows, 2) + "<details><summary>Every client</summary>"
    inner += _table(["client", "length of its update", *(f"gain under {rule.rule}" for rule in found.verdicts)], each)
    return _section("What each rule would do", MEANING, inner + "</details>")


def _last(share: float) -> float:
    return math.inf if math.isnan(share) else share


def _cosines(found: Inspection) -> str:
    return _section(
        "Who goes along with whom",
        "The cosine of each two updates over all layers: blue go the same way, red against each other.",
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
            told = f"{found.ids[i]} and {found.ids[j]}: {value:.3f}"
            parts.append(
                f'<rect x="{x:.0f}" y="{y}" width="{cell - 1}" height="{cell - 1}" fill="{_colour(value)}">'
                f"<title>{escape(told)}</title></rect>"
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
    # conflicts are small numbers in many dimensions: the root shows them
    strength = min(1.0, abs(cosine)) ** 0.5 * 0.8
    return "#" + "".join(f"{round(a + (b - a) * strength):02x}" for a, b in zip(NEITHER, end, strict=True))


def _hurts(found: Inspection) -> str:
    pairs = found.hurts()
    if not pairs:
        return _section("Who would hurt whom", "Nobody's update alone would raise another client's loss.", "")
    known = found.lr is not None
    rows = []
    for i, j, share in pairs[:PAIRS]:
        change = [escape(loss(found.loss(j, share)))] if known else []
        rows.append([escape(found.ids[i]), escape(found.ids[j]), _share(share), *change])
    more = f" The {PAIRS} worst are shown." if len(pairs) > PAIRS else ""
    intro = (
        f"What one client's update alone would do to another, over what that one's own update would do: "
        f"{len(pairs):,} of {len(found.ids) * (len(found.ids) - 1):,} ordered pairs are harmful.{more}"
    )
    heads = ["the update of", "would do to", "gain", *(["change of its loss"] if known else [])]
    return _section("Who would hurt whom", intro, _table(heads, rows, 2))


def _layers(found: Inspection) -> str:
    order = sorted(range(len(found.layers)), key=lambda k: -float(found.conflict.layers[k]))
    rows = []
    for k in order:
        rate = float(found.conflict.layers[k])
        bar = f'<span class="track"><span class="rate" style="width:{round(120 * rate)}px"></span></span>'
        part = percent(float(found.weight[k]), False)
        rows.append([escape(found.layers[k]), f"{found.numbers[k]:,}", escape(part), escape(percent(rate, False)), bar])
    inner = _table(["layer", "numbers", "part of the updates", "pairs in conflict", ""], rows)
    return _section("Layers", "The share of pairs of clients whose updates point against each other in a layer.", inner)
