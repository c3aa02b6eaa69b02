"""The page: one HTML file with everything in it, safe whatever the names in the run folders are."""

import base64
import hashlib
import json
import math
import time
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from typing import Any

from comity import __version__
from comity.report._cells import Study, accuracy, show
from comity.report._payload import payload
from comity.report._statistics import Difference
from comity.report._table import COLUMNS, NONE, Entry, Row, rows
from comity.report._words import Answer, Transfer, answer, minus, percent

SCRIPTS = ("charts.js", "state.js", "learning.js", "clients.js", "conflict.js", "costs.js", "page.js")
LONG = 30  # rows of a table that scrolls by itself

SECTIONS = {
    "learning": (
        "Learning",
        "How learning goes",
        "Every method round by round, and what the options do that were swept.",
    ),
    "clients": (
        "Clients",
        "Who gains, who is harmed",
        "An average hides the single client. Each one is measured against what it reaches alone, with the same data "
        "and the same training, so that a client that should not have joined can be seen.",
    ),
    "conflict": (
        "Conflict",
        "Why: updates that pull against each other",
        "Two clients conflict when the change that one asks for is a step back for the other. Where this happens "
        "often, averaging serves the many at the cost of the few.",
    ),
    "weights": (
        "Weights",
        "What the rule does about it",
        "A rule answers every round with one coefficient for each client, or for each client and layer.",
    ),
    "general": (
        "Trade-off",
        "Personal or general",
        "A personal model may pay for being good at home by failing abroad.",
    ),
    "cost": ("Cost", "What it costs", "Measured in these runs, on this machine."),
}
"""Sections with plots: the link, the heading and a word of introduction."""


def page(study: Study, *, live: float | None = None) -> str:
    """The whole report as HTML. ``live`` seconds: the page reads itself again as often, to follow runs under way."""
    told = answer(study)
    data = payload(study) | {"focus": study.cells.index(told.cell), "live": live, "themes": themes()}
    script = "".join(("(() => {\n'use strict';\n", *(_asset(name) for name in SCRIPTS), "\n})();"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only this very script may run, and nothing may be fetched: a second lock behind the escaping.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    links = {"results": "Table"} | {key: short for key, (short, _, _) in SECTIONS.items()} | {"setup": "Setup"}
    body = [
        '<header class="bar"><div><a class="mark" href="#top">comity <span>report</span></a>',
        '<nav aria-label="Sections">',
        *(f'<a href="#{key}">{escape(label)}</a>' for key, label in links.items()),
        '</nav><button id="theme" type="button" aria-label="Light or dark">Dark</button></div></header>',
        '<main id="top">',
        _headline(study, told, live),
        _results(study),
        *(_section(key, *words[1:]) for key, words in SECTIONS.items()),
        _setup(study),
        f"<footer>Made by comity {escape(__version__)} on {time.strftime('%d %B %Y at %H:%M').lstrip('0')}. "
        "One file, nothing is loaded from elsewhere.</footer>",
        "</main>",
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(_title(study))}</title>",
            f"<style>{_asset('report.css')}</style></head><body>",
            *body,
            f'<script type="application/json" id="data">{_embedded(data)}</script>',
            f"<script>{script}</script>",
            "</body></html>\n",
        ]
    )


def _asset(name: str) -> str:
    return (files("comity.report") / "assets" / name).read_text(encoding="utf-8")


def themes() -> dict[str, Any]:
    """The colours of plots, light and dark, for the page and for figures."""
    found: dict[str, Any] = json.loads(_asset("palette.json"))
    return found


def _embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _title(study: Study) -> str:
    names = list(dict.fromkeys(cell.method_label for cell in study.cells if not cell.reference))
    return "comity report: " + (", ".join(names[:4]) + (" …" if len(names) > 4 else "") if names else "Local")


# The answer.


def _headline(study: Study, told: Answer, live: float | None) -> str:
    details = ""
    if told.details:
        many = f"All {len(told.details)} comparisons in words" if len(told.details) > 1 else "In words"
        details = f"<details><summary>{many}</summary><ul>{_items(told.details)}</ul></details>"
    notes = f'<ul class="notes">{_items(told.notes)}</ul>' if told.notes else ""
    follows = '<span class="live">following the runs</span>' if live else ""
    return (
        f'<section class="answer"><p class="kicker">{escape(_conditions(study))}{follows}</p>'
        f"<h1>{escape(told.lead)}</h1>"
        f'<p class="more">{escape(told.more)}</p>{_tiles(told)}{details}{notes}</section>'
    )


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)


