"""The page: one HTML file with everything in it, safe whatever the names in the run folders are."""

import base64
import hashlib
import time
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from comity import __version__
from comity.report._assets import script, styles, themes
from comity.report._payload import payload
from comity.report._words import Answer, answer
from comity.results import LoadedStudy, Table
from comity.results.columns import ACCURACY, AGAINST, CONFLICT, GAIN, HARMED, WORST
from comity.results.conditions import component_of, show
from comity.results.schema import CONFIG, Tuned
from comity.results.words import counted, number


def page(study: LoadedStudy, *, live: float | None = None) -> str:
    """The whole report as HTML. ``live`` seconds: the page reads itself again as often, to follow runs under way."""
    table = study.table()
    told = answer(study, table)
    opened = {"focus": study.cells.index(told.cell), "seed": told.seed, "client": told.worst and told.worst.client}
    data = payload(study) | opened | {"live": live, "themes": themes()}
    same, differ = _options(study)
    code = script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    # Only this very script may run, and nothing may be fetched: a second lock behind the escaping.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _templates()
        .get_template("page.html")
        .render(
            title=_title(study),
            policy=policy,
            styles=styles(),
            script=code,
            data=data,
            live=live,
            version=__version__,
            time=time.strftime("%d %B %Y at %H:%M").lstrip("0"),
            conditions=_conditions(study),
            answer=told,
            tiles=_tiles(told, table),
            table=table,
            settings=study.settings,
            same=same,
            differ=differ,
            versions=_versions(study),
            tuned=dict(map(_tuned, study.tuning)),
            runs=_runs(study),
            config_file=CONFIG,
        )
    )


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("comity.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False, "ensure_ascii": False}
    return templates


def _title(study: LoadedStudy) -> str:
    names = list(dict.fromkeys(cell.method_label for cell in study.cells if not cell.local))
    return "comity report: " + (", ".join(names[:4]) + (" …" if len(names) > 4 else "") if names else "Local")


# The answer.


def _conditions(study: LoadedStudy) -> str:
    """What all runs have in common, in a line."""

    def common(key: str) -> Any:
        values = [setting.options.get(key) for setting in study.settings]
        return values[0] if all(value == values[0] for value in values) else None

    partition = next((run.partition for run in study.runs if run.partition is not None), None)
    alike = not any(component_of(key) in ("data", "partition") for key in study.varying.keys)
    parts = [
        str(common("data") or ""),
        partition.partition if partition is not None and alike else "",
        f"{common('clients')} clients" if common("clients") else "",
        str(common("model") or ""),
        f"{common('rounds')} rounds" if common("rounds") else "",
        counted(len({run.seed for run in study.runs}), "seed"),
        counted(len(study.runs), "run"),
    ]
    return " · ".join(part for part in parts if part)


def _tiles(told: Answer, table: Table) -> list[tuple[str, str, str]]:
    """Four numbers of what the lead speaks of, from its line of the table: label, value and small print."""
    line = next((line for line in table.lines if line.cell is told.cell), None)
    if line is None:
        return []
    accuracy, worst, gain, harmed, against, conflict = (
        line.entries[column.name] for column in (ACCURACY, WORST, GAIN, HARMED, AGAINST, CONFLICT)
    )
    tiles = [(f"accuracy with {told.cell.label}", f"{accuracy} %", f"worst tenth {worst} %")]
    if gain.value is not None:
        tiles.append(("points over training alone", gain.text, gain.small))
    if harmed.value is not None:
        tiles.append(("clients worse than alone", harmed.text, harmed.small))
    if against.value is not None:
        tiles.append(("clients that a step goes against", f"{against} %", f"{conflict} % of pairs conflict"))
    return tiles


# What it was made from.


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
            names = dict.fromkeys(show(flat.get(component_of(key))) for flat in owners)
            differ[f"{key.partition('.')[2]} of {', '.join(names)}"] = values[0]
    differ["seed"] = ", ".join(map(str, sorted({seed for cell in cells for seed in cell.runs})))
    return same, differ


def _tuned(search: Tuned) -> tuple[str, str]:
    tried = [
        f"{trial.value} ({'failed' if trial.validation is None else f'{number(100 * trial.validation, 2)} %'})"
        for trial in search.tried
    ]
    return f"{search.option} for {search.cell}", f"{search.chosen}, of {', '.join(tried)}"


def _versions(study: LoadedStudy) -> dict[str, str]:
    seen: dict[str, dict[str, None]] = {}
    for run in study.runs:
        if run.result is not None:
            machine = run.result.machine
            parts = run.result.versions | {
                "Python": machine.get("python"),
                "system": machine.get("system"),
                "cores": machine.get("cores"),
                "models judged as": run.info.moment,
            }
            for key, value in parts.items():
                if value is not None:
                    seen.setdefault(key, {})[str(value)] = None
    return {key: ", ".join(values) for key, values in seen.items()} or {"": "no run is finished yet"}


def _runs(study: LoadedStudy) -> list[list[str]]:
    """A line for each run folder."""
    lines = []
    for cell in study.cells:
        for run in cell.runs.values():
            residual = run.result.worst_residual if run.result is not None else None
            failed = sum(len(record.failed) for record in run.records)
            lines.append(
                [
                    cell.label,
                    cell.setting.label,
                    f"seed {run.seed}",
                    "finished" if run.finished else f"round {run.rounds_done} of {run.options['rounds']}",
                    run.result.written if run.result is not None else "",
                    f"{failed} answers left out" if failed else "",
                    f"worst residual {residual:.1e}" if residual else "",
                    str(run.path),
                ]
            )
    return lines
