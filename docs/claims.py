"""What the papers claim, each claim with the comparisons that test it, and what came out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from measured import LONGER, MEAN, Line, corrected, interval, line, lines

from comity.results.statistics import Difference, Spread

Comparisons = dict[str, Difference]
"""By what is compared; positive is what the claim says."""
CLOSE = 1.0
"""Points within which two numbers are called the same."""
RULES = ("confree-table1", "natural", "direction-or-length")
"""The studies that have ConFREE beside Mean."""


@dataclass(frozen=True)
class Claim:
    paper: str
    says: str
    compared: Callable[[], Comparisons]
    same: bool = False
    """It says that nothing differs: then each interval must lie within ``CLOSE``."""

    def outcome(self) -> tuple[str, str]:
        """A word, and the evidence for it: how often, and the largest and the smallest difference."""
        found = self.compared()
        real = dict(zip(found, corrected(list(found.values())), strict=True))
        yes = [name for name, each in found.items() if real[name] and each.mean > 0]
        no = [name for name in found if real[name] and name not in yes]
        if self.same:
            yes = [name for name, each in found.items() if max(abs(each.low or 0), abs(each.high or 0)) < CLOSE]
            no = [name for name in found if real[name] and name not in yes]
        if yes and no:
            word = "mixed"
        elif no:
            word = "contradicted"
        else:
            word = "confirmed" if len(yes) == len(found) else "in part" if yes else "not seen"
        ranked = sorted(found, key=lambda name: -found[name].mean)
        ends = "; ".join(f"{name} {interval(found[name])}" for name in dict.fromkeys((ranked[0], ranked[-1])))
        against = f", the contrary in {len(no)}" if no else ""
        return word, f"{len(yes)} of {len(found)}{against}: {ends}"


def with_rule(rule: str, studies: Iterable[str], base: str | None = None) -> Comparisons:
    """A rule under every method of these studies, by default over Mean at the better of two server rates."""
    found = {}
    for study in studies:
        for each in (each for each in lines(study) if each.rule == rule):
            if base is None and not each.runs:
                continue  # the table alone compares with Mean as it is
            other = best_mean(study, each) if base is None else line(study, f"{each.method} + {base}", each.block)
            found[f"{each.method}, {each.block.split(',')[0] or 'digits'}"] = each.over(other)
    return found


def best_mean(study: str, each: Line) -> Line:
    """Mean at its own length or twice that, whichever has the better validation accuracy over all seeds."""
    means = [line(study, f"{each.method} + {rule}", each.block) for rule in (MEAN, LONGER)]
    return max(means, key=lambda mean: mean.by_seed("val-acc").mean)


def over(study: str, label: str, others: Sequence[str], blocks: Sequence[str] = ("",), what: str = "last") -> Comparisons:
    """One line over several others."""
    pairs = [(block, other) for block in blocks for other in others]
    return {
        ", ".join(filter(None, (other, block))): line(study, label, block).over(line(study, other, block), what)
        for block, other in pairs
    }


def gain_over_local(study: str, *labels: str, sign: int = 1) -> Comparisons:
    return {label: signed(line(study, label).over(line(study, "Local")), sign) for label in labels}


def signed(difference: Difference, sign: int) -> Difference:
    return Difference(sign * difference.mean, difference.half, difference.seeds)


def within(study: str, label: str, one: str, other: str, block: str = "") -> Difference:
    """One column of a line's runs over another of the same runs."""
    each = line(study, label, block)
    found = Difference.between(each.by_seed(one), each.by_seed(other))
    assert found is not None
    return found


def of_differences(first: Iterable[Spread], second: Iterable[Spread]) -> Difference:
    """Mean of some spreads over that of others, by seed."""
    one, other = list(first), list(second)
    seeds = set.intersection(*(set(each.by_seed) for each in (*one, *other)))
    mean = lambda group, seed: sum(each.by_seed[seed] for each in group) / len(group)  # noqa: E731
    found = Difference.of(Spread({seed: mean(one, seed) - mean(other, seed) for seed in sorted(seeds)}))
    assert found is not None
    return found


