"""What the papers claim, each claim with the comparisons that test it, and what came out."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median
from typing import Any

import decisive
from comparisons import (
    CALM,
    COMMON,
    CONFREE,
    DEPTHS,
    GAMMAS,
    LATER,
    MADE,
    MORE_CLIENTS,
    PERSONAL,
    PLAIN,
    RIVALS,
    TRIED,
    Comparisons,
    abroad,
    alone,
    attacked,
    averaged,
    beside_the_big,
    between,
    beyond_the_ends,
    biases_even_out,
    by_client,
    by_participation,
    by_s,
    conflict_by_depth,
    contrary,
    early,
    faster,
    flip_of,
    flipped,
    gains_more,
    longer,
    more_clients_with_c,
    more_online,
    online,
    over,
    repaired,
    rivals,
    smoother,
    steadier,
    takers,
    traffic,
    tuned,
    with_rule,
)
from differences import detectable, discovered, interval
from measured import FOLDER, MEAN, VARIANTS, NotRun, grid, line, number, read
from published_numbers import (
    above_fedcp,
    fedcalm_largest,
    fedpg_over,
    fedpg_with_more_online,
    gain,
    gamma_zero,
    gaps,
    in_brief,
    largest,
    less_with_more_online,
    mean_gain,
    middle_c,
    second_stage,
    under_attack,
    value_over,
)

from comity.compare import holm
from comity.config import LOCAL, read_yaml
from comity.studies import examples
from comity.studies._cost import seconds
from comity.studies._grid import at_scale, expand
from comity.studies._papers import items, times_of

CLOSE = 1.0
"""Points within which two numbers are called the same."""
NAMED = 3
"""So many differences are listed one by one."""
SEEDS = 8
"""Seeds of each comparison, unless its row says otherwise."""


OUTCOMES = SHOWN, PART, CONTRARY, NONE, UNTESTED = (
    *("shown", "shown in part", "contradicted", "no effect larger than", "not tested"),
)


@dataclass(frozen=True)
class Claim:
    paper: str
    says: str
    item: str
    """The table or figure that it is about, as `comity reproduce --list` names it."""
    compared: Callable[[], Comparisons] = dict
    same: bool = False
    """It says that nothing differs: then each interval must lie within ``close``."""
    close: float = CLOSE
    note: str = ""
    """What a reader must know beside the comparisons."""
    unfit: str = ""
    """Why the comparisons, if there are any, do not test it."""
    paired_by: str = "seed"
    """What the numbers of both sides are paired by."""
    state: Callable[[], str] = str
    """What there is of an experiment that is not finished."""
    paper_has: Callable[[], str] = lambda: "–"
    """What the paper reports in its place."""

    @cached_property
    def found(self) -> Comparisons:
        return self.compared()

    def outcome(self, level: float) -> tuple[str, str, str]:
        """A word, the power, and the evidence: which comparisons show it, which the contrary, the range of the rest.

        ``level``: p-values up to it are real.
        """
        try:
            found = self.found
        except NotRun as study:
            return UNTESTED, "–", self.state() or f"{study} was not run"
        if self.unfit or not found:
            return UNTESTED, "–", self.unfit or self.state()
        real = [name for name, each in found.items() if each.p_value is not None and each.p_value <= level]
        if self.same:
            yes = [name for name, each in found.items() if max(abs(each.low or 0), abs(each.high or 0)) < self.close]
        else:
            yes = [name for name in real if found[name].mean > 0]
        no = [name for name in real if name not in yes]
        word = SHOWN if len(yes) == len(found) else PART if yes else CONTRARY
        if not yes and 2 * len(no) < len(found):
            ends = [((each.high or 0.0), -(each.low or 0.0)) for each in found.values()]
            most = max(max(each) if self.same else each[0] for each in ends)
            word = f"{NONE} {number(math.ceil(10 * most - 1e-9) / 10, 1)}"
        within = f" within ±{self.close:g}" if self.same else " for"
        told = [f"{len(yes)} of {len(found)}{within}{_listed(found, yes)}"]
        told += [f"{len(no)} {self._against}{_listed(found, no)}"] if no else []
        rest = [each.mean for name, each in found.items() if name not in (*yes, *no)]
        ends = list(dict.fromkeys(map(number, (min(rest), max(rest))))) if rest else []
        told += [f"not significant: {' to '.join(ends)}"] if ends else []
        return word, self._power(level), "; ".join([*told, *([self.note] if self.note else [])])

    @property
    def _against(self) -> str:
        return "significantly different" if self.same else "against"

    def row(self, level: float) -> list[str]:
        """Its row of the summary: outcome, comparisons, effects, power and what the paper has."""
        outcome, power, _ = self.outcome(level)
        if outcome == UNTESTED:
            return [self.says, outcome, "–", self.unfit or self.state() or "not run", "–", self.paper_has()]
        found = self.found
        ranked = sorted(found, key=lambda name: -found[name].mean)
        if len(found) == 1:
            effects = [interval(found[ranked[0]])]
        else:
            ends = [
                f"{word} {interval(found[name])} {name}"
                for word, name in (("highest", ranked[0]), ("lowest", ranked[-1]))
            ]
            effects = [f"median {number(median(each.mean for each in found.values()))}", *ends]
        seeds = sorted({each.seeds for each in found.values()})
        if self.paired_by != "seed" or seeds != [SEEDS]:
            effects.append(f"({'–'.join(map(str, seeds))} {self.paired_by}s)")
        return [self.says, self.worded(level), self._counts(level), "<br>".join(effects), power, self.paper_has()]

    def worded(self, level: float) -> str:
        """The outcome, with a word of warning if more comparisons are significant against the claim than for it."""
        outcome = self.outcome(level)[0]
        up, down = self._signs(level) if outcome == PART and not self.same else (0, 0)
        return f"{outcome}, mostly against" if down > up else outcome

    def _signs(self, level: float) -> tuple[int, int]:
        """How many comparisons are significantly above and below 0."""
        real = [each.mean for each in self.found.values() if each.p_value is not None and each.p_value <= level]
        return sum(mean > 0 for mean in real), sum(mean < 0 for mean in real)

    def _counts(self, level: float) -> str:
        """How many comparisons are significant for the claim and against it."""
        found = self.found.values()
        real = [each for each in found if each.p_value is not None and each.p_value <= level]
        if self.same:
            close = [each for each in found if max(abs(each.low or 0), abs(each.high or 0)) < self.close]
            apart = sum(each not in close for each in real)
            more = f", {apart} {self._against}" if apart else ""
            return f"{len(close)} of {len(found)} within ±{self.close:g}{more}"
        up, down = self._signs(level)
        return f"{up} for, {down} against, of {len(found)}"

    def _power(self, level: float) -> str:
        known = [size for each in self.found.values() if (size := detectable(each, level)) is not None]
        if not known:
            return "–"
        ends = dict.fromkeys(number(end, 1) for end in (min(known), max(known)))
        return number(median(known), 1) + (f" ({' to '.join(ends)})" if len(ends) > 1 else "")


def _listed(found: Comparisons, names: Sequence[str]) -> str:
    ranked = sorted(names, key=lambda name: -abs(found[name].mean))[:NAMED]
    return ": " + ", ".join(f"{name} {interval(found[name])}" for name in ranked) if ranked else ""


@cache
def level() -> float:
    """Up to which p-value a comparison is significant: Benjamini–Hochberg's level for all comparisons of the page."""
    return discovered(_p_values())


