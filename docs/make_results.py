"""Fills the pages' tables and numbers in from evidence/; with folders, makes those files from the studies first.

``make results``, or ``make results STUDIES='natural=studies/natural-desk guard=studies/guard-desk'``.

A page says what it wants: what stands between ``<!-- = table("guard", "gain") -->`` and ``<!-- . -->`` is the value of
that Jinja expression, in which the functions of ``FUNCTIONS`` are known.
"""

import csv
import json
import math
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import claims
import decisive
import differences
import make_ask
import make_guard
import make_harm
import make_leaderboard
import measured
import published_numbers
from decisive import DECISIVE, FEDCALM
from jinja2 import StrictUndefined
from jinja2.sandbox import SandboxedEnvironment

import comity
from comity.compare import Cell, LoadedStudy
from comity.metrics import ALL, COMMON, OWN, SOME, VALIDATION
from comity.report._series import coefficients

HERE = Path(__file__).parent
PAGES = [HERE.parent / "README.md", *sorted(HERE.rglob("*.md")), *sorted(measured.FOLDER.glob("*.md"))]
PAGES = [page for page in PAGES if "<!-- = " in page.read_text()]
FUNCTIONS = (
    *(measured.about, measured.table, measured.rules, measured.rule, measured.value, measured.by_angle),
    *(
        measured.weighed,
        published_numbers.published_gain,
        published_numbers.published_common,
        published_numbers.in_brief,
        measured.ends_by_paper,
        measured.tuned_values,
        measured.line,
        published_numbers.gaps,
        differences.interval,
        measured.machine,
        claims.claims,
        claims.evidence,
        claims.over,
    ),
    *(claims.counted_comparisons, claims.every_item, claims.changed_outcomes),
    *(decisive.decisive, decisive.decisive_table, decisive.decisive_gains, decisive.decisive_harm),
    *(decisive.decisive_cost, decisive.decisive_power),
    *(claims.online, claims.more_online, claims.flip_of, claims.repaired, claims.tuned),
    *(make_guard.guard_states, make_guard.guard_summary, make_guard.guard_settings, make_guard.guard_mean),
    *(make_guard.guard_above_control, make_guard.guard_count, make_guard.guard_range, make_guard.guard_candidates),
    *(
        make_guard.guard_candidate,
        make_guard.alone_on_all,
        make_harm.harm_level,
        make_harm.harm_variants,
        make_harm.harm_power,
    ),
    *(make_harm.harm_power_by_tests, make_harm.harm_worst, make_harm.harm_excluded, make_harm.harm_federations),
    *(make_harm.harm_repetitions, make_guard.online_streams, make_guard.online_bets),
    *(make_leaderboard.leaderboard_answer, make_leaderboard.leaderboard_ranks, make_leaderboard.leaderboard_gains),
    *(make_leaderboard.leaderboard_notes, make_leaderboard.leaderboard_count, make_leaderboard.leaderboard_setup),
    *(make_leaderboard.leaderboard_rank, make_leaderboard.leaderboard_gain, make_leaderboard.leaderboard_size),
    make_leaderboard.leaderboard_embedded,
    *make_ask.FUNCTIONS,
)
EXPRESSIONS = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
EXPRESSIONS.globals |= {each.__name__: each for each in FUNCTIONS}
EXPRESSIONS.globals |= {"MEAN": measured.MEAN, "LONGER": measured.LONGER}
STATES = Path(comity.__file__).parent / "examples" / "published" / "states.json"
MADE = re.compile(r"(^)?(<!-- = (.*?) -->).*?(<!-- \. -->)", flags=re.DOTALL | re.MULTILINE)


def page(text: str) -> str:
    """The page with everything that is made made anew: by itself where it begins a line, else amid the words."""

    def made(found: re.Match[str]) -> str:
        apart = "\n\n" if found[1] is not None else ""
        return f"{found[2]}{apart}{EXPRESSIONS.from_string('{{ ' + found[3] + ' }}').render()}{apart}{found[4]}"

    return MADE.sub(made, text)


def stated() -> str:
    """What `comity reproduce --list` says of each table and figure."""
    return json.dumps(claims.states(), indent=1, ensure_ascii=False) + "\n"


