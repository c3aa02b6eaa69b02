"""The decisive experiments: ConFREE's and FedCALM's largest gains at the papers' settings, and what came out.

make_results.py writes ``*-decisive*.csv`` from the study's folder, at any time. A method is judged when all seeds
of Mean and ConFREE are there; what is there before is shown and not judged.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

import measured
from comparisons import Comparisons, seconds
from differences import detectable, interval
from measured import LAST, MEAN, PEAK, NotRun, Stored, corrected, grid, line, lines, read
from published_numbers import published_accuracy, published_gain

from comity._words import number
from comity.compare import Cell
from comity.config import LOCAL

DECISIVE, FEDCALM, SEEDS = "confree-decisive", "fedcalm-decisive", 8
METHODS = ("FedALA", "APFL")
RULES = (MEAN, "ConFREE", "ConFREE-length", "ConFREE-released")
RUNS = len(METHODS) * len(RULES) * SEEDS
SETTING = {"data": "flowers102", "clients": "60", "participation": "0.3"}
POOLED = "peak samples"
"""The largest share of all clients' tests that is predicted correctly, over rounds: what the paper's code prints."""
HARM = ("clients", "lower", "equal", "higher", "significantly lower", "significantly higher", "detectable")
Arm = tuple[str, str]
"""A method and a rule."""


def arms() -> dict[Arm, Stored]:
    """Each configuration of which a run is there."""
    try:
        found = {_arm(each): each for each in lines(DECISIVE)}
    except NotRun:
        return {}
    return {key: found[key] for key in sorted(found, key=_place)}


def _arm(each: Stored) -> Arm:
    method = each.method.partition(" (")[0]
    rule = each.rule or ("" if method == LOCAL else MEAN)  # no rule is named where Mean is the only one
    return method, rule.partition(" (")[0]


def _place(arm: Arm) -> tuple[int, int]:
    method, rule = arm
    return (len(METHODS), 0) if method == LOCAL else (METHODS.index(method), RULES.index(rule))


def _label(arm: Arm) -> str:
    return " + ".join(filter(None, arm))


def finished(method: str) -> int:
    """How many runs with a method are there: carried along, or in the tables."""
    carried = [*(measured.FOLDER / DECISIVE).glob(f"{method.lower()}-*.tar.xz")]
    return max(len(carried), sum(len(each.runs) for (name, _), each in arms().items() if name == method))


def state(method: str) -> str:
    """What there is of a method that is not judged yet."""
    return f"{finished(method)} of {RUNS // len(METHODS)} runs; `comity reproduce {DECISIVE} --scale paper`"


def tested(method: str) -> Comparisons:
    """ConFREE over Mean, when all seeds of both are there: testing earlier as well would find too much."""
    found = arms()
    one, other = found.get((method, "ConFREE")), found.get((method, MEAN))
    if one is None or other is None or min(len(one.runs), len(other.runs)) < SEEDS:
        return {}
    return {method: one.over(other)}


def of_fedcalm() -> Comparisons:
    """FedCALM over FedCP and over its first stage, when all seeds are there."""
    found = {each.method: each for each in lines(FEDCALM) if len(each.runs) == SEEDS}
    one = [each for name, each in found.items() if "stages=1" in name]
    two = [each for name, each in found.items() if name.startswith("FedCALM") and "stages=1" not in name]
    others = {"FedCP": found.get("FedCP"), "its first stage": one[0] if one else None}
    return {name: two[0].over(other) for name, other in others.items() if two and other is not None}


def decisive() -> str:
    """How much of the experiment is finished."""
    complete = [_label(arm) for arm, each in arms().items() if len(each.runs) == SEEDS and arm[0] != LOCAL]
    done = f"{sum(map(finished, METHODS))} of {RUNS} runs"
    return f"{done} ({', '.join(complete)}: all {SEEDS} seeds)" if complete else done


def decisive_table() -> str:
    """Accuracy of the last round and the largest over rounds, and the paper's."""
    body = []
    for (method, rule), each in arms().items():
        spreads = [each.by_seed(what) for what in (LAST, PEAK, POOLED)]
        numbers = (f"{spread.mean:.2f} ± {spread.std or 0:.2f}" for spread in spreads)
        paper = published_accuracy("confree-table2", method=method, rule=rule, **SETTING)
        body.append([_label((method, rule)), str(len(each.runs)), *numbers, paper])
    heads = ["", "seeds", "last round", "largest over rounds", "largest, all tests pooled", "paper"]
    return grid(heads, body) if body else "No finished run is in this table yet."


