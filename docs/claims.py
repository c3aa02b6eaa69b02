"""What the papers claim, each claim with the comparisons that test it, and what came out."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import fmean, median
from typing import Any

from measured import (
    FOLDER,
    LAST,
    LONGER,
    LONGEST,
    MEAN,
    VARIANTS,
    NotRun,
    Stored,
    detectable,
    discovered,
    gained_at,
    grid,
    interval,
    line,
    lines,
    number,
    of_half,
    published_gain,
    read,
)

from comity.compare import Difference, Spread, holm
from comity.config import read_yaml
from comity.studies import examples
from comity.studies._cost import seconds
from comity.studies._grid import at_scale, expand
from comity.studies._papers import items

Comparisons = dict[str, Difference]
"""By what is compared; positive is what the claim says."""
CLOSE = 1.0
"""Points within which two numbers are called the same."""
NAMED = 3
"""So many differences are told one by one."""


SEEDS, STUDENT = 8, 2.365
"""Seeds of the studies, and the bound of Student's t at 95 % for them."""
SHOWN, PART, CONTRARY, NONE, UNTESTED = "shown", "shown in part", "contradicted", "no effect larger than", "not tested"


@dataclass(frozen=True)
class Claim:
    paper: str
    says: str
    item: str
    """The table or figure that it is about, as `comity reproduce --list` names it."""
    compared: Callable[[], Comparisons] = dict
    same: bool = False
    """It says that nothing differs: then each interval must lie within ``CLOSE``."""
    note: str = ""
    """What a reader must know beside the comparisons."""
    unfit: str = ""
    """Why the comparisons, if there are any, do not test it."""

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
            return UNTESTED, "–", f"{study} was not run"
        if self.unfit:
            return UNTESTED, "–", self.unfit
        real = [name for name, each in found.items() if each.p_value is not None and each.p_value <= level]
        if self.same:
            yes = [name for name, each in found.items() if max(abs(each.low or 0), abs(each.high or 0)) < CLOSE]
        else:
            yes = [name for name in real if found[name].mean > 0]
        no = [name for name in real if name not in yes]
        word = SHOWN if len(yes) == len(found) else PART if yes else CONTRARY
        if not yes and 2 * len(no) < len(found):
            word = f"{NONE} {number(max(each.high or 0.0 for each in found.values()), 1)}"
        told = [f"{len(yes)} of {len(found)}{_listed(found, yes)}"]
        told += [f"the contrary in {len(no)}{_listed(found, no)}"] if no else []
        rest = [each.mean for name, each in found.items() if name not in (*yes, *no)]
        told += [f"others from {number(min(rest))} to {number(max(rest))}"] if rest else []
        return word, self._power(level), "; ".join([*told, *([self.note] if self.note else [])])

    def _power(self, level: float) -> str:
        known = [size for each in self.found.values() if (size := detectable(each, level)) is not None]
        if not known:
            return "–"
        each = f" ({number(min(known), 1)} to {number(max(known), 1)})" if len(known) > 1 else ""
        return f"{number(median(known), 1)}{each}"


def _listed(found: Comparisons, names: Sequence[str]) -> str:
    ranked = sorted(names, key=lambda name: -abs(found[name].mean))[:NAMED]
    return ": " + ", ".join(f"{name} {interval(found[name])}" for name in ranked) if ranked else ""


@cache
def level() -> float:
    """Up to which p-value a comparison of the summary is real, corrected for all comparisons of all claims."""
    return discovered(_p_values())


def _p_values() -> list[float]:
    return [
        each.p_value for claim in CLAIMS if not claim.unfit for each in claim.found.values() if each.p_value is not None
    ]


def claims() -> str:
    """The summary."""
    rows = [[claim.paper, claim.says, *claim.outcome(level())] for claim in CLAIMS]
    return grid(["paper", "claim", "outcome", "would have found", "comparisons that show it, in points"], rows, left=5)


def counted_comparisons() -> str:
    """How many comparisons the correction counts, and which p-values are real."""
    known = _p_values()
    real = f"{sum(p <= level() for p in known)} are real (p up to {level():.3f})"
    return f"{len(known)} comparisons, of which {real}; Holm's would keep {sum(holm(known))}"


