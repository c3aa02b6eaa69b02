"""The comparisons that test the papers' claims: differences between configurations of the studies in docs/results."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

from differences import of_half
from measured import LAST, LONGER, LONGEST, MEAN, NotRun, Stored, gained_at, line, lines, of_clients, read

from comity.compare import Difference, Spread

Comparisons = dict[str, Difference]
"""By what is compared; positive is what the claim says."""
SEEDS, STUDENT = 8, 2.365
"""Seeds of the studies, and the bound of Student's t at 95 % for them."""


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


BLOCKS = {"confree-table1": "digits", "confree-table1-clothing": "Fashion-MNIST"}
BLOCKS |= dict.fromkeys(("confree-table1-night", "confree-table1-rates"), "Flowers102")
BLOCKS |= {"confree-tuned": "Fashion-MNIST", "confree-table1-cifar10": "CIFAR-10", "fedcalm-table10": "ViT"}
BLOCKS |= {"heart, clients=4": "heart", "watch, clients=20": "watch"}
BLOCKS |= {f"clients={n}, participation={p}": f"{n} clients, {100 * p:.0f} %" for n in (20, 40) for p in (0.3, 0.6)}
BLOCKS |= {"widths=64": "1 layer", "widths=64×64×64": "3 layers"}
DEPTHS = ("widths=64×64×64", "widths=64")
CONFREE = (
    "confree-table1",
    "confree-table1-clothing",
    "confree-table1-night",
    "confree-table1-rates",
    "confree-table1-cifar10",
    "natural",
)
"""Of what two studies compare, such as FedRep on Flowers102, the later one counts: its learning rates are larger."""
MORE_CLIENTS, TRIED = "confree-table2", ("APFL", "FedRep", "FedALA")
CALM = ("fedcalm-figure5", "natural")
FEDORA = "FEDORA (similarity=exp, neighbours=2, lam_form=exp)"
TURNED = {"fedora-balanced": "digits", "fedora-balanced-mnist": "MNIST"}
FEDORAS = TURNED | {
    "fedora-shifts": "label shift",
    "fedora-imbalanced": "one large client",
    "fedora-four": "four clients",
}
PLAIN = ("FedAvg (personal_model=global)", "FedAvg (personal_model=finetune)")
RIVALS = ("LG-FedAvg", "Ditto", "FedFomo")
GAMMAS = ("FedPG (gamma=0.0)", "FedPG (gamma=0.3)", "FedPG (gamma=1.0)")
COMMON = ("FedAvg", "FedProx", "FedFV", "FedMGDA+", "APFL", "Ditto", "pFedMe", "Per-FedAvg")
MADE = ("FedRep", "FedFomo")
PERSONAL = (*MADE, "FedAvg (personal_model=finetune)")
"""Rivals of FedPG: with a common model, with one that is made for the evaluation, and those without another."""
LATER = ("FedROD", "SplitGP", "FedAMP")
"""Rivals that were run in studies of their own; the last one has no common model."""
TUNED = "confree-tuned"


def takers() -> Comparisons:
    groups = (("APFL", "FedALA", "FedPAC"), ("FedROD", "FedRep", "FedCP"))
    gains = [[gained("confree-table1", method, "ConFREE") for method in group] for group in groups]
    return {"mean gain under the first three minus that under the other three": between(*gains)}


def gains_more(study: str, rule: str, block: str, than: str, *methods: str) -> Comparisons:
    """What a rule gains over Mean in one block, over what it gains in another."""
    gains = {m: [gained(study, m, rule, at) for at in (block, than)] for m in methods}
    return {method: between([here], [there]) for method, (here, there) in gains.items()}


