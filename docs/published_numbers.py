"""What the papers report: differences within their published tables, for the page to show beside ours."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from measured import MEAN

from comity._words import number
from comity.studies._papers import published

Options = Mapping[str, str | None]


def gaps(name: str, one: Options, other: Options, what: str = "accuracy", **setting: str) -> list[float]:
    """By how much a published table has rows with ``one`` set of options above those with ``other``, all else equal.

    ``None`` stands for an option that a row does not have. ``setting``: options of both.
    """

    def found(wanted: Options) -> dict[frozenset[tuple[str, str]], float]:
        wanted = {**wanted, **setting}
        rows = [row for row in published(name) if all(row.options.get(key) == value for key, value in wanted.items())]
        varied = one.keys() | other.keys()
        return {
            frozenset((key, value) for key, value in row.options.items() if key not in varied): row.results[what]
            for row in rows
            if what in row.results
        }

    ours, theirs = found(one), found(other)
    return [value - theirs[key] for key, value in ours.items() if key in theirs]


def published_gain(name: str, better: str, than: str, **options: str) -> str:
    """By how much a published table has one rule, or method, above another under these options."""
    kind = "rule" if any("rule" in row.options for row in published(name)) else "method"
    (found,) = gaps(name, {kind: better}, {kind: than}, **options)
    return number(found)


def published_accuracy(name: str, **options: str) -> str:
    """An accuracy of a published table, if it has it."""
    found = [row.results["accuracy"] for row in published(name) if options.items() <= row.options.items()]
    return number(found[0]) if found else "–"


def in_brief(found: Sequence[float]) -> str:
    """Several published differences in a few words."""
    if len(found) == 1:
        return number(found[0])
    return f"{number(median(found))} ({number(min(found))} to {number(max(found))})"


def largest(method: str) -> str:
    """ConFREE's largest published gain under a method."""
    setting = {"data": "flowers102", "clients": "60", "participation": "0.3"}
    return published_gain("confree-table2", "ConFREE", MEAN, method=method, **setting)


def mean_gain(*methods: str) -> float:
    """ConFREE's published gain over Mean in Table 2, mean over these methods."""
    found = [gaps("confree-table2", {"rule": "ConFREE"}, {"rule": MEAN}, method=method) for method in methods]
    return fmean(gain for each in found for gain in each)


def gain(method: str, clients: str, participation: str) -> float:
    """ConFREE's published gain in Table 2, mean over data sets."""
    setting = {"method": method, "clients": clients, "participation": participation}
    return fmean(gaps("confree-table2", {"rule": "ConFREE"}, {"rule": MEAN}, **setting))


def less_with_more_online() -> str:
    """The published difference of gains with fewer and more clients online, in the direction that the claim has."""
    signs = {"APFL": 1, "FedALA": 1, "FedRep": -1}
    return in_brief([s * (gain(m, n, "0.3") - gain(m, n, "0.6")) for m, s in signs.items() for n in ("20", "60")])


def middle_c() -> str:
    """The published gain of c 0.5 over 0.1 and over 0.9."""
    rows = [gaps("confree-table3", {"rule.c": "0.5"}, {"rule.c": c}) for c in ("0.1", "0.9")]
    return in_brief([*rows[0], *rows[1]])


def second_stage() -> list[float]:
    """What the second stage of FedCALM adds in Tables 6 and 7."""
    return [
        gap
        for name in ("fedcalm-table6", "fedcalm-table7")
        for gap in gaps(name, {"method.stages": "2"}, {"method.stages": "1"}, method="FedCALM")
    ]


def above_fedcp(stages: str) -> str:
    """By how much Tables 6 and 7 have FedCALM above FedCP."""
    one, other = {"method": "FedCALM", "method.stages": stages}, {"method": "FedCP", "method.stages": None}
    return in_brief([gap for name in ("fedcalm-table6", "fedcalm-table7") for gap in gaps(name, one, other)])


def fedcalm_largest() -> str:
    """FedCALM's largest published gains, over FedCP and over its first stage."""
    setting = {"data": "flowers102", "model": "resnet4"}
    two = {"method": "FedCALM", "method.stages": "2"}
    others = {
        "FedCP": {"method": "FedCP", "method.stages": None},
        "its first stage": {"method": "FedCALM", "method.stages": "1"},
    }
    found = [(name, gap) for name, other in others.items() for gap in gaps("fedcalm-table6", two, other, **setting)]
    return ", ".join(f"{number(gap)} (over {name})" for name, gap in found)


def value_over(key: str, best: str, *others: str, **setting: str) -> str:
    """By how much Tables 8 and 9 have one value of eps or C above others."""
    names = ("fedcalm-table8", "fedcalm-table9")
    options = {f"method.{name}": value for name, value in setting.items()}
    return in_brief(
        [gap for name in names for each in others for gap in gaps(name, {key: best, **options}, {key: each, **options})]
    )


def fedpg_over(what: str, *rivals: str) -> str:
    """By how much Table 1 has FedPG with gamma 0 above rivals."""
    one = {"method": "FedPG", "method.gamma": "0"}
    found = [gaps("fedpg-table1", one, {"method": each, "method.gamma": None}, what) for each in rivals]
    return in_brief([gap for each in found for gap in each])


def fedpg_with_more_online(what: str) -> str:
    """By how much Table 2 has FedPG with gamma 0 above FedAvg with half and all clients online; it has no FedFV."""
    one, other = {"method": "FedPG", "method.gamma": "0"}, {"method": "FedAvg", "method.gamma": None}
    found = [gap for p in ("0.5", "1.0") for gap in gaps("fedpg-table2", one, other, what, participation=p)]
    return f"over FedAvg: {in_brief(found)}"


def gamma_zero() -> str:
    """G-acc of FedPG with gamma 0 over its common model in Tables 1 and 2."""
    rows = [row for name in ("fedpg-table1", "fedpg-table2") for row in published(name)]
    zero = [row.results for row in rows if row.options["method"] == "FedPG" and row.options.get("method.gamma") == "0"]
    return in_brief([row["G-acc"] - row["global"] for row in zero])


def under_attack(attack: str, method: str) -> float:
    """By how much Table 3 has a method's common model under attack above that without."""
    (gap,) = gaps("fedpg-table3", {"attack": attack}, {"attack": "none"}, "global", method=method)
    return gap


def published_common(method: str) -> str:
    """The common model's accuracy in Table 1 on Fashion-MNIST."""
    setting = {"method": method, "data": "fashion-mnist"}
    (row,) = [row for row in published("fedpg-table1") if setting.items() <= row.options.items()]
    return number(row.results["global"])