def _conditions(study: Study) -> str:
    """What all runs have in common, in a line."""
    first = study.cells[0].options

    def common(key: str) -> Any:
        values = {setting.options.get(key) for setting in study.settings}
        return first.get(key) if len(values) == 1 else None

    partition = next((run.partition for cell in study.cells for run in cell.runs.values() if run.partition), None)
    seeds = {seed for cell in study.cells for seed in cell.runs}
    alike = not any(key.split(".")[0] in ("data", "partition") for key in study.varying)
    told = [
        str(common("data") or ""),
        partition.how if partition is not None and alike else "",
        f"{common('clients')} clients" if common("clients") else "",
        str(common("model") or ""),
        f"{common('rounds')} rounds" if common("rounds") else "",
        f"{len(seeds)} seed{'s' if len(seeds) != 1 else ''}",
        f"{len(study.runs)} run{'s' if len(study.runs) != 1 else ''}",
    ]
    return " · ".join(part for part in told if part)


def _tiles(told: Answer) -> str:
    """Four numbers of what the lead speaks of."""
    cell, setting = told.cell, told.setting
    transfer = Transfer.of(cell)
    gain = None if cell.reference else Difference.of(cell.by_seed(accuracy, True), setting.local_accuracy())
    conflict = cell.spread(lambda run: run.mean("conflict"))
    worst = cell.spread(lambda run: run.metric("L-acc", "worst10"))
    tiles = []
    if cell.spread(accuracy).n:
        tiles.append((f"accuracy with {cell.label}", percent(cell.spread(accuracy)), f"worst tenth {percent(worst)}"))
    if gain is not None:
        half = "" if gain.half is None else f" ± {100 * gain.half:.1f}"
        small = "points" + ("" if gain.half is None else ", 95 % interval")
        tiles.append(("gain over training alone", minus(100 * gain.mean, 1, plus=True) + half, small))
    if transfer is not None:
        over = f"over {transfer.seeds} seeds" if transfer.pooled else ""
        tiles.append(("clients harmed", f"{len(transfer.harmed)} of {transfer.clients}", over))
    if conflict.n:
        tiles.append(("pairs of updates in conflict", f"{100 * conflict.mean:.0f} %", "mean over layers and rounds"))
    inner = "".join(
        f"<div><dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(small)}</small></dd></div>"
        for label, value, small in tiles
    )
    return f'<dl class="tiles">{inner}</dl>' if tiles else ""


# The table.


def _results(study: Study) -> str:
    found = rows(study)
    several = len(study.settings) > 1
    heads = [_head("method + rule", "Method, and rule that combines the updates", "name")]
    if several:
        heads.append(_head("setting", "What differs between the settings", "words"))
    told = [any(row.entries[i] != NONE for row in found) for i in range(len(COLUMNS))]
    heads += [_head(*column, "") for column, shown in zip(COLUMNS.items(), told, strict=True) if shown]
    news = [i == 0 or row.setting != found[i - 1].setting for i, row in enumerate(found)]
    body = "".join(_row(row, study, several, new, told) for row, new in zip(found, news, strict=True))
    only = '<label><input type="checkbox" id="only"><span></span></label>' if several else ""
    kind = "scroll long" if len(found) > LONG else "scroll"
    return (
        '<section id="results"><h2>The table</h2><p class="intro">± is the standard deviation over seeds; brackets are '
        "95 % intervals of differences paired by seed. Green gains and red losses lie outside the noise, grey ones "
        "inside it. Click a heading to sort, hover for its meaning.</p>"
        f'<div class="card"><div class="{kind}" tabindex="0" role="region" aria-label="Results"><table><thead><tr>'
        f"{''.join(heads)}</tr></thead><tbody>{body}</tbody></table></div></div>"
        f'<div class="tools">{only}</div></section>'
    )


def _head(label: str, meaning: str, kind: str) -> str:
    return (
        f'<th scope="col" class="{kind}" aria-sort="none" title="{escape(meaning)}">'
        f'<button type="button">{escape(label)}</button></th>'
    )


def _row(row: Row, study: Study, several: bool, new: bool, told: list[bool]) -> str:
    cell = row.cell
    rule = f" <span>+ {escape(cell.rule_label)}</span>" if cell.rule else ""
    note = " <span>(each client alone)</span>" if cell.reference else ""
    kind = " ".join(
        name for name, holds in (("again", row.again), ("new", new), ("reference", cell.reference)) if holds
    )
    parts = [
        f'<tr class="{kind}" data-setting="{row.setting}">',
        f'<td class="name" data-v="{escape(cell.label)}" title="{escape(cell.label)}">'
        f"<b>{escape(cell.method_label)}</b>{rule}{note}</td>",
    ]
    if several:
        label = study.settings[row.setting].label
        parts.append(f'<td class="words" data-v="{escape(f"{row.setting:04d} {label}")}">{escape(label)}</td>')
    parts += [_entry(entry) for entry, shown in zip(row.entries, told, strict=True) if shown]
    return "".join(parts) + "</tr>"