def gained(study: str, method: str, rule: str, block: str = "") -> Spread:
    """What a rule gains over Mean, by seed."""
    with_it, mean = (line(study, f"{method} + {each}", block).by_seed() for each in (rule, MEAN))
    return Spread({seed: with_it.by_seed[seed] - mean.by_seed[seed] for seed in with_it.by_seed})


def global_methods() -> Comparisons:
    takers, keepers = ("APFL", "FedALA", "FedPAC"), ("FedROD", "FedRep", "FedCP")
    gains = [[gained("confree-table1", method, "ConFREE") for method in group] for group in (takers, keepers)]
    return {"mean gain of the three over that of the other three": of_differences(*gains)}


DEPTHS = ("widths=64", "widths=64×64×64")


def deeper() -> Comparisons:
    methods = ("FedRep", "FedALA", "FedPAC")
    gains = {m: [gained("fedcalm-figure5", m, "CALM", block) for block in DEPTHS] for m in methods}
    return {method: of_differences([deep], [shallow]) for method, (shallow, deep) in gains.items()}


def attacked(label: str) -> Comparisons:
    """The common model under each attack over that without any."""
    clean = line("fedpg-table3", label, "attack=none").by_seed("global-acc")
    harmed = {attack: line("fedpg-table3", label, f"attack={attack}").by_seed("global-acc") for attack in ("gaussian", "scale")}
    return {f"{label}, {attack}": of_differences([spread], [clean]) for attack, spread in harmed.items()}


GAMMAS = ("FedPG (gamma=0.0)", "FedPG (gamma=0.3)", "FedPG (gamma=0.6)", "FedPG (gamma=1.0)")
OTHERS = ("FedAvg", "Ditto", "FedRep", "FedMGDA+", "FedROD")
CLAIMS = (
    Claim("ConFREE", "improves every method", lambda: with_rule("ConFREE", RULES, MEAN)),
    Claim("ConFREE", "… also at the mean's length: by its direction", lambda: with_rule("ConFREE (length=mean)", RULES, MEAN)),
    Claim("ConFREE", "… also over Mean at its best server rate", lambda: with_rule("ConFREE", RULES)),
    Claim("ConFREE", "improves APFL, FedALA and FedPAC more than FedROD, FedRep and FedCP", global_methods),
    Claim("FedCALM", "CALM improves every method", lambda: with_rule("CALM", ("fedcalm-figure5", "natural", "direction-or-length"), MEAN)),
    Claim("FedCALM", "… also at the mean's length: by its direction", lambda: with_rule("CALM (length=mean)", ("fedcalm-figure5", "natural", "direction-or-length"), MEAN)),
    Claim("FedCALM", "… also over Mean at its best server rate", lambda: with_rule("CALM", ("fedcalm-figure5", "natural"))),
    Claim("FedCALM", "CALM gains more in deeper nets", deeper),
    Claim("FedCALM", "the second stage adds to projection alone", lambda: over("fedcalm-table6", "FedCALM (stages=2)", ("FedCALM (stages=1)",), DEPTHS)),
    Claim("FedCALM", "FedCALM is above FedCP and FedPAC", lambda: over("fedcalm-table6", "FedCALM (stages=2)", ("FedCP", "FedPAC"), DEPTHS)),
    Claim("FedCALM", "eps 0.1 is better than 0.01 and 1 (C 10)", lambda: over("fedcalm-table8", "FedCALM (eps=0.1, C=10.0)", ("FedCALM (eps=0.01, C=10.0)", "FedCALM (eps=1.0, C=10.0)"))),
    Claim("FEDORA", "is above training alone", lambda: gain_over_local("fedora-balanced", "FEDORA (labels=False, similarity=exp, neighbours=2, lam_form=exp)")),
)


def claims() -> str:
    """The summary: claim, outcome, evidence."""
    rows = [(claim.paper, claim.says, *claim.outcome()) for claim in CLAIMS]
    heads = ("paper", "claim", "outcome", "evidence: real of all comparisons; the largest and the smallest, in points")
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * 4, *rows))