def every_item() -> str:
    """Every table and figure: its command, the runs of this page, times and state."""
    told, known = json.loads((FOLDER / "studies.json").read_text()), states()
    rows = []
    for item in items():
        here = sum(
            told[study]["runs"] for study in told if VARIANTS.get(study, study).partition(" ")[0] == item.example
        )
        name = f"`{item.example}`" if item.example else item.what
        rows.append([item.item, name, f"{here or '–'}", known[item.item].get("time", "–"), known[item.item]["state"]])
    heads = ["table or figure", "`comity reproduce …`", "runs here", "core time: desk, paper", "state"]
    return grid(heads, rows, left=5)


@cache
def states() -> dict[str, dict[str, str]]:
    """For `comity reproduce --list`: what came of each table and figure, and how long its example takes."""
    told = json.loads((FOLDER / "studies.json").read_text())
    found: dict[str, dict[str, str]] = {}
    for item in items():
        words = [claim.outcome(level())[0] for claim in CLAIMS if claim.item == item.item]
        tested = [word for word in dict.fromkeys(words) if word != UNTESTED]
        found[item.item] = {"state": "; ".join(tested) or UNTESTED}
        if item.example:
            entries = read_yaml(examples()[item.example])
            times = [f"{told[item.example]['core minutes']} min"] if item.example in told else ["–"]
            if "paper" in entries:
                times.append(f"{_hours(entries):,.0f} h")
            found[item.item]["time"] = ", ".join(times)
    return found


def _hours(entries: dict[str, Any]) -> float:
    """Hours of one core at the paper's scale, by the stored cost model; searches by their largest number of runs."""
    whole = at_scale(entries, "paper")
    tried = sum(len(values) for values in whole.get("tune", {}).values())
    return (1 + tried) * sum(map(seconds, expand(whole))) / 3600


# How lines are compared.


def with_rule(rule: str, studies: Iterable[str], base: str | None = None) -> Comparisons:
    """A rule under every method of these studies, by default over Mean at the best of its server rates."""
    found = {}
    for study in studies:
        for each in (each for each in lines(study) if each.rule == rule):
            other = best_mean(study, each) if base is None else line(study, f"{each.method} + {base}", each.block)
            found[f"{each.method} ({BLOCKS.get(each.block or study, each.block)})"] = each.over(other)
    return found


def best_mean(study: str, each: Stored) -> Stored:
    """Mean at its own length, twice or three times that, whichever has the best validation accuracy over all seeds."""
    means = [
        other
        for other in lines(study)
        if (other.block, other.method) == (each.block, each.method) and other.rule in (MEAN, LONGER, LONGEST)
    ]
    return max(means, key=lambda mean: mean.by_seed("val-acc").mean)


def over(study: str, label: str, others: Iterable[str], what: str = LAST) -> Comparisons:
    """One line over several others."""
    return {other: line(study, label).over(line(study, other), what) for other in others}


def between(first: Iterable[Spread], second: Iterable[Spread]) -> Difference:
    """The mean of some spreads over that of others, by seed."""
    one, other = list(first), list(second)
    seeds = set.intersection(*(set(each.by_seed) for each in (*one, *other)))
    means = {
        s: fmean(each.by_seed[s] for each in one) - fmean(each.by_seed[s] for each in other) for s in sorted(seeds)
    }
    found = Difference.over_seeds(Spread.of(means))
    assert found is not None
    return found


def gained(study: str, method: str, rule: str, block: str = "") -> Spread:
    """What a rule gains over Mean, by seed."""
    with_it, mean = (line(study, f"{method} + {each}", block).by_seed() for each in (rule, MEAN))
    return Spread({seed: with_it.by_seed[seed] - mean.by_seed[seed] for seed in with_it.by_seed})


# The claims.