def _entry(entry: Entry) -> str:
    value = "" if entry.value is None or math.isnan(entry.value) else f' data-v="{entry.value:.6g}"'
    kind = f' class="{entry.kind}"' if entry.kind else ""
    title = f' title="{escape(entry.title)}"' if entry.title else ""
    small = f"<small>{escape(entry.small)}</small>" if entry.small else ""
    return f"<td{value}{kind}{title}>{escape(entry.text)}{small}</td>"


def _section(key: str, heading: str, intro: str) -> str:
    return (
        f'<section id="{key}" data-plots><h2>{escape(heading)}</h2><p class="intro">{escape(intro)}</p>'
        '<div class="plots"></div></section>'
    )


# What it was made from.


def _setup(study: Study) -> str:
    cells = [cell for cell in study.cells if not cell.reference] or study.cells
    same: dict[str, str] = {}
    differ: dict[str, str] = {}
    for key in dict.fromkeys(key for cell in cells for key in cell.options):
        values = list(dict.fromkeys(show(cell.options[key]) for cell in cells if key in cell.options))
        owners = [cell for cell in cells if key in cell.options]
        if len(values) == 1 and len(owners) == len(cells):
            same[key] = values[0]
        elif len(values) > 1 or key in study.varying:
            differ[key] = ", ".join(values)
        else:  # an option that only some methods or rules have
            part, _, option = key.partition(".")
            names = dict.fromkeys(show(cell.options.get(part)) for cell in owners)
            differ[f"{option} of {', '.join(names)}"] = values[0]
    differ["seed"] = ", ".join(map(str, sorted({seed for cell in cells for seed in cell.runs})))
    cards = [
        _card("What differs", differ),
        _card("On what it ran", _versions(study)),
        _card("What is the same in all runs", same, "wide columns"),
    ]
    if study.plan.tuning:
        cards.append(_card("Tuned by validation, never by test", dict(map(_tuned, study.plan.tuning)), "wide"))
    cards.append(_runs(study))
    return (
        '<section id="setup"><h2>Setup</h2><p class="intro">Every option of every run, so that each number can be had '
        "again: <code>comity run --config FOLDER/config.yaml --overwrite</code> gives the same bits.</p>"
        f'<div class="setup">{"".join(cards)}</div></section>'
    )


def _card(heading: str, entries: Mapping[str, str], kind: str = "") -> str:
    lines = "".join(f"<div><dt>{escape(key)}</dt><dd>{escape(value)}</dd></div>" for key, value in entries.items())
    return f'<div class="card {kind}"><h3>{escape(heading)}</h3><dl>{lines}</dl></div>'


def _tuned(search: Mapping[str, Any]) -> tuple[str, str]:
    scores = {str(one.get("value")): one.get("validation") for one in search.get("tried", ())}
    tried = [f"{value} ({'failed' if score is None else f'{100 * score:.2f} %'})" for value, score in scores.items()]
    key = f"{search.get('option')} for {search.get('for')}"
    return key, f"{search.get('chosen')}, of {', '.join(tried)}"


def _versions(study: Study) -> dict[str, str]:
    found: dict[str, dict[str, None]] = {}
    for cell in study.cells:
        for run in cell.finished:
            assert run.result is not None
            machine = run.result.get("machine", {})
            parts = dict(run.result.get("versions", {})) | {
                "Python": machine.get("python"),
                "system": machine.get("system"),
                "cores": machine.get("cores"),
                "models judged as": run.result.get("moment"),
            }
            for key, value in parts.items():
                if value is not None:
                    found.setdefault(key, {})[str(value)] = None
    return {key: ", ".join(values) for key, values in found.items()} or {"": "no run is finished yet"}


def _runs(study: Study) -> str:
    lines = []
    for setting in study.settings:
        for cell in setting.cells:
            for run in cell.runs.values():
                state = "finished" if run.finished else f"round {run.round} of {run.planned}"
                written = str(run.result.get("written", "")) if run.result else ""
                residual = run.result.get("worst residual") if run.result else None
                failed = int(run.series["failed"].sum()) if "failed" in run.series else 0
                parts = [
                    cell.label,
                    setting.label,
                    f"seed {run.seed}",
                    state,
                    written,
                    f"{failed} answers left out" if failed else "",
                    f"worst residual {residual:.1e}" if residual else "",
                    str(run.path),
                ]
                lines.append("<tr>" + "".join(f"<td>{escape(part)}</td>" for part in parts) + "</tr>")
    return (
        f'<div class="card wide"><details><summary>The {len(lines)} run folders</summary><div class="scroll">'
        f'<table class="runs">{"".join(lines)}</table></div></details></div>'
    )