def _p_values() -> list[float]:
    """Of all comparisons that test a claim."""
    tested = [claim.found for claim in CLAIMS if claim.outcome(0)[0] != UNTESTED]
    return [each.p_value for found in tested for each in found.values() if each.p_value is not None]


def claims(paper: str) -> str:
    """The summary of one paper's claims."""
    rows = [claim.row(level()) for claim in CLAIMS if claim.paper == paper]
    heads = ["claim", "outcome", "significant", "effect in points [95 % CI]", "detectable", "published effect"]
    return grid(heads, rows, left=len(heads))


def evidence() -> str:
    """Every claim with the comparisons that show it, and those that show the contrary."""
    rows = [[claim.paper, claim.says, claim.worded(level()), *claim.outcome(level())[1:]] for claim in CLAIMS]
    return grid(["paper", "claim", "outcome", "detectable", "comparisons, effects in points [95 % CI]"], rows, left=5)


def changed_outcomes() -> str:
    """Claims whose outcome differs from that of the page before its grids of rates were continued (commit c858650)."""
    before: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in read("outcomes-before.csv"):
        before.setdefault((row["paper"], row["claim"]), []).append(row)
    rows = []
    for claim in CLAIMS:
        if not (known := before.get((claim.paper, claim.says))):
            continue
        was, (word, *_) = known.pop(0), claim.outcome(level())
        if was["outcome"] != word and not (was["outcome"].startswith(NONE) and word.startswith(NONE)):
            rows.append([claim.paper, claim.says, was["outcome"], word])
    return grid(["paper", "claim", "before", "now"], rows, left=4)


