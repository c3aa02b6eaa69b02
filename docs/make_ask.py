"""The tables of evidence/ask.md, from what benchmarks/ask.py and benchmarks/ask_faults.py measured."""

from itertools import pairwise
from statistics import fmean

from measured import grid, number, read

from comity.probe import calibration

FEATURES = {
    "probe": "**gain of the probe** (in use)",
    "brier": "gain of the probe, in Brier score",
    "rows": "number of rows",
    "skew": "class skew: distance between the client's class shares and those of all clients",
    "curve": "learning curve: score of the client's own model minus that of one fitted on half of its rows",
    "conflict early": "conflict in early rounds: minus the mean cosine with the other updates",
    "conflict late": "conflict in late rounds",
}
OVER = ("clients", "federations", "within")
SCHEMES = {
    "always the share of all clients": "always the share of the other federations' clients",
    "… and rows": "… and number of rows",
    "the gain in Brier score": "the probe's gain in Brier score",
}
"""Names of schemes in the table, where they differ from those of the file."""


def ask_groups() -> str:
    """How many clients gained, by the range of the probe's gain."""
    edges = [number(edge, 0) for edge in calibration()["edges"]]
    names = [
        f"below {edges[0]}",
        *(f"{a} to {b}" for a, b in pairwise(edges)),
        f"above {edges[-1]}",
    ]
    body = [
        [
            names[int(row["group"])],
            row["clients"],
            row["gained"],
            f"{float(row['predicted']):.0f} %",
            row["gained longer"],
        ]
        for row in read("ask-groups.csv")
    ]
    return grid(
        [
            "gain of the probe, points",
            "clients",
            "gained by joining",
            "predicted when left out",
            "gained, other training",
        ],
        body,
    )


def ask_federations() -> str:
    """The probe's mean gain and the real one, by federation."""
    rows, longer = read("ask-clients.csv"), read("ask-longer.csv")
    body = []
    for name in dict.fromkeys(row["federation"] for row in rows):
        here, later = ([row for row in some if row["federation"] == name] for some in (rows, longer))
        gained, worse = sum(float(r["gain"]) > 0 for r in here), sum(r["state"] == "worse" for r in here)
        means = [
            fmean(float(row[key]) for row in some) for some, key in ((here, "probe"), (here, "gain"), (later, "gain"))
        ]
        body.append([name, str(len(here)), *(number(mean, 1) for mean in means), str(gained), str(worse)])
    heads = ["federation", "clients", "probe", "FedAvg", "FedAvg, other training", "gained", "significantly worse"]
    return grid(heads, body)


def ask_schemes() -> str:
    """How well a gain is predicted in federations that were left out."""
    rows = read("ask-schemes.csv")
    body = [
        [
            SCHEMES.get(r["predicted by"], r["predicted by"]),
            f"{float(r['brier']):.3f}",
            f"{float(r['brier by federation']):.3f}",
            f"{100 * float(r['right']):.0f} %",
        ]
        for r in rows
    ]
    return grid(["predicted by", "Brier score", "Brier score, mean over federations", "right"], body)


def ask_correlations() -> str:
    """Spearman's correlations with the gain by joining."""
    rows = read("ask-correlations.csv")
    body = [
        [
            words,
            *(number(float(row[over])) for row in rows if row["feature"] == name for over in OVER),
        ]
        for name, words in FEATURES.items()
    ]
    heads = ["", *(f"{over}{longer}" for longer in ("", ", other training") for over in OVER)]
    return grid(heads, body)


def ask_correlation(feature: str, over: str, training: str = "tuned") -> str:
    (row,) = (row for row in read("ask-correlations.csv") if (row["feature"], row["training"]) == (feature, training))
    return number(float(row[over]))


def ask_worse(low: float) -> str:
    """How many of the clients that are significantly worse have a gain of the probe below ``low``."""
    worse = [row for row in read("ask-clients.csv") if row["state"] == "worse"]
    return f"{sum(float(row['probe']) < low for row in worse)} of {len(worse)}"


def ask_size(what: str) -> str:
    """Number of ``federations`` or ``clients``."""
    rows = read("ask-clients.csv")
    return str(len(rows) if what == "clients" else len({row["federation"] for row in rows}))


def ask_right(scheme: str) -> str:
    (row,) = (row for row in read("ask-schemes.csv") if row["predicted by"] == scheme)
    return f"{100 * float(row['right']):.0f} %"


def ask_mean(federation: str, what: str) -> str:
    """Mean over a federation's clients: ``probe``, ``gain`` or ``longer``."""
    name, column = ("ask-longer.csv", "gain") if what == "longer" else ("ask-clients.csv", what)
    return number(fmean(float(row[column]) for row in read(name) if row["federation"] == federation), 1)


def ask_brier(scheme: str) -> str:
    (row,) = (row for row in read("ask-schemes.csv") if row["predicted by"] == scheme)
    return f"{float(row['brier']):.3f}"


def ask_faults() -> str:
    """How many faults that were put in were found, by kind."""
    body = []
    for fault in dict.fromkeys(row["fault"] for row in read("ask-faults.csv")):
        there, found = _faults(fault)
        body.append([fault, str(there), str(found), f"{100 * found / there:.0f} %"])
    return grid(["fault", "cases", "found", "share"], body)


def ask_found(*faults: str) -> str:
    """The share of planted faults that is found: one, or the range over several kinds."""
    shares = sorted({round(100 * found / there) for there, found in map(_faults, faults)})
    return f"{'–'.join(str(share) for share in dict.fromkeys((shares[0], shares[-1])))} %"


def _faults(fault: str) -> tuple[int, int]:
    """Over all federations: faults that were put in, and faults that were found."""
    rows = [row for row in read("ask-faults.csv") if row["fault"] == fault]
    return sum(int(row["put in"]) for row in rows), sum(int(row["found"]) for row in rows)


def ask_alarms(what: str) -> str:
    """``sites``, ``sites named``, ``federations`` or a kind: a count over the federations as they are."""
    rows = read("ask-alarms.csv")
    return str(len(rows) if what == "federations" else sum(int(row[what]) for row in rows))


FUNCTIONS = (
    ask_groups,
    ask_federations,
    ask_schemes,
    ask_correlations,
    ask_correlation,
    ask_worse,
    ask_size,
    ask_right,
    ask_mean,
    ask_brier,
    ask_faults,
    ask_found,
    ask_alarms,
)