def decisive_gains() -> str:
    """Each rule over Mean, and ConFREE over each other rule."""
    from claims import level  # it reads this module

    found = arms()
    pairs = [*((rule, MEAN) for rule in RULES[1:]), *(("ConFREE", rule) for rule in RULES[2:])]
    rows = [((method, one), (method, other)) for method in METHODS for one, other in pairs]
    rows = [(one, other) for one, other in rows if {one, other} <= found.keys() and _common(found[one], found[other])]
    last = [found[one].over(found[other]) for one, other in rows]
    body = []
    for (one, other), difference, real in zip(rows, last, corrected(last), strict=True):
        whole = difference.seeds == SEEDS
        size = detectable(difference, level()) if whole else None
        published = (one[1], other[1]) == ("ConFREE", MEAN)
        peaks = (found[one].over(found[other], what) for what in (PEAK, POOLED))
        texts = [interval(each) if each.seeds > 1 else number(each.mean) for each in (difference, *peaks)]
        texts[0] = interval(difference, real) if whole else texts[0]
        paper = published_gain("confree-table2", "ConFREE", MEAN, method=one[0], **SETTING) if published else "–"
        power = number(size, 1) if size is not None else "–"
        body.append([_label(one), other[1], str(difference.seeds), *texts, paper, power])
    heads = ["", "over", "seeds", "last round", "largest over rounds", "largest, all tests pooled", "paper"]
    return grid([*heads, "detectable"], body, left=2) if body else "Nothing to compare yet."


def _common(one: Stored, other: Stored) -> bool:
    return bool({run["seed"] for run in one.runs} & {run["seed"] for run in other.runs})


def decisive_harm() -> str:
    """How many clients have a lower accuracy than under Mean, and than with local training."""
    rows = sorted(read(f"{DECISIVE}-harm.csv"), key=lambda row: _place((row["method"], row["rule"])))
    body = [[_label((row["method"], row["rule"])), row["against"], *(row[name] for name in HARM)] for row in rows]
    return grid(["", "against", *HARM], body, left=2) if body else "Nothing to compare yet."


def decisive_cost() -> str:
    """Hours and hardware of the finished runs."""
    told = json.loads((measured.FOLDER / "studies.json").read_text()).get(DECISIVE)
    if told is None:
        return "No finished run is in these tables yet."
    machine, runs, minutes = told["machine"], told["runs"], told["core minutes"]
    alone = [f"{number(500 * seconds(method, MEAN).mean / 60, 0)} minutes ({method})" for method in METHODS]
    return (
        f"{runs} runs took {number(minutes / 60, 1)} hours together, {number(minutes / runs, 0)} minutes each, "
        f"on a machine shared with other work ({machine['system']}, {machine['cores']} cores, "
        f"{', '.join(f'{name} {version}' for name, version in told['versions'].items())}, "
        f"trainer {' and '.join(told['trainers'])}, {told['date']}). Without evaluation, the 500 rounds of one "
        f"run need about {' and '.join(alone)} of processor time."
    )


def decisive_power() -> str:
    """What eight seeds were expected to find with 80 % power, by the spread of ConFREE over Mean in another study."""
    one, mean = (line("confree-table1-night", f"APFL + {rule}") for rule in ("ConFREE", MEAN))
    size = detectable(one.over(mean), 0.05)
    assert size is not None
    return number(size, 1)


# From the runs themselves.


def harm(cells: Sequence[Cell]) -> Iterable[Mapping[str, object]]:
    """Clients of each configuration against the same method with Mean, and against Local, over their common seeds."""
    by_name = {(each.method, each.rule): each for each in cells if not each.local}
    for (method, rule), each in by_name.items():
        for against, other in ((MEAN, by_name.get((method, MEAN))), (LOCAL, each.setting.local)):
            if other is not None and other is not each and (counts := _counts(each, other)):
                yield {"method": method, "rule": rule, "against": against} | counts


def _counts(cell: Cell, other: Cell) -> dict[str, object]:
    """Clients of all seeds with a lower and a higher accuracy; significant by scores of single tests.

    Each seed has clients of its own. The experiment repeats no baseline, so training luck has its typical size.
    """
    from comity.compare.evidence import estimate, states
    from comity.compare.harm import of_samples, training_luck

    seeds = {run.seed for run in cell.finished} & {run.seed for run in other.finished}
    mine, theirs = ({seed: each.runs[seed] for seed in sorted(seeds)} for each in (cell, other))
    pairs, reverse = (of_samples(*both, pooled=True) or {} for both in ((mine, theirs), (theirs, mine)))
    if not pairs:
        return {}
    found, contrary = (
        {key: estimate(each, training_luck({}, of), len(of)) for key, each in of.items()} for of in (pairs, reverse)
    )
    lower, higher = (
        sum(state == "worse" for state in states(each, cell.setting.margin).values()) for each in (found, contrary)
    )
    gains = [each.gain for each in pairs.values()]
    size = 100 * median(each.detectable for each in found.values())
    detected = f"{size:.0f}" if size <= 100 else "–"
    signs = (sum(gain < 0 for gain in gains), gains.count(0), sum(gain > 0 for gain in gains))
    return dict(zip(HARM, (len(gains), *signs, lower, higher, detected), strict=True))
