"""What the studies in evidence/ measured, read from their files, and the words and tables in which pages show it.

``NAME.csv`` is a study's table as ``comity table --format csv`` has it, ``NAME-runs.csv`` has a row for each run, and
``studies.json`` tells when, where and by which versions each ran. docs/make_results.py writes them, and puts what
``about``, ``table``, ``rules``, ``rule`` and ``value`` return into the pages.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

from differences import Ranked, interval, of_half

from comity._words import number
from comity.compare import COLUMNS, Difference, Entry, Spread, TableRow
from comity.config import COMPONENTS, LOCAL

FOLDER = Path(__file__).parents[1] / "evidence"
DOCS = Path(__file__).parent
MEAN, UNIFORM, LONGER, LONGEST = "Mean", "Mean (by=uniform)", "Mean (length=2.0)", "Mean (length=3.0)"
LAST, PEAK = "last", "peak"
NEW = "2026-11-18"
"""Studies from this date on continue their grids of rates."""
FALLEN = 20
"""Points below its best round from which on a run has diverged."""
VARIANTS = {
    "confree-table1-night": "confree-table1 --scale night --method FedRep,APFL --rounds 40 --eval-every 8 "
    "--tune lr=0.02,0.05,...",
    "confree-table1-rates": "confree-table1 --scale night --method FedRep --rounds 40 --eval-every 8 "
    "--tune lr=0.05,0.1,0.2,...",
    "confree-table1-clothing": "confree-table1 --data fashion-mnist --partition label-shift "
    "--partition.samples_per_client 200 --partition.shift 0.8 --method FedRep,FedALA,APFL,FedPAC "
    "--tune lr=0.02,0.05,0.1,... --control none",
    "fedora-balanced-mnist": "fedora-balanced --data mnist "
    "--partition.samples_per_client 469 --clients 36 --test-share 0.5906 --tune lr=0.02,0.05,0.1,... --control none",
    "fedora-pairs": "fedora-shifts --clients 20 --method FEDORA --sweep method.labels=false,true --control none",
    "confree-tuned": "confree-table1 --data fashion-mnist --partition label-shift --partition.samples_per_client 200 "
    "--partition.shift 0.8 --method FedRep,APFL --rule Mean,ConFREE --tune lr=0.05,0.1,0.2,... "
    "--tune rule.length=1,2,3,... --tune rule.c=0.1:0.9 --reference none --control none",
    "fedpg-table1-global": "fedpg-table1 --tune-by global-acc",
    "fedpg-table1-others": "fedpg-table1 --tune-by global-acc --only method=FedRep,FedFomo --tune lr=0.1,0.2,0.4,... "
    "--reference none --control none",
    "fedpg-table1-more": "fedpg-table1 --method FedAMP,FedROD,SplitGP --tune lr=0.1,0.2,0.4,... --reference none "
    "--control none",
    "fedpg-table1-more-global": "fedpg-table1 --tune-by global-acc --method FedROD,SplitGP --tune lr=0.1,0.2,0.4,... "
    "--reference none --control none",
    "fedpg-lemma": "fedpg-table3 --only attack=none --method FedPG --sweep method.least_descent=0,0.1,0.5,1 "
    "--reference none --control none",
    "fedpg-lemma-iid": "fedpg-table3 --only attack=none --method FedPG,FedAvg "
    "--sweep method.least_descent=0,0.1,0.5,1 --sweep rounds=5,40 --partition iid --clients 4 --participation 1 "
    "--reference none --control none",
    "fedpg-figure1": "fedpg-figure1 --reference none --control none",
    "confree-table1-cifar10": "confree-table1 --scale night --data cifar10 --method FedRep --rounds 40 --eval-every 8 "
    "--tune lr=0.02,0.05,0.1,...",
    "confree-decisive": "confree-decisive --scale paper",
    "fedcalm-decisive": "fedcalm-decisive --scale night",
}
"""Studies that are an example with other options, and these."""
BY_CLIENT = ("fedora-imbalanced", "fedora-four", "fedcalm-table6")
"""Studies of which each client's accuracy is kept."""
BY_WEIGHT = ("fedcalm-figure6",)
"""Studies of which it is kept how many clients the rule's weights are worth."""
Row = dict[str, str]


def short(label: str) -> str:
    """``Mean (length=own, by=size)`` as ``Mean``: what is usual is not said."""
    name = label.partition(" (")[0]
    usual = {
        "length=own",
        "personal_model=post_local",
        "head_epochs=5",
        "share_head=True",
        "common=True",
        "by=size" if name == MEAN else "by=uniform",
    }
    kept = [each for each in re.findall(r"[\w.]+=[^,)]+", label) if each not in usual]
    return f"{name} ({', '.join(kept)})" if kept else name