BLOCKS = {"confree-table1": "digits", "confree-table1-clothing": "clothes", "confree-table1-rates": "flowers"}
BLOCKS |= {"confree-table1-cifar10": "CIFAR-10", "fedcalm-table10": "ViT"}
BLOCKS |= {"heart, clients=4": "heart", "watch, clients=20": "watch"}
BLOCKS |= {f"clients={n}, participation={p}": f"{n} clients, {p:.0%}" for n in (20, 40) for p in (0.3, 0.6)}
BLOCKS |= {"widths=64": "1 layer", "widths=64×64×64": "3 layers"}
DEPTHS = ("widths=64×64×64", "widths=64")
CONFREE = ("confree-table1", "confree-table1-clothing", "confree-table1-rates", "confree-table1-cifar10", "natural")
MORE_CLIENTS, TRIED = "confree-table2", ("APFL", "FedRep", "FedALA")
CALM = ("fedcalm-figure5", "natural")
FEDORA = "FEDORA (similarity=exp, neighbours=2, lam_form=exp)"
TURNED = {"fedora-balanced": "digits", "fedora-balanced-mnist": "MNIST"}
FEDORAS = TURNED | {"fedora-shifts": "label shift", "fedora-imbalanced": "one has more", "fedora-four": "four"}
PLAIN = ("FedAvg (personal_model=global)", "FedAvg (personal_model=finetune)")
RIVALS = ("LG-FedAvg", "Ditto", "FedFomo")
GAMMAS = ("FedPG (gamma=0.0)", "FedPG (gamma=0.3)", "FedPG (gamma=1.0)")
OTHERS = ("FedAvg", "FedMGDA+")


def takers() -> Comparisons:
    groups = (("APFL", "FedALA", "FedPAC"), ("FedROD", "FedRep", "FedCP"))
    gains = [[gained("confree-table1", method, "ConFREE") for method in group] for group in groups]
    return {"mean gain of the three over that of the three": between(*gains)}


def gains_more(study: str, rule: str, block: str, than: str, *methods: str) -> Comparisons:
    """What a rule gains over Mean in one block, over what it gains in another."""
    gains = {m: [gained(study, m, rule, at) for at in (block, than)] for m in methods}
    return {method: between([here], [there]) for method, (here, there) in gains.items()}


def alone() -> Comparisons:
    """FEDORA over training alone."""
    return {
        name: line(study, FEDORA if study in TURNED else "FEDORA").over(line(study, "Local"))
        for study, name in FEDORAS.items()
    }


def rivals() -> Comparisons:
    """FEDORA over others, where every client's images are turned."""
    return {
        f"{rival} ({name})": difference
        for study, name in TURNED.items()
        for rival, difference in over(study, FEDORA, RIVALS).items()
    }


def averaged() -> Comparisons:
    """Training alone over plain averaging."""
    plain = dict.fromkeys(("fedora-shifts", "fedora-imbalanced"), PLAIN[0])
    return {name: line(study, "Local").over(line(study, plain.get(study, "FedAvg"))) for study, name in FEDORAS.items()}


def beside_the_big(at: range, *methods: str) -> Comparisons:
    """What clients so many tens of degrees from the one with most samples gain over Local."""
    return {method: gained_at("fedora-imbalanced", method, 18, 36, at) for method in methods}


def contrary(found: Comparisons) -> Comparisons:
    return {
        name: Difference(-each.mean, -(each.high or 0.0), -(each.low or 0.0), each.p_value, each.seeds)
        for name, each in found.items()
    }


def abroad() -> Comparisons:
    """Everybody's accuracy of the personal models with gamma 0 over the global model's own."""
    found = {"a quarter online": line("fedpg-table1", GAMMAS[0]), "all of 10 online": line("fedpg-figure1", "FedPG")}
    found |= {
        f"{share} online": line("fedpg-table2", GAMMAS[0], f"participation={p}")
        for share, p in (("half", 0.5), ("all", 1.0))
    }
    return {name: between([each.by_seed("G-acc")], [each.by_seed("global-acc")]) for name, each in found.items()}