def counted_comparisons() -> str:
    """How many comparisons the correction counts, and which p-values are real."""
    known = _p_values()
    real = f"{sum(p <= level() for p in known)} are significant (p ≤ {level():.3f})"
    return f"{len(known)} comparisons, of which {real}; with Holm's correction, {sum(holm(known))} would be"


def every_item() -> str:
    """Every table and figure: its command, the runs of this page, times and outcomes."""
    told, rows = json.loads((FOLDER / "studies.json").read_text()), []
    for item in items():
        known = states()[item.item]
        here = sum(told[name]["runs"] for name in told if VARIANTS.get(name, name).partition(" ")[0] == item.example)
        command = f"`{item.example}`" if item.example else item.what
        times = times_of(known) if item.example else ("–", "–")
        rows.append([item.item, command, f"{here or '–'}", *times, in_counts(known["claims"])])
    return grid(
        [
            "table or figure",
            "`comity reproduce …`",
            "our runs",
            "time, desk scale",
            "time, paper scale",
            "outcomes of its claims",
        ],
        rows,
        left=6,
    )


def in_counts(outcomes: Sequence[str]) -> str:
    """``1 shown, 2 shown in part``."""
    known = dict.fromkeys([*(word for word in OUTCOMES if word in outcomes), *outcomes])
    return ", ".join(f"{outcomes.count(word)} {word}" for word in known) or "–"


@cache
def states() -> dict[str, dict[str, Any]]:
    """For `comity reproduce --list`: the outcome of each claim on a table or figure, and how long its example takes."""
    told = json.loads((FOLDER / "studies.json").read_text())
    found: dict[str, dict[str, Any]] = {}
    for item in items():
        found[item.item] = {"claims": [claim.outcome(level())[0] for claim in CLAIMS if claim.item == item.item]}
        if item.example:
            entries = read_yaml(examples()[item.example])
            if item.example in told and "--scale" not in VARIANTS.get(item.example, ""):
                found[item.item]["minutes"] = told[item.example]["core minutes"]
            if "paper" in entries:
                found[item.item]["hours"] = max(round(_hours(entries)), 1)
    return found


def _state(method: str) -> str:
    """What there is of the decisive experiment with a method, and the hours that all its runs need."""
    hours = _hours_of(decisive.DECISIVE, "paper", method=method)
    return f"{decisive.state(method)}, about {hours:.0f} hours of one core for all"


def _tuned_hours() -> str:
    """Hours of the decisive experiment with learning rates tuned: three for two seeds, then eight seeds."""
    return f"{_hours_of(decisive.DECISIVE, 'paper', rule='Mean,ConFREE') * (1 + 3 * 2 / SEEDS):.0f}"


def _hours_of(example: str, scale: str, **only: str) -> float:
    return _hours(read_yaml(examples()[example]) | {"only": only}, scale)


def _hours(entries: dict[str, Any], scale: str = "paper") -> float:
    """Hours of one core at a scale, by the stored cost model; searches by their largest number of runs.

    Searches for options of single methods and rules are left out.
    """
    whole = at_scale(entries, scale)
    tried = sum(len(values) for option, values in whole.get("tune", {}).items() if "." not in option)
    return (1 + tried) * sum(map(seconds, expand(whole))) / 3600