def corrected(differences: Sequence[Difference]) -> list[bool]:
    """Which of them are real, at the level of the summary, which is corrected for all its comparisons."""
    from claims import level  # it reads the same files

    return [each.p_value is not None and each.p_value <= level() for each in differences]


class NotRun(Exception):
    """A study whose numbers are not here."""


@dataclass(frozen=True)
class Stored(TableRow):
    """A row of a study's table as the study's file has it, and what its runs had."""

    block: str = ""
    runs: tuple[Row, ...] = ()
    local: "Stored | None" = None
    """Local of the same block."""

    def by_seed(self, what: str = LAST) -> Spread:
        """A column of the runs; ``last`` and ``first`` are these evaluations, ``peak`` the best of them."""
        rounds = [name for name, value in self.runs[0].items() if name.startswith("round ") and value]
        if what == PEAK:
            return Spread({int(run["seed"]): max(float(run[name]) for name in rounds) for run in self.runs})
        name = {LAST: rounds[-1], "first": rounds[0], "late": rounds[-2:][0]}.get(what, what)
        return Spread({int(run["seed"]): float(run[name]) for run in self.runs if run[name]})

    def over(self, other: "Stored", what: str = LAST) -> Difference:
        """Paired by seed; where the runs' rows are not kept, as the table has it."""
        found = None
        if self.runs:
            kind = Ranked if self.diverged or other.diverged else Difference
            found = kind.between(self.by_seed(what), other.by_seed(what))
        elif what == LAST and short(other.rule) == MEAN:
            found = self.noted("difference")
        if found is None:
            raise ValueError(f"nothing to compare {self.label} with {other.label} by")
        return found

    @property
    def diverged(self) -> bool:
        """Whether a run ended more than ``FALLEN`` points below its own best round."""
        rounds = [[float(run[name]) for name in run if name.startswith("round ") and run[name]] for run in self.runs]
        return any(max(each) - each[-1] > FALLEN for each in rounds if each)

    def noted(self, column: str) -> Difference | None:
        """A difference that the table has with its interval; the gain over Local by seed, where its runs are kept."""
        if column == "gain" and self.runs and self.local is not None and self.local.runs:
            return None if self.method == LOCAL else self.over(self.local)
        entry = self.entries[column]
        if entry.value is None or entry.parts[0] is None:
            return None
        return of_half(entry.value, float(entry.parts[1]) - entry.value, len(self.seeds))


def read(file: str) -> list[Row]:
    path = FOLDER / file
    if not path.exists():
        return []
    with path.open(newline="") as text:
        return list(csv.DictReader(text))


HEADS = {column.name: column.heading for column in COLUMNS}
HEADS |= {"difference": "over Mean", "gain": "gain over Local", "harmed": "clients harmed", "MB": "MB per round"}
HEADS |= {f"{name} std": f"{name}, std over clients" for name in ("S-acc", "G-acc")}
HEADS |= {"relative": "relative to Local", "seconds": "s per round", "global": "global model"}
PARTS = {"gain": ("low", "high"), "difference": ("low", "high"), "harmed": ("of", "beyond chance"), "gaining": ("of",)}
"""Columns of the studies' files, which earlier versions made, and what the files have beside their values."""


def entries(row: Row) -> dict[str, Entry]:
    """A row of the table's file back as entries, without their texts."""

    def value(name: str) -> float | None:
        return float(row[name]) if row.get(name) else None

    return {
        name: Entry(value=value(name), parts=tuple(value(f"{name} {part}") for part in PARTS.get(name, ("std",))))
        for name in HEADS
    }


@cache
def lines(study: str) -> list[Stored]:
    runs: dict[tuple[str, ...], list[Row]] = {}
    for run in read(f"{study}-runs.csv"):
        runs.setdefault((run["block"], run["method"], run["rule"]), []).append(run)
    found = []
    for row in read(f"{study}.csv"):
        keys = [key for key in list(row)[: list(row).index("method")] if not key.startswith(("rule.", "method."))]
        words = [row[key] if key in COMPONENTS else f"{key.rpartition('.')[2]}={row[key]}" for key in keys if row[key]]
        key = ", ".join(words), row["method"], row["rule"]
        seeds = list(map(int, row["seeds"].split()))
        if runs and key not in runs:  # a reference, such as the majority class
            continue
        made = Stored(short(key[1]), short(key[2]), seeds, entries(row), block=key[0], runs=tuple(runs.get(key, ())))
        found.append(made)
    if not found:
        raise NotRun(study)
    several = any(each.rule not in ("", MEAN) for each in found)
    locals_of = {each.block: each for each in found if each.method == LOCAL}
    kept = found if several else [replace(each, rule="") for each in found]
    return [replace(each, local=locals_of.get(each.block)) for each in kept]