def online(what: str) -> Comparisons:
    """FedPG over FedAvg with more and more clients online, beside all other methods with a quarter of them."""
    blocks = {f"FedAvg, {share} online": f"participation={part}" for share, part in (("half", 0.5), ("all", 1.0))}
    pairs = {name: [line("fedpg-table2", m, block) for m in (GAMMAS[0], "FedAvg")] for name, block in blocks.items()}
    return over("fedpg-table1", GAMMAS[0], OTHERS, what) | {name: a.over(b, what) for name, (a, b) in pairs.items()}


def attacked(*labels: str) -> Comparisons:
    """The common model under attack over that of the same method without."""
    found = {}
    for label in labels:
        clean, *dirty = (line("fedpg-table3", label, f"attack={a}") for a in ("none", "gaussian", "scale"))
        for attack, each in zip(("A1", "A2"), dirty, strict=True):
            found[f"{label}, {attack}"] = between([each.by_seed("global-acc")], [clean.by_seed("global-acc")])
    return found


def beyond_the_ends(study: str, labels: Sequence[str], inner: int) -> Comparisons:
    """A value in the middle over the smallest and the largest."""
    middle = line(study, labels[inner])
    return {f"{labels[inner]} over {other}": middle.over(line(study, other)) for other in (labels[0], labels[-1])}


def by_participation() -> Comparisons:
    """What ConFREE gains more with fewer online under APFL and FedALA, and with more online under FedRep."""
    found = {}
    for n in (20, 40):
        few, many = (f"clients={n}, participation={p}" for p in (0.3, 0.6))
        for method in TRIED:
            blocks = (many, few) if method == "FedRep" else (few, many)
            (found[f"{method}, {n} clients"],) = gains_more(MORE_CLIENTS, "ConFREE", *blocks, method).values()
    return found


def conflict_by_depth() -> Comparisons:
    """The share of conflicting pairs in the deeper net over that in the other, with Mean, by Welch's error."""
    found = {}
    for method in ("FedRep", "FedALA", "FedPAC"):
        deep, flat = (line(CALM[0], f"{method} + {MEAN}", block).entries["conflict"] for block in DEPTHS)
        if deep.value is None or flat.value is None:
            continue
        error = math.hypot(float(deep.parts[0] or 0), float(flat.parts[0] or 0)) / math.sqrt(SEEDS)
        found[method] = of_half(deep.value - flat.value, STUDENT * error, SEEDS)
    return found


def more_clients_with_c() -> Comparisons:
    """How many more clients the weights are worth with C 10 than with 0.1, in the first fifth of the rounds."""
    rows = [row for row in read("fedcalm-figure6-weights.csv") if int(row["round"]) <= 10]
    found = {}
    for layer in dict.fromkeys(row["layer"] for row in rows):
        large, small = (
            Spread(
                {
                    seed: fmean(
                        float(row["clients"])
                        for row in rows
                        if row["layer"] == layer and row["method"].endswith(f"C={c})") and int(row["seed"]) == seed
                    )
                    for seed in range(SEEDS)
                }
            )
            for c in ("10.0", "0.1")
        )
        found[layer] = between([large], [small])
    return found


def early(studies: Iterable[str], rule: str) -> Comparisons:
    """A rule over Mean at the first evaluation."""
    return {
        f"{each.method} ({BLOCKS.get(each.block or study, each.block)})": each.over(
            line(study, f"{each.method} + {MEAN}", each.block), "first"
        )
        for study in studies
        for each in lines(study)
        if each.rule == rule
    }


def _largest(method: str) -> str:
    setting = {"data": "flowers102", "clients": "60", "participation": "0.3"}
    return published_gain("confree-table2", "ConFREE", MEAN, method=method, **setting)


