"""The report page: one self-contained HTML file, safe for any names in the run folders."""

import base64
import hashlib
import time
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from comity import __version__
from comity._labels import EVALUATED
from comity._overlay import owner
from comity._words import counted, number
from comity.compare import LoadedStudy, Table
from comity.report._assets import script, styles, themes
from comity.report._payload import payload
from comity.report._words import effects, notes, opened_at, progress
from comity.results import CONFIG, show

MOST_COLUMNS = 7
"""Maximum columns of the table including names, unless the reader asks for all."""


def page(study: LoadedStudy, *, live: float | None = None) -> str:
    """The whole report as HTML. ``live``: seconds after which the page reloads itself, to follow unfinished runs."""
    table, verdict = study.table(), study.verdict
    cell = opened_at(study)
    opened = {"focus": study.cells.index(cell), "seed": cell.clients[0].seed if cell.clients else None}
    same, differ = _options(study)
    columns, first = _columns(table)
    code = script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    # only this script may run, and nothing may be fetched: a second defence behind the escaping
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        templates()
        .get_template("page.html")
        .render(
            title=_title(study),
            policy=policy,
            styles=styles(),
            script=code,
            data=payload(study) | opened | {"live": live, "themes": themes()},
            live=live,
            version=__version__,
            time=time.strftime("%d %B %Y at %H:%M").lstrip("0"),
            conditions=_conditions(study),
            study=study,
            verdict=verdict,
            evidence=progress(study) or verdict.evidence,
            effects=effects(study),
            notes=notes(study, table),
            table=table,
            columns=columns,
            first=first,
            same=same,
            differ=differ,
            versions=_versions(study),
            config_file=CONFIG,
        )
    )


@cache
def templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("comity.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}
    templates.filters["number"] = number
    return templates


def _columns(table: Table) -> tuple[list[Any], int]:
    """All columns, and how many of them the page shows by default."""
    names = 1 if len(table.blocks) < 2 else 2  # of the line, and of its setting
    first = table.shown[: MOST_COLUMNS - names]
    return [*first, *(column for column in table.columns if column not in first)], len(first)


def _title(study: LoadedStudy) -> str:
    names = list(dict.fromkeys(cell.method_label for cell in study.cells if not cell.local))
    return "comity report: " + (", ".join(names[:4]) + (" …" if len(names) > 4 else "") if names else "Local")


def _conditions(study: LoadedStudy) -> str:
    """The common conditions of all runs, in one line."""

    def common(key: str) -> Any:
        values = [setting.options.get(key) for setting in study.settings]
        return values[0] if all(value == values[0] for value in values) else None

    partition = next((run.partition for run in study.runs if run.partition is not None), None)
    same = not any(owner(key) in ("data", "partition") for key in study.varying.keys)
    parts = [
        str(common("data") or ""),
        partition.partition.removesuffix("()") if partition is not None and same else "",
        f"{common('clients')} clients" if common("clients") else "",
        str(common("model") or ""),
        f"{common('rounds')} rounds" if common("rounds") else "",
        counted(len({run.seed for run in study.runs}), "seed"),
        counted(len(study.runs), "run"),
    ]
    return " · ".join(part for part in parts if part)


def _options(study: LoadedStudy) -> tuple[dict[str, str], dict[str, str]]:
    """Options that all runs share, and those that differ or that only some methods or rules have."""
    cells = [cell for cell in study.cells if not cell.local] or study.cells
    same: dict[str, str] = {}
    differ: dict[str, str] = {}
    options = [cell.setting.options | cell.options for cell in cells]
    for key in dict.fromkeys(key for flat in options for key in flat):
        owners = [flat for flat in options if key in flat]
        values = list(dict.fromkeys(show(flat[key], key) for flat in owners))
        if len(values) == 1 and len(owners) == len(cells):
            same[key] = values[0]
        elif len(values) > 1 or key in study.varying.keys:
            differ[key] = ", ".join(values)
        else:
            names = dict.fromkeys(show(flat.get(owner(key))) for flat in owners)
            differ[f"{key.partition('.')[2]} of {', '.join(names)}"] = values[0]
    differ["seed"] = ", ".join(map(str, sorted({seed for cell in cells for seed in cell.runs})))
    return same, differ


def _versions(study: LoadedStudy) -> dict[str, str]:
    """Versions and machines of the finished runs."""
    seen: dict[str, dict[str, None]] = {}
    for run in study.runs:
        if run.result is not None:
            machine = {"Python": "python", "system": "system", "cores": "cores"}
            parts = run.result.versions | {name: run.result.machine.get(key) for name, key in machine.items()}
            for key, value in (parts | {"models evaluated": EVALUATED[run.info.eval_point]}).items():
                if value is not None:
                    seen.setdefault(key, {})[str(value)] = None
    return {key: ", ".join(values) for key, values in seen.items()} or {"": "no run is finished yet"}