def line(study: str, label: str, block: str = "") -> Stored:
    """By its label as the page shows it: ``APFL + ConFREE``."""
    for each in lines(study):
        if each.block == block and label == each.label:
            return each
    raise KeyError(f"{study} has no line {label!r} in block {block!r}")


# What a page may ask for.


def about(study: str) -> str:
    """How to do it again, what ran, which rates were at an end of their grid, convergence and stability."""
    told = json.loads((FOLDER / "studies.json").read_text())[study]
    files = f"[table]({study}.csv)" + (f", [runs]({study}-runs.csv)" if lines(study)[0].runs else "")
    text = (
        f"`{told['command']}` · {told['runs']} runs, {told['seeds']} seeds, "
        f"run time {told['core minutes']} min, {told['date']} · {files}."
    )
    if "lr" in told:
        rates, ends = [value for value, _ in told["lr"]], [value for value, at_an_end in told["lr"] if at_an_end]
        each = ", ".join(f"{value:g} ({count})" for value, count in sorted(Counter(rates).items()))
        text += f" Chosen learning rates (how often): {each}; {len(ends)} of {len(rates)} at an end of their list"
        text += f", {sum(value == max(rates) for value in ends)} at its upper end." if ends else "."
    if not lines(study)[0].runs:
        return text
    moved = [each.by_seed().mean - each.by_seed("late").mean for each in lines(study)]
    fell = sum(int(run["unstable"]) > 0 for each in lines(study) for run in each.runs)
    return (
        f"{text} In the last fifth of the rounds accuracies change by {number(median(map(abs, moved)))} points "
        f"(median), at most by {number(max(map(abs, moved)))}. Unstable runs: {fell}."
    )


def ends_by_paper() -> str:
    """How many of the learning rates of each paper's studies are at an end of those tried, by whether they are old."""
    told = json.loads((FOLDER / "studies.json").read_text())
    papers = {
        "confree": "ConFREE",
        "fedcalm": "FedCALM",
        "fedora": "FEDORA",
        "fedpg": "FedPG",
        "natural": "natural clients",
    }

    def count(prefix: str, old: bool) -> str:
        dated = [each for study, each in told.items() if study.startswith(prefix) and (each["date"] < NEW) == old]
        chosen = [at_an_end for each in dated for _, at_an_end in each.get("lr", ())]
        return f"{sum(chosen)} of {len(chosen)}"

    return "; ".join(
        f"{name} {count(key, False)} in new studies, {count(key, True)} in older ones" for key, name in papers.items()
    )


def tuned_values(study: str) -> str:
    """The options beside the learning rate that validation chose, for each configuration."""
    found: dict[str, list[str]] = {}
    for cell, option, value in json.loads((FOLDER / "studies.json").read_text())[study]["chosen"]:
        found.setdefault(cell, []).append(f"{option.rpartition('.')[2]} {value:g}")
    return "; ".join(f"{cell}: {', '.join(values)}" for cell, values in found.items())


def machine() -> str:
    """The versions and machines of all studies."""
    told = json.loads((FOLDER / "studies.json").read_text()).values()
    named = {", ".join(f"{name} {version}" for name, version in each["versions"].items()) for each in told}
    systems = {f"{each['machine']['system']}, {each['machine']['cores']} cores" for each in told}
    return "; ".join((*sorted(named), *sorted(systems)))


def table(study: str, *columns: str, only: Sequence[str] | None = None) -> str:
    """Lines of the study's table, with these rules only."""
    kept = [each for each in lines(study) if only is None or each.rule in only]
    real: dict[int, dict[str, bool]] = {id(each): {} for each in kept}
    for column in {"gain", "difference"} & set(columns):
        known = [(each, noted) for each in kept if (noted := each.noted(column))]
        for (each, _), verdict in zip(known, corrected([noted for _, noted in known]), strict=True):
            real[id(each)][column] = verdict
    blocks: dict[str, list[list[str]]] = {}
    for each in kept:
        entries = [_entry(each, column, real[id(each)].get(column)) for column in columns]
        blocks.setdefault(each.block, []).append([each.label, *entries])
    heads = ["", *(HEADS.get(column, column) for column in columns)]
    titles = {title: f"**{title}**\n\n" if len(blocks) > 1 else "" for title in blocks}
    return "\n\n".join(titles[title] + grid(heads, body) for title, body in blocks.items())


def _entry(each: Stored, column: str, real: bool | None) -> str:
    if column.endswith(" std"):
        return number(each.by_seed(column).mean) if each.runs and each.runs[0].get(column) else "–"
    entry = each.entries[column]
    if column in ("gain", "difference"):
        noted = each.noted(column)
        return interval(noted, real) if noted is not None else "–"
    if entry.value is None:
        return "–"
    if column in ("harmed", "gaining"):
        of, *sure = entry.parts
        return f"{entry.value:.0f} of {of:.0f}" + (
            f", {sure[0]:.0f} beyond chance" if sure and sure[0] is not None else ""
        )
    if entry.parts[0] is not None and column != "MB":
        return f"{entry.value:.2f} ± {entry.parts[0]:.2f}"
    return number(entry.value)