TABLE1, TABLE2, TABLE3 = (f"ConFREE Table {n}" for n in (1, 2, 3))
FIGURE5, BALANCED = "FedCALM Figure 5", "FEDORA slides, balanced setting: MNIST, Fashion-MNIST"
IMBALANCED = "FEDORA slides, imbalanced setting"
FIXED = "here and below c is 0.5 for every method; the paper tunes it"
RATES = "rates were chosen by accuracy at home"
CLAIMS = (
    Claim("ConFREE", "improves every method", TABLE1, lambda: with_rule("ConFREE", CONFREE, MEAN), note=FIXED),
    Claim(
        "ConFREE",
        "… by its direction: also at the mean's length",
        TABLE1,
        lambda: with_rule("ConFREE (length=mean)", CONFREE, MEAN),
    ),
    Claim("ConFREE", "… by more than a longer step of Mean", TABLE1, lambda: with_rule("ConFREE", CONFREE)),
    Claim("ConFREE", "improves APFL, FedALA and FedPAC more than FedROD, FedRep and FedCP", TABLE2, takers),
    Claim(
        "ConFREE",
        "improves methods with more clients, of whom fewer take part",
        TABLE2,
        lambda: with_rule("ConFREE", [MORE_CLIENTS], MEAN),
    ),
    Claim(
        "ConFREE",
        "gains more with more clients",
        TABLE2,
        lambda: gains_more(MORE_CLIENTS, "ConFREE", *(f"clients={n}, participation=0.3" for n in (40, 20)), *TRIED),
    ),
    Claim(
        "ConFREE",
        "gains less with more online under APFL and FedALA, more under FedRep",
        TABLE2,
        by_participation,
    ),
    Claim(
        "ConFREE",
        f"largest gains: {_largest('APFL')} under APFL, {_largest('FedALA')} under FedALA (Flowers102, 60 clients)",
        "ConFREE Table 2, largest gains",
        unfit="prepared, not run: `comity reproduce confree-decisive --scale paper`",
    ),
    Claim(
        "ConFREE",
        "gains more where clients are less similar",
        "ConFREE poster Figure 2",
        unfit="accuracies of dissimilar clients are near 100 %, so points do not compare; the poster's alphas are unknown",
    ),
    Claim(
        "ConFREE",
        "gains more on data with more classes",
        TABLE1,
        unfit="our data sets differ in far more than their classes",
    ),
    Claim(
        "ConFREE",
        "accuracy rises, then falls with c",
        TABLE3,
        lambda: {
            name: difference
            for method in TRIED
            for name, difference in beyond_the_ends(
                "confree-table3", [f"{method} + ConFREE (c={c})" for c in (0.1, 0.5, 0.9)], 1
            ).items()
        },
    ),
    Claim(
        "ConFREE",
        "sends less, and takes hardly longer",
        TABLE1,
        unfit="the traffic is the same by construction; seconds were taken on a shared machine",
    ),
    Claim("FedCALM", "CALM improves every method", FIGURE5, lambda: with_rule("CALM", CALM, MEAN)),
    Claim(
        "FedCALM",
        "… by its direction: also at the mean's length",
        FIGURE5,
        lambda: with_rule("CALM (length=mean)", CALM, MEAN),
    ),
    Claim("FedCALM", "… by more than a longer step of Mean", FIGURE5, lambda: with_rule("CALM", CALM)),
    Claim(
        "FedCALM",
        "CALM gains more in deeper nets",
        FIGURE5,
        lambda: gains_more(CALM[0], "CALM", *DEPTHS, "FedRep", "FedALA", "FedPAC"),
    ),
    Claim(
        "FedCALM",
        "conflict grows with depth",
        FIGURE5,
        conflict_by_depth,
        note="share of pairs in conflict, in %; not paired by seed",
    ),
    Claim(
        "FedCALM",
        "CALM converges faster",
        "FedCALM Figure 8",
        lambda: early([CALM[0]], "CALM"),
        note="accuracy after ten of fifty rounds, digits",
    ),
    Claim(
        "FedCALM",
        "CALM improves methods on a transformer",
        "FedCALM Table 10",
        unfit="15 rounds, most runs unstable, each rate at an end of its grid",
    ),
    Claim(
        "FedCALM",
        "the second stage adds to the projection",
        "FedCALM Table 6",
        lambda: over("fedcalm-table6", "FedCALM (stages=2)", ["FedCALM (stages=1)"]),
        note="the grid of rates was widened after the first result",
    ),
    Claim(
        "FedCALM",
        "FedCALM is above FedCP and FedPAC",
        "FedCALM Table 6",
        lambda: over("fedcalm-table6", "FedCALM (stages=2)", ["FedCP", "FedPAC"]),
    ),
    Claim(
        "FedCALM",
        "… the projection alone is second best",
        "FedCALM Table 6",
        lambda: over("fedcalm-table6", "FedCALM (stages=1)", ["FedCP", "FedPAC"]),
    ),
    Claim(
        "FedCALM",
        "median and least client are far above those of others",
        "FedCALM Figure 9",
        unfit="accuracies of single clients were not kept",
    ),
    Claim(
        "FedCALM",
        "eps 0.1 is better than 0.01 and 1, at C 10",
        "FedCALM Table 8",
        lambda: over(
            "fedcalm-table8", "FedCALM (eps=0.1, C=10.0)", [f"FedCALM (eps={e}, C=10.0)" for e in ("0.01", "1.0")]
        ),
    ),
    Claim(
        "FedCALM",
        "accuracy rises, then falls with C",
        "FedCALM Table 8",
        lambda: beyond_the_ends("fedcalm-table8", [f"FedCALM (eps=0.1, C={c})" for c in ("0.1", "10.0", "100.0")], 1),
    ),
    Claim(
        "FedCALM",
        "more clients have weight with a larger C",
        "FedCALM Figure 6",
        more_clients_with_c,
        note="clients that the weights are worth, in the first ten rounds; the paper compares two nets",
    ),
    Claim("FEDORA", "is above training alone", BALANCED, alone),
    Claim("FEDORA", "is above the other personal methods", BALANCED, rivals, note="3 of the 15 baselines"),
    Claim("FEDORA", "plain averaging falls below training alone", BALANCED, averaged),
    Claim(
        "FEDORA",
        "a client with many samples loses by taking from all others",
        IMBALANCED,
        lambda: contrary(beside_the_big(range(1), *PLAIN)),
    ),
    Claim(
        "FEDORA",
        "clients similar to it gain by joining",
        IMBALANCED,
        lambda: beside_the_big(range(1, 3), "FEDORA", "LG-FedAvg", "Ditto"),
    ),
    Claim("FEDORA", "clients unlike it may lose", IMBALANCED, lambda: contrary(beside_the_big(range(7, 19), *PLAIN))),
    Claim(
        "FEDORA",
        "is faster than FedFomo, FedU and FedAMP",
        "FEDORA slides, efficiency",
        unfit="seconds were taken on a shared machine",
    ),
    Claim(
        "FedPG",
        "its global model is the best",
        "FedPG Table 1",
        lambda: online("global-acc"),
        note=f"2 of 12 rivals; {RATES}",
    ),
    Claim(
        "FedPG",
        "its personal models are best on everybody's tests",
        "FedPG Table 1",
        lambda: online("G-acc"),
        note=f"2 of 12 rivals; {RATES}",
    ),
    Claim(
        "FedPG",
        "so they are with everybody online on some others' tests, S-FedPG's second",
        "FedPG Figure 2",
        lambda: over("fedpg-figure1", "FedPG", ["S-FedPG", "Ditto", "FedAvg"], "S-acc"),
        note=RATES,
    ),
    Claim("FedPG", "with gamma 0 they lose nothing against the global model", "FedPG Table 2", abroad, same=True),
    Claim(
        "FedPG",
        "gamma raises accuracy at home",
        "FedPG Table 1",
        lambda: {g: line("fedpg-table1", g).over(line("fedpg-table1", GAMMAS[0])) for g in GAMMAS[1:]},
    ),
    Claim(
        "FedPG",
        "attacks of a tenth of the clients (A1, A2) do not harm it",
        "FedPG Table 3",
        lambda: attacked("FedPG"),
        same=True,
    ),
    Claim("FedPG", "… and harm FedAvg", "FedPG Table 3", lambda: contrary(attacked("FedAvg"))),
    Claim(
        "FedPG",
        "s of S-FedPG hardly matters; S-FedPG converges more steadily",
        "FedPG Figure 1",
        unfit="one s, and no curve of S-acc, was kept",
    ),
)