TABLE1, TABLE2, TABLE3 = (f"ConFREE Table {n}" for n in (1, 2, 3))
FIGURE5, BALANCED = "FedCALM Figure 5", "FEDORA balanced, MNIST"
LARGEST = "ConFREE largest gains"
IMBALANCED = "FEDORA imbalanced"
TUNED_RATES = (
    f"`comity reproduce {decisive.DECISIVE} --scale paper --only rule=Mean,ConFREE "
    "--tune lr=0.005,0.02,0.05 --tune-seeds 2`"
)
BY_COMMON = "learning rates chosen by the global model's validation accuracy"
CLAIMS = (
    Claim(
        "ConFREE",
        "with c = 0.5, ConFREE improves every method",
        TABLE1,
        lambda: with_rule("ConFREE", CONFREE, MEAN),
        note="the paper tunes c for each method and data set",
        paper_has=lambda: in_brief(gaps("confree-table1", {"rule": "ConFREE"}, {"rule": MEAN})),
    ),
    Claim(
        "ConFREE",
        "… *control:* also with c, step length and learning rate tuned (for Mean: length and rate)",
        TABLE1,
        tuned,
    ),
    Claim(
        "ConFREE",
        "… *control:* also with Mean's step length (c = 0.5)",
        TABLE1,
        lambda: with_rule("ConFREE (length=mean)", CONFREE, MEAN),
    ),
    Claim(
        "ConFREE",
        "… *control:* also over Mean with its best step length (c = 0.5)",
        TABLE1,
        lambda: with_rule("ConFREE", CONFREE),
    ),
    Claim(
        "ConFREE",
        "with c = 0.5, ConFREE improves APFL, FedALA and FedPAC more than FedROD, FedRep and FedCP",
        TABLE2,
        takers,
        paper_has=lambda: number(mean_gain("APFL", "FedALA", "FedPAC") - mean_gain("FedROD", "FedRep", "FedCP")),
    ),
    Claim(
        "ConFREE",
        "with c = 0.5, ConFREE also improves methods with more clients and partial participation",
        TABLE2,
        lambda: with_rule("ConFREE", [MORE_CLIENTS], MEAN),
        paper_has=lambda: in_brief(gaps("confree-table2", {"rule": "ConFREE"}, {"rule": MEAN})),
    ),
    Claim(
        "ConFREE",
        "with c = 0.5, ConFREE's gain is larger with more clients",
        TABLE2,
        lambda: gains_more(MORE_CLIENTS, "ConFREE", *(f"clients={n}, participation=0.3" for n in (40, 20)), *TRIED),
        paper_has=lambda: in_brief([gain(method, "60", "0.3") - gain(method, "20", "0.3") for method in TRIED]),
    ),
    Claim(
        "ConFREE",
        "with c = 0.5 and a higher participation rate, ConFREE's gain is smaller under APFL and FedALA, "
        "larger under FedRep",
        TABLE2,
        by_participation,
        paper_has=less_with_more_online,
    ),
    Claim(
        "ConFREE",
        "ConFREE improves APFL on Flowers102, 60 clients, 30 % participation (its largest published gain)",
        LARGEST,
        lambda: decisive.tested("APFL"),
        state=lambda: _state("APFL"),
        paper_has=lambda: largest("APFL"),
    ),
    Claim(
        "ConFREE",
        "… and FedALA in the same setting (second largest)",
        LARGEST,
        lambda: decisive.tested("FedALA"),
        state=lambda: _state("FedALA"),
        paper_has=lambda: largest("FedALA"),
    ),
    Claim(
        "ConFREE",
        "… *control:* both also with learning rates tuned, for Mean too",
        LARGEST,
        state=lambda: f"not run: about {_tuned_hours()} hours of one core; {TUNED_RATES}",
    ),
    Claim(
        "ConFREE",
        "ConFREE's gain is larger if clients are less similar",
        "ConFREE poster Figure 2",
        unfit="accuracies of dissimilar clients are near 100 %, so their gains in points are not comparable; "
        "the poster's Dirichlet alphas are unknown",
    ),
    Claim(
        "ConFREE",
        "ConFREE's gain is larger on data with more classes",
        TABLE1,
        unfit="our data sets differ in much more than the number of classes",
    ),
    Claim(
        "ConFREE",
        "accuracy is higher with a medium c (0.5) than with 0.1 and 0.9",
        TABLE3,
        lambda: {
            name: difference
            for method in TRIED
            for name, difference in beyond_the_ends(
                "confree-table3", [f"{method} + ConFREE (c={c})" for c in (0.1, 0.5, 0.9)], 1
            ).items()
        },
        paper_has=middle_c,
    ),
    Claim(
        "ConFREE",
        "ConFREE reduces communication",
        TABLE1,
        unfit="comity sends as many bytes with ConFREE as with Mean; the paper counts one model less with ConFREE",
    ),
    Claim(
        "ConFREE",
        "ConFREE hardly changes the time per round (% of processor time)",
        TABLE1,
        longer,
        same=True,
        close=10.0,
        paired_by="round",
        note="our implementation, the setting of confree-decisive; paired by round; measured on a shared machine",
    ),
    Claim(
        "FedCALM",
        "on Flowers102 with ResNet4, FedCALM is far better than FedCP and than its own first stage (largest published "
        "gains)",
        "FedCALM largest gain",
        decisive.of_fedcalm,
        state=lambda: (
            f"not run: about {_hours_of(decisive.FEDCALM, 'night'):.0f} hours of one core with a fifth of the rounds, "
            f"{_hours_of(decisive.FEDCALM, 'paper'):.0f} with all; `comity reproduce {decisive.FEDCALM} --scale night`"
        ),
        paper_has=fedcalm_largest,
    ),
    Claim("FedCALM", "CALM improves every method", FIGURE5, lambda: with_rule("CALM", CALM, MEAN)),
    Claim(
        "FedCALM",
        "… *control:* also with Mean's step length",
        FIGURE5,
        lambda: with_rule("CALM (length=mean)", CALM, MEAN),
    ),
    Claim(
        "FedCALM",
        "… *control:* also over Mean with its best step length",
        FIGURE5,
        lambda: with_rule("CALM", CALM),
    ),
    Claim(
        "FedCALM",
        "CALM's gain is larger in deeper networks",
        FIGURE5,
        lambda: gains_more(CALM[0], "CALM", *DEPTHS, "FedRep", "FedALA", "FedPAC"),
    ),
    Claim(
        "FedCALM",
        "conflict between clients increases with depth (% of pairs of clients)",
        FIGURE5,
        conflict_by_depth,
        note="share of pairs of clients whose updates conflict, in %; not paired by seed",
    ),
    Claim(
        "FedCALM",
        "CALM speeds up convergence (accuracy after 10 of 50 rounds)",
        "FedCALM Figure 8",
        lambda: early([CALM[0]], "CALM"),
        note="digits",
    ),
    Claim(
        "FedCALM",
        "… and makes it more stable (sum of all drops of accuracy between evaluations)",
        "FedCALM Figure 8",
        lambda: smoother(CALM[0], "CALM"),
        note="digits; five evaluations",
    ),
    Claim(
        "FedCALM",
        "CALM's gain is smaller on CIFAR-10, where clients are less heterogeneous, than on Flowers102",
        FIGURE5,
        unfit="not run: our studies of CALM are on digits and natural clients",
    ),
    Claim(
        "FedCALM",
        "CALM improves methods on a transformer",
        "FedCALM Table 10",
        unfit="15 rounds, most runs unstable, every learning rate at an end of its grid",
        paper_has=lambda: in_brief(gaps("fedcalm-table10", {"rule": "CALM"}, {"rule": MEAN})),
    ),
    Claim(
        "FedCALM",
        "FedCALM's second stage improves on its first (the projection)",
        "FedCALM Table 6",
        lambda: over("fedcalm-table6", "FedCALM (stages=2)", ["FedCALM (stages=1)"]),
        paper_has=lambda: in_brief(second_stage()),
    ),
    Claim(
        "FedCALM",
        "FedCALM is better than FedCP and FedPAC",
        "FedCALM Table 6",
        lambda: over("fedcalm-table6", "FedCALM (stages=2)", ["FedCP", "FedPAC"]),
        paper_has=lambda: f"over FedCP: {above_fedcp('2')}",
    ),
    Claim(
        "FedCALM",
        "… and so is its first stage by itself",
        "FedCALM Table 6",
        lambda: over("fedcalm-table6", "FedCALM (stages=1)", ["FedCP", "FedPAC"]),
        paper_has=lambda: f"over FedCP: {above_fedcp('1')}",
    ),
    Claim(
        "FedCALM",
        "FedCALM's median client and worst client are far better than those of other methods",
        "FedCALM Figure 9",
        lambda: by_client("fedcalm-table6", "FedCALM (stages=2)", ("FedRep", "FedALA", "FedCP", "FedPAC")),
    ),
    Claim(
        "FedCALM",
        "eps = 0.1 is better than 0.01 and 1 (with C = 10)",
        "FedCALM Table 8",
        lambda: over(
            "fedcalm-table8", "FedCALM (eps=0.1, C=10.0)", [f"FedCALM (eps={e}, C=10.0)" for e in ("0.01", "1.0")]
        ),
        paper_has=lambda: value_over("method.eps", "0.1", "0.01", "1", C="10"),
    ),
    Claim(
        "FedCALM",
        "accuracy is higher with a medium C (10) than with 0.1 and 100",
        "FedCALM Table 8",
        lambda: beyond_the_ends("fedcalm-table8", [f"FedCALM (eps=0.1, C={c})" for c in ("0.1", "10.0", "100.0")], 1),
        paper_has=lambda: value_over("method.C", "10", "0.1", "100", eps="0.1"),
    ),
    Claim(
        "FedCALM",
        "with a larger C, more clients have weight (effective number of clients)",
        "FedCALM Figure 6",
        more_clients_with_c,
        note="effective number of clients in the first ten rounds; the paper compares two networks",
    ),
    Claim(
        "FedCALM",
        "with C = 10, the weights of clients even out in bias layers (effective number of clients)",
        "FedCALM Figure 7",
        biases_even_out,
        note="effective number of 20 clients, last ten rounds over first ten, digits; "
        "with C = 0.1 it is 20 from the start",
    ),
    Claim(
        "FEDORA",
        "FEDORA is better than local training",
        BALANCED,
        alone,
        paper_has=lambda: in_brief(gaps("fedora-balanced", {"method": "FEDORA"}, {"method": LOCAL})),
    ),
    Claim(
        "FEDORA",
        "FEDORA is better than other personalised methods",
        BALANCED,
        rivals,
        note="3 of the slides' 15 baselines",
        paper_has=lambda: in_brief(
            [gap for rival in RIVALS for gap in gaps("fedora-balanced", {"method": "FEDORA"}, {"method": rival})]
        ),
    ),
    Claim(
        "FEDORA",
        "plain averaging is worse than local training",
        BALANCED,
        averaged,
        paper_has=lambda: in_brief(
            gaps("fedora-balanced", {"method": LOCAL}, {"method": "FedAvg", "method.personal_model": "global"})
        ),
    ),
    Claim(
        "FEDORA",
        "a client with many samples is worse off under plain averaging",
        IMBALANCED,
        lambda: contrary(beside_the_big(range(1), *PLAIN)),
    ),
    Claim(
        "FEDORA",
        "… clients similar to it gain by joining",
        IMBALANCED,
        lambda: beside_the_big(range(1, 3), "FEDORA", "LG-FedAvg", "Ditto"),
    ),
    Claim(
        "FEDORA",
        "… clients dissimilar to it may be worse off",
        IMBALANCED,
        lambda: contrary(beside_the_big(range(7, 19), *PLAIN)),
    ),
    Claim(
        "FEDORA",
        "FEDORA sends about as much as FedAvg (% of FedAvg's bytes)",
        "FEDORA communication",
        traffic,
        same=True,
        note="without variation: the bytes are the same for every seed",
        paper_has=lambda: number(100 * (118_282_784 / 118_282_000 - 1), 4),
    ),
    Claim(
        "FEDORA",
        "FEDORA needs less time per round than FedFomo, FedU and FedAMP (% of processor time)",
        "FEDORA efficiency",
        faster,
        paired_by="round",
        note="our implementations, rotated MNIST; paired by round; measured on a shared machine; "
        "without FEDORA's first round",
    ),
    Claim(
        "FedPG",
        "FedPG's global model is the most accurate",
        "FedPG Table 1",
        lambda: online("global-acc"),
        note=f"{BY_COMMON}; FedRep's and FedFomo's global models are means of client models that no client uses",
        paper_has=lambda: fedpg_over("global", *COMMON, *MADE, *LATER[:2]),
    ),
    Claim(
        "FedPG",
        "… also with half or all of the clients participating",
        "FedPG Table 2",
        lambda: more_online("global-acc"),
        note=BY_COMMON,
        paper_has=lambda: fedpg_with_more_online("global"),
    ),
    Claim(
        "FedPG",
        "FedPG's personal models are the most accurate on all clients' tests (G-acc)",
        "FedPG Table 1",
        lambda: online("G-acc"),
        note="learning rates chosen by G-acc on validation samples",
        paper_has=lambda: fedpg_over("G-acc", *COMMON, *PERSONAL, *LATER),
    ),
    Claim(
        "FedPG",
        "… also with half or all of the clients participating",
        "FedPG Table 2",
        lambda: more_online("G-acc"),
        note=BY_COMMON,
        paper_has=lambda: fedpg_with_more_online("G-acc"),
    ),
    Claim(
        "FedPG",
        "with ten clients, FedPG has the highest S-acc, ahead of S-FedPG, Ditto and FedAvg",
        "FedPG Figure 2",
        lambda: over("fedpg-figure1", "FedPG", ["S-FedPG (s=1)", "Ditto", "FedAvg"], "S-acc"),
        note="learning rates chosen by S-acc on validation samples",
    ),
    Claim(
        "FedPG",
        "with gamma = 0, the personal models are as accurate on all clients' tests as the global model",
        "FedPG Table 2",
        abroad,
        same=True,
        paper_has=gamma_zero,
    ),
    Claim(
        "FedPG",
        "gamma > 0 raises the accuracy on clients' own tests",
        "FedPG Table 1",
        lambda: {g: line("fedpg-table1", g).over(line("fedpg-table1", GAMMAS[0])) for g in GAMMAS[1:]},
        paper_has=lambda: in_brief(
            [
                gap
                for gamma in ("0.3", "1.0")
                for gap in gaps("fedpg-table1", {"method.gamma": gamma}, {"method.gamma": "0"})
            ]
        ),
    ),
    Claim(
        "FedPG",
        "attacks A1 and A2 by a tenth of the clients do not harm FedPG's global model",
        "FedPG Table 3",
        lambda: attacked("FedPG"),
        same=True,
        note=BY_COMMON,
        paper_has=lambda: in_brief([under_attack("gaussian", "FedPG"), under_attack("scale", "FedPG")]),
    ),
    Claim(
        "FedPG",
        "… but harm FedAvg's",
        "FedPG Table 3",
        lambda: contrary(attacked("FedAvg")),
        note=BY_COMMON,
        paper_has=lambda: in_brief([-under_attack("gaussian", "FedAvg"), -under_attack("scale", "FedAvg")]),
    ),
    Claim(
        "FedPG",
        "*addition:* sign flips by a tenth of the clients harm FedPG's global model",
        "FedPG Table 3",
        lambda: contrary({"FedPG, flip": flip_of("FedPG")}),
        note=BY_COMMON,
    ),
    Claim(
        "FedPG",
        "… *addition:* and harm it more than FedAvg's",
        "FedPG Table 3",
        lambda: {"FedPG over FedAvg": between([flipped("FedAvg")], [flipped("FedPG")])},
        note=BY_COMMON,
    ),
    Claim(
        "FedPG",
        "*addition:* our repair of Lemma 1 improves the global model",
        "FedPG Table 1",
        lambda: repaired("fedpg-lemma"),
        note=f"two classes per client, a quarter participating; {BY_COMMON}",
    ),
    Claim(
        "FedPG",
        "… *addition:* after 5 rounds with four IID clients",
        "FedPG Table 1",
        lambda: repaired("fedpg-lemma-iid", "rounds=5"),
        note=BY_COMMON,
    ),
    Claim(
        "FedPG",
        "… *addition:* after 40 rounds with four IID clients",
        "FedPG Table 1",
        lambda: repaired("fedpg-lemma-iid", "rounds=40"),
        note=BY_COMMON,
    ),
    Claim(
        "FedPG",
        "S-FedPG's option s hardly matters (S-acc with s = 0 and 4 compared with 1)",
        "FedPG Figure 1",
        by_s,
        same=True,
        note="learning rates chosen by S-acc on validation samples",
    ),
    Claim(
        "FedPG",
        "S-FedPG converges more steadily than FedPG (sum of all drops of S-acc)",
        "FedPG Figure 1",
        steadier,
        note="the sum of all drops of S-acc between evaluations, in points",
    ),
)