def grid(heads: list[str], body: list[list[str]], left: int = 1) -> str:
    """A Markdown table; so many columns on the left hold words."""
    ruled = [heads, [*["---"] * left, *["---:"] * (len(heads) - left)], *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in ruled)


def rules(study: str, block: str | None = None, what: str = LAST) -> str:
    """Each method's accuracy with Mean, and what other rules change."""
    kept = [each for each in lines(study) if block in (None, each.block) and each.rule]
    means = {(each.block, each.method): each for each in kept if each.rule == MEAN}
    rivals = [each for each in kept if each.rule != MEAN]
    found = [each.over(means[each.block, each.method], what) for each in rivals]
    cells = {
        (e.block, e.method, e.rule): interval(d, real)
        for e, d, real in zip(rivals, found, corrected(found), strict=True)
    }
    others = list(dict.fromkeys(each.rule for each in rivals))
    several = len({of for of, _ in means}) > 1
    body = [
        [
            f"{method}, {of}" if several else method,
            number(mean.by_seed(what).mean),
            *(cells.get((of, method, name), "–") for name in others),
        ]
        for (of, method), mean in means.items()
    ]
    return grid(["", "with Mean", *(f"+ {name}" for name in others)], body)


def rule(study: str, method: str, name: str, block: str = "", base: str = MEAN, what: str = LAST) -> str:
    """What a method has more with one rule than with another."""
    one, other = (line(study, f"{method} + {each}", block) for each in (name, base))
    return interval(one.over(other, what))


def by_angle(study: str, big: int, clients: int, groups: dict[str, range]) -> str:
    """What clients gain over Local, by how many places on the circle of angles they are from the ``big`` one.

    Means over the clients of a group, differences by seed.
    """
    found = {
        (method, name): gained_at(study, method, big, clients, at)
        for method in _methods(study)
        for name, at in groups.items()
    }
    real = dict(zip(found, corrected(list(found.values())), strict=True))
    body = [[short(m), *(interval(found[m, name], real[m, name]) for name in groups)] for m in _methods(study)]
    return grid(["", *groups], body)


def gained_at(study: str, method: str, big: int, clients: int, at: range) -> Difference:
    """The mean gain over Local of the clients that are so many places from the big one."""
    near = [k for k in range(clients) if min((k - big) % clients, (big - k) % clients) in at]
    found = Difference.between(*(of_clients(study, name, fmean, near) for name in (method, LOCAL)))
    assert found is not None
    return found


def _methods(study: str) -> list[str]:
    return [name for name in dict.fromkeys(row["method"] for row in read(f"{study}-clients.csv")) if name != LOCAL]


def of_clients(study: str, method: str, how: Callable[[list[float]], float], clients: Sequence[int] = ()) -> Spread:
    """One number of the accuracies of some clients, by default all, by seed."""
    found: dict[int, list[float]] = {}
    for row in read(f"{study}-clients.csv"):
        if short(row["method"]) == short(method) and (not clients or int(row["client"]) in clients):
            found.setdefault(int(row["seed"]), []).append(float(row["accuracy"]))
    if not found:
        raise NotRun(study)
    return Spread({seed: how(found[seed]) for seed in sorted(found)})


def weighed(study: str) -> str:
    """How many clients the rule's weights are worth in the first rounds and the last, a fifth each; over seeds."""
    rows = read(f"{study}-weights.csv")
    rounds = max(int(row["round"]) for row in rows)
    parts = {"first fifth": range(1, rounds // 5 + 1), "last fifth": range(rounds - rounds // 5 + 1, rounds + 1)}
    lines_of = dict.fromkeys((row["method"], row["layer"]) for row in rows)

    def entry(method: str, layer: str, part: range) -> str:
        found: dict[int, list[float]] = {}
        for row in rows:
            if (row["method"], row["layer"]) == (method, layer) and int(row["round"]) in part:
                found.setdefault(int(row["seed"]), []).append(float(row["clients"]))
        spread = Spread({seed: fmean(values) for seed, values in found.items()})
        return f"{spread.mean:.1f} ± {spread.std:.1f}"

    body = [[short(m), layer, *(entry(m, layer, part) for part in parts.values())] for m, layer in lines_of]
    return grid(["", "layer", *(f"{part} of the rounds" for part in parts)], body, left=2)


def value(study: str, label: str, column: str, block: str = "") -> str:
    return _entry(line(study, label, block), column, None)
