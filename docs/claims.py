"""What the papers claim, each claim with the comparisons that test it, and what came out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from measured import (
    LAST,
    LONGER,
    LONGEST,
    MEAN,
    NotRun,
    Stored,
    corrected,
    gained_at,
    grid,
    interval,
    line,
    lines,
    number,
)

from comity.compare import Difference, Spread

Comparisons = dict[str, Difference]
"""By what is compared; positive is what the claim says."""
CLOSE = 1.0
"""Points within which two numbers are called the same."""
NAMED = 3
"""So many differences are told one by one."""


@dataclass(frozen=True)
class Claim:
    paper: str
    says: str
    compared: Callable[[], Comparisons]
    same: bool = False
    """It says that nothing differs: then each interval must lie within ``CLOSE``."""

    def outcome(self) -> tuple[str, str]:
        """A word, and the evidence: which comparisons show it, which the contrary, and the range of the others."""
        try:
            found = self.compared()
        except NotRun as study:
            return "not tested", f"{study} was not run"
        real = [name for name, sure in zip(found, corrected(list(found.values())), strict=True) if sure]
        if self.same:
            yes = [name for name, each in found.items() if max(abs(each.low or 0), abs(each.high or 0)) < CLOSE]
        else:
            yes = [name for name in real if found[name].mean > 0]
        no = [name for name in real if name not in yes]
        if no:
            word = "mixed" if yes else "contradicted"
        else:
            word = "confirmed" if len(yes) == len(found) else "in part" if yes else "not seen"
        told = [f"{len(yes)} of {len(found)}{_listed(found, yes)}"]
        told += [f"the contrary in {len(no)}{_listed(found, no)}"] if no else []
        rest = [each.mean for name, each in found.items() if name not in (*yes, *no)]
        told += [f"others from {number(min(rest))} to {number(max(rest))}"] if rest else []
        return word, "; ".join(told)


def _listed(found: Comparisons, names: Sequence[str]) -> str:
    ranked = sorted(names, key=lambda name: -abs(found[name].mean))[:NAMED]
    return ": " + ", ".join(f"{name} {interval(found[name])}" for name in ranked) if ranked else ""


def claims() -> str:
    """The summary."""
    rows = [[claim.paper, claim.says, *claim.outcome()] for claim in CLAIMS]
    return grid(["paper", "claim", "outcome", "comparisons that show it, in points"], rows, left=4)


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


def abroad(*labels: str) -> Comparisons:
    """Everybody's accuracy of the personal models over the global model's own."""
    found = {label: line("fedpg-table1", label) for label in labels}
    return {label: between([each.by_seed("G-acc")], [each.by_seed("global-acc")]) for label, each in found.items()}


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


CLAIMS = (
    Claim("ConFREE", "improves every method", lambda: with_rule("ConFREE", CONFREE, MEAN)),
    Claim(
        "ConFREE",
        "… by its direction: also at the mean's length",
        lambda: with_rule("ConFREE (length=mean)", CONFREE, MEAN),
    ),
    Claim("ConFREE", "… by more than a longer step of Mean does", lambda: with_rule("ConFREE", CONFREE)),
    Claim("ConFREE", "improves APFL, FedALA and FedPAC more than FedROD, FedRep and FedCP", takers),
    Claim(
        "ConFREE",
        "improves them with more clients, of whom fewer take part",
        lambda: with_rule("ConFREE", [MORE_CLIENTS], MEAN),
    ),
    Claim(
        "ConFREE",
        "gains more with more clients",
        lambda: gains_more(MORE_CLIENTS, "ConFREE", *(f"clients={n}, participation=0.3" for n in (40, 20)), *TRIED),
    ),
    Claim(
        "ConFREE",
        "gains more where clients are less alike",
        lambda: gains_more("confree-figure2", "ConFREE", "alpha=0.05", "alpha=1.0", *TRIED),
    ),
    Claim("FedCALM", "CALM improves every method", lambda: with_rule("CALM", CALM, MEAN)),
    Claim(
        "FedCALM", "… by its direction: also at the mean's length", lambda: with_rule("CALM (length=mean)", CALM, MEAN)
    ),
    Claim("FedCALM", "… by more than a longer step of Mean does", lambda: with_rule("CALM", CALM)),
    Claim(
        "FedCALM",
        "CALM gains more in deeper nets",
        lambda: gains_more(CALM[0], "CALM", *DEPTHS, "FedRep", "FedALA", "FedPAC"),
    ),
    Claim(
        "FedCALM",
        "CALM improves methods on a transformer",
        lambda: with_rule("CALM", ["fedcalm-table10"], MEAN),
    ),
    Claim(
        "FedCALM",
        "the second stage adds to the projection",
        lambda: over("fedcalm-table6", "FedCALM (stages=2)", ["FedCALM (stages=1)"]),
    ),
    Claim(
        "FedCALM",
        "FedCALM is above FedCP and FedPAC",
        lambda: over("fedcalm-table6", "FedCALM (stages=2)", ["FedCP", "FedPAC"]),
    ),
    Claim(
        "FedCALM",
        "eps 0.1 is better than 0.01 and 1, at C 10",
        lambda: over(
            "fedcalm-table8", "FedCALM (eps=0.1, C=10.0)", [f"FedCALM (eps={e}, C=10.0)" for e in ("0.01", "1.0")]
        ),
    ),
    Claim("FEDORA", "is above training alone", alone),
    Claim("FEDORA", "is above the other personal methods", rivals),
    Claim("FEDORA", "plain averaging falls below training alone", averaged),
    Claim(
        "FEDORA",
        "a client with many samples loses by taking from all others",
        lambda: contrary(beside_the_big(range(1), *PLAIN)),
    ),
    Claim(
        "FEDORA", "clients like it gain by joining", lambda: beside_the_big(range(1, 3), "FEDORA", "LG-FedAvg", "Ditto")
    ),
    Claim("FEDORA", "clients unlike it may lose", lambda: contrary(beside_the_big(range(7, 19), *PLAIN))),
    Claim(
        "FedPG",
        "its global model is the best",
        lambda: online("global-acc"),
    ),
    Claim(
        "FedPG",
        "its personal models are best on everybody's tests",
        lambda: online("G-acc"),
    ),
    Claim(
        "FedPG",
        "so they are with everybody online on some others' tests, S-FedPG's second",
        lambda: over("fedpg-figure1", "FedPG", ["S-FedPG", "Ditto", "FedAvg"], "S-acc"),
    ),
    Claim("FedPG", "with gamma 0 they lose nothing against the global model", lambda: abroad(GAMMAS[0]), same=True),
    Claim(
        "FedPG",
        "gamma raises accuracy at home",
        lambda: {g: line("fedpg-table1", g).over(line("fedpg-table1", GAMMAS[0])) for g in GAMMAS[1:]},
    ),
    Claim("FedPG", "attacks of a tenth of the clients do not harm it", lambda: attacked("FedPG"), same=True),
    Claim(
        "FedPG",
        "… and harm FedAvg",
        lambda: contrary(attacked("FedAvg")),
    ),
)