def keep(name: str, folder: Path) -> None:
    """The files of a study, from its folder."""
    if name == "guard-natural":  # many studies, and a benchmark
        write(make_guard.NATURAL, make_guard.states(folder))
        make_guard.draw(folder)
        if all((folder / f"{half}.csv").exists() for half in make_guard.HALVES):
            write(make_guard.CANDIDATES, make_guard.candidates(folder))
        return
    if name == "leaderboard":  # one study per federation, and its own files
        make_leaderboard.keep(folder)
        return
    study = LoadedStudy(folder)
    if study.damaged or (study.unfinished and name not in (DECISIVE, FEDCALM)):  # whose finished runs are shown
        raise SystemExit(f"{folder} is not finished")
    if name == "guard":
        write("guard.csv", map(make_guard.line, study.cells))
    else:
        (measured.FOLDER / f"{name}.csv").write_text(study.table().csv())
        write(f"{name}-runs.csv", (row for cell in study.cells for row in runs(cell)))
        if name in measured.BY_CLIENT:
            write(f"{name}-clients.csv", (row for cell in study.cells for row in clients(cell)))
        if name == DECISIVE:
            write(f"{name}-harm.csv", decisive.harm(study.cells))
        if name in measured.BY_WEIGHT:
            write(f"{name}-weights.csv", (row for cell in study.cells for row in weights(cell)))
    file = measured.FOLDER / "studies.json"
    told = json.loads(file.read_text()) if file.exists() else {}
    told[name] = about(name, study)
    file.write_text(json.dumps(dict(sorted(told.items())), indent=2, ensure_ascii=False) + "\n")


def write(name: str, made: Iterable[Mapping[str, object]]) -> None:
    rows = [row for row in made if row]
    with (measured.FOLDER / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def runs(cell: Cell) -> Iterable[dict[str, object]]:
    """A row for each run: shares in percent, its accuracy in each round in which all clients were judged."""
    for run in cell.finished:
        row: dict[str, object] = {"block": cell.setting.label, "method": cell.method_label, "rule": cell.rule_label}
        row |= {"seed": run.seed, "unstable": len(run.result.unstable) if run.result else 0}
        shares = {each.key: run.metric(each.key) for each in (VALIDATION, SOME, ALL, COMMON)}
        shares |= {f"{each.key} std": run.metric(each.key, "std") for each in (SOME, ALL)}
        shares["worst10"] = run.metric(OWN.key, "worst10")
        row |= {name: "" if math.isnan(share) else f"{100 * share:.4f}" for name, share in shares.items()}
        judged = [record for record in run.records if OWN.key in record.metrics]
        row[decisive.POOLED] = f"{100 * max(each.metrics[OWN.key].samples for each in judged):.4f}"
        row |= {f"round {each.round}": f"{100 * each.metrics[OWN.key].mean:.4f}" for each in judged}
        general = [record for record in judged if SOME.key in record.metrics][:-1]
        yield row | {f"{SOME.key} {each.round}": f"{100 * each.metrics[SOME.key].mean:.4f}" for each in general}


def clients(cell: Cell) -> Iterable[dict[str, object]]:
    """A row for each client of each run: its accuracy at the end, in percent."""
    for run in cell.finished:
        told = {"method": cell.method_label, "seed": run.seed}
        yield from (told | {"client": k, "accuracy": f"{100 * own:.4f}"} for k, own in run.by_client(OWN.key).items())


def weights(cell: Cell) -> Iterable[dict[str, object]]:
    """A row for each layer and round of each run: how many clients the rule's weights are worth, (Σλ)² / Σλ²."""
    for run in cell.finished:
        found = coefficients(run, most=len(run.records))
        for layer, by_round in found.multipliers.items() if found else ():  # Local has no rule
            for number, own in zip(found.rounds, by_round.T, strict=True):
                worth = own.sum() ** 2 / (own**2).sum() if own.any() else 0.0
                told = {"method": cell.method_label, "seed": run.seed, "round": number, "layer": layer}
                yield told | {"clients": f"{worth:.3f}"}


def about(name: str, study: LoadedStudy) -> dict[str, object]:
    """By whom, where and when it was done."""
    results = [run.result for run in study.runs if run.result]
    last = max(results, key=lambda result: result.written)
    seconds = sum(each.seconds.train + each.seconds.aggregate + each.seconds.evaluate for each in results)
    tuned = {"lr": [[each.chosen, each.at_an_end] for each in study.tuning if each.option == "lr"]}
    chosen = [[each.cell, each.option, each.chosen] for each in study.tuning if each.option != "lr"]
    return {
        "command": f"comity reproduce {measured.VARIANTS.get(name, name)}",
        "runs": len(results),
        "seeds": len({run.seed for run in study.runs if run.result}),
        "core minutes": max(1, round(seconds / 60)),
        **(tuned if tuned["lr"] else {}),
        **({"chosen": chosen} if chosen else {}),
        "versions": {key: version for key, version in last.versions.items() if key in ("comity", "torch", "python")},
        "machine": last.machine,
        "trainers": sorted({run.info.trainer for run in study.runs if run.result}),
        "date": last.written[:10],
    }


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, _, folder = argument.partition("=")
        keep(name, Path(folder))
    for path in PAGES:
        path.write_text(page(path.read_text()))
    STATES.write_text(stated())