def alone() -> Comparisons:
    """FEDORA over training alone, with label shift also where two clients each have the same favourite class."""
    found = {
        name: line(study, FEDORA if study in TURNED else "FEDORA").over(line(study, "Local"))
        for study, name in FEDORAS.items()
    }
    pairs = {"pairs": "FEDORA (labels=False)", "pairs, with labels": "FEDORA (labels=True)"}
    return found | {
        name: line("fedora-pairs", label).over(line("fedora-pairs", "Local")) for name, label in pairs.items()
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
    """Everybody's accuracy of the personal models with gamma 0 over the common model's own, in every study."""
    found = {
        "a quarter participating": line("fedpg-table1", GAMMAS[0]),
        "all of 10 participating": line("fedpg-figure1", "FedPG"),
    }
    found |= {f"{share} participating": each for share, (each, *_) in by_share().items()}
    return {name: between([each.by_seed("G-acc")], [each.by_seed("global-acc")]) for name, each in found.items()}


def by_share() -> dict[str, list[Stored]]:
    """FedPG, FedAvg and FedFV with more clients online."""
    return {
        share: [line("fedpg-table2", method, f"participation={p}") for method in ("FedPG", "FedAvg", "FedFV")]
        for share, p in (("half", 0.5), ("all", 1.0))
    }


def online(what: str) -> Comparisons:
    """FedPG over all rivals with a quarter of the clients online."""
    if what == "global-acc":
        ours = line("fedpg-table1-global", GAMMAS[0])
        theirs = dict.fromkeys(COMMON, "fedpg-table1-global") | dict.fromkeys(MADE, "fedpg-table1-others")
        theirs |= dict.fromkeys(LATER[:2], "fedpg-table1-more-global")
    else:
        ours = line("fedpg-table1", GAMMAS[0])
        theirs = dict.fromkeys((*COMMON, *PERSONAL), "fedpg-table1") | dict.fromkeys(LATER, "fedpg-table1-more")
    return {name: ours.over(line(study, name), what) for name, study in theirs.items()}


def more_online(what: str) -> Comparisons:
    """FedPG over FedAvg and FedFV with more clients online."""
    return {
        f"{each.method}, {share} participating": ours.over(each, what)
        for share, (ours, *theirs) in by_share().items()
        for each in theirs
    }


def attacked(label: str) -> Comparisons:
    """The common model under attack over that of the same method without."""
    clean, *dirty = (line("fedpg-table3", label, f"attack={a}") for a in ("none", "gaussian", "scale"))
    return {
        f"{label}, {attack}": between([each.by_seed("global-acc")], [clean.by_seed("global-acc")])
        for attack, each in zip(("A1", "A2"), dirty, strict=True)
    }


def flipped(label: str) -> Spread:
    """The common model under sign flips over that without, by seed."""
    dirty, clean = (line("fedpg-table3", label, f"attack={a}").by_seed("global-acc").by_seed for a in ("flip", "none"))
    return Spread({seed: dirty[seed] - clean[seed] for seed in dirty})


def flip_of(label: str) -> Difference:
    """What sign flips change in a method's common model."""
    found = Difference.over_seeds(flipped(label))
    assert found is not None
    return found


def by_s() -> Comparisons:
    """S-acc of S-FedPG with the other values of s over that with s 1, the supplement's."""
    one = line("fedpg-figure1", "S-FedPG (s=1)")
    return {f"s = {s}": line("fedpg-figure1", f"S-FedPG (s={s})").over(one, "S-acc") for s in (0, 4)}


def steadier() -> Comparisons:
    """By how much FedPG's S-acc falls more than S-FedPG's, all falls between evaluations added up."""
    one, other = (line("fedpg-figure1", label) for label in ("FedPG", "S-FedPG (s=1)"))
    names = [name for name in one.runs[0] if name.startswith("S-acc ") and name.split()[-1].isdigit()]
    return {"FedPG": between(*([falls(each, [*names, "S-acc"])] for each in (one, other)))}


def smoother(study: str, rule: str) -> Comparisons:
    """By how much accuracy falls more with Mean than with a rule, all falls between evaluations added up."""
    found = {}
    for each in (each for each in lines(study) if each.rule == rule):
        names = [name for name in each.runs[0] if name.startswith("round ")]
        mean = line(study, f"{each.method} + {MEAN}", each.block)
        found[f"{each.method} ({BLOCKS[each.block]})"] = between([falls(mean, names)], [falls(each, names)])
    return found


def falls(each: Stored, names: Sequence[str]) -> Spread:
    """All falls from one of these columns to the next added up, by seed."""
    curves = {int(run["seed"]): [float(run[name]) for name in names] for run in each.runs}
    return Spread({seed: sum(max(0.0, a - b) for a, b in pairwise(curve)) for seed, curve in curves.items()})


def beyond_the_ends(study: str, labels: Sequence[str], inner: int) -> Comparisons:
    """A value in the middle over the smallest and the largest."""
    middle = line(study, labels[inner])
    return {f"over {other}": middle.over(line(study, other)) for other in (labels[0], labels[-1])}


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
    layers = dict.fromkeys(row["layer"] for row in read(WEIGHTS))
    return {layer: between([worth(layer, "10.0", FIRST)], [worth(layer, "0.1", FIRST)]) for layer in layers}


def biases_even_out() -> Comparisons:
    """How many more clients the bias layer's weights are worth in the last fifth of the rounds than in the first."""
    layer = "body.fc1.bias"
    return {layer: between([worth(layer, "10.0", FINAL)], [worth(layer, "10.0", FIRST)])}


WEIGHTS, FIRST, FINAL = "fedcalm-figure6-weights.csv", range(1, 11), range(41, 51)


def worth(layer: str, c: str, rounds: range) -> Spread:
    """How many clients the rule's weights are worth with this C, mean over rounds, by seed."""
    rows = [row for row in read(WEIGHTS) if row["layer"] == layer and row["method"].endswith(f"C={c})")]
    kept = [(int(row["seed"]), float(row["clients"])) for row in rows if int(row["round"]) in rounds]
    return Spread({seed: fmean(clients for s, clients in kept if s == seed) for seed in range(SEEDS)})


def traffic() -> Comparisons:
    """By how much FEDORA sends more than FedAvg, in percent: bytes do not vary over seeds, so there is no p-value."""
    found = {}
    for study, name in FEDORAS.items():
        plain = PLAIN[0] if study in ("fedora-shifts", "fedora-imbalanced") else "FedAvg"
        ours, theirs = (
            float(line(study, label).entries["MB"].value or 0)
            for label in (FEDORA if study in TURNED else "FEDORA", plain)
        )
        more = 100 * (ours / theirs - 1)
        found[name] = Difference(more, more, more, None, SEEDS)
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


def tuned() -> Comparisons:
    """ConFREE over Mean, each with its own tuned options."""
    arms = {(each.method, each.rule.partition(" (")[0]): each for each in lines(TUNED)}
    return {f"{m} (Fashion-MNIST)": arms[m, "ConFREE"].over(arms[m, MEAN]) for m in dict.fromkeys(m for m, _ in arms)}


def by_client(study: str, label: str, others: Iterable[str]) -> Comparisons:
    """The median client and the least one of a method over those of others."""
    kinds = {"median client": median, "worst client": min}
    return {
        f"{other}, {kind}": between([of_clients(study, label, how)], [of_clients(study, other, how)])
        for kind, how in kinds.items()
        for other in others
    }


def repaired(study: str, block: str = "") -> Comparisons:
    """FedPG's common model with Lemma 1's repair over that without, by the share below which the term is dropped."""
    plain, *mended = (line(study, f"FedPG (least_descent={share})", block) for share in ("0.0", "0.1", "0.5", "1.0"))
    return {
        f"least_descent {share:g}": each.over(plain, "global-acc")
        for share, each in zip((0.1, 0.5, 1), mended, strict=True)
    }


def longer() -> Comparisons:
    """By how much a round takes longer with ConFREE than with Mean, in percent of processor time."""
    return {
        method: of_ratio(seconds(method, "ConFREE"), seconds(method, MEAN))
        for method in ("FedRep", "FedALA", "APFL", "FedPAC")
    }


def faster() -> Comparisons:
    """By how much a round of FEDORA is shorter than that of others, in percent of theirs."""
    rivals = ("FedFomo", "FedU", "FedAMP")
    return contrary({rival: of_ratio(seconds("FEDORA"), seconds(rival)) for rival in rivals})


def seconds(method: str, rule: str = "") -> Spread:
    """Processor seconds of each round."""
    rows = [row for row in read("paper-seconds.csv") if (row["method"], row["rule"]) == (method, rule)]
    if not rows:
        raise NotRun("paper-seconds")
    return Spread({int(row["round"]): float(row["seconds"]) for row in rows})


def of_ratio(one: Spread, other: Spread) -> Difference:
    """By how many percent one is above the other, by round."""
    found = Difference.over_seeds(Spread({s: 100 * (one.by_seed[s] / other.by_seed[s] - 1) for s in one.by_seed}))
    assert found is not None
    return found
