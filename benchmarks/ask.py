"""Does ``comity ask`` know before training what joining does to a client? On natural federations, each left out once.

Truth is the leaderboard: FedAvg without a guard against local training, both with a learning rate chosen by
validation, 15 seeds, in the metric that decides on each federation (accuracy or balanced accuracy). Each step writes
into evidence/, and the calibration into the package.

    python benchmarks/ask.py clients      # probe, features, conflict and truth of each client
    python benchmarks/ask.py longer       # the same clients after other training: 100 rounds at one rate
    python benchmarks/ask.py calibrate    # calibration.json, and its evaluation
    python benchmarks/ask.py draw         # docs/images/ask.png
"""

import argparse
import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression

import comity
from comity._write import write_text
from comity.compare import ClientPairs, Paired, Result, paired_rows, read_results
from comity.config import Config, Entries, read_yaml
from comity.data import Federation
from comity.engine import RunPlan
from comity.metrics import DECIDING, scores
from comity.probe import SEEDS, compared
from comity.probe import _logistic as logistic
from comity.probe._logistic import Rows, common, log_probabilities
from comity.studies import BENCHMARK, LEADERBOARD

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "evidence"
EDGES = [-5.0, -2.0, 0.0, 2.0, 5.0]
"""Points between the groups of the calibration; chosen on the first eight federations, with another truth."""
CLIENTS, SCHEMES, LONGER = "ask-clients.csv", "ask-schemes.csv", "ask-longer.csv"
LONGER_TRAINING = {"rounds": 100, "lr": 0.2}
"""Instead of 30 rounds at the rates of the leaderboard."""
RUNS = 3
"""Seeds of the runs for conflict and longer training: together they test each row once."""
JOINED = "FedAvg"
Row = dict[str, Any]


def read(name: str) -> list[Row]:
    with (EVIDENCE / name).open(newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> str | int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def write(name: str, rows: Iterable[Row]) -> None:
    rows, made = list(rows), io.StringIO()
    writer = csv.DictWriter(made, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    write_text(EVIDENCE / name, made.getvalue())


@cache
def leaderboard() -> dict[str, Result]:
    """FedAvg's results by federation."""
    return {each.federation: each for each in read_results(LEADERBOARD) if each.configuration == JOINED}


NAMES = sorted(leaderboard())


def options(name: str) -> Entries:
    """The conditions of the leaderboard on one federation."""
    conditions = {key: value for key, value in read_yaml(BENCHMARK).items() if key in Config.__dataclass_fields__}
    limits = {key: value for key, value in read_yaml(BENCHMARK).items() if key.startswith("data.")}
    return conditions | ({} if name == "heart" else limits) | {"data": name, "metric": leaderboard()[name].metric}


# One row per client.


def each_federation(file: str, measure: Callable[[str], Iterable[Row]]) -> None:
    """Measure the federations that the file has not yet."""
    rows = read(file) if (EVIDENCE / file).exists() else []
    for name in NAMES:
        if not any(row["federation"] == name for row in rows):
            start = time.perf_counter()
            rows += [{"federation": name} | row for row in measure(name)]
            write(file, sorted(rows, key=lambda row: row["federation"]))
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def clients(name: str) -> Iterator[Row]:
    truth, conflict = _truth(name), _conflict(name)
    for client, row in _probed(name).items():
        if client in truth:  # balanced accuracy needs tests of two classes
            yield {"client": client} | row | truth[client] | conflict[client]


def _probed(name: str) -> dict[str, Row]:
    """The probe's gain with its interval, and what might say more: size, class skew, learning curve."""
    metric = leaderboard()[name].metric
    pairs: dict[str, dict[int, list[Paired]]] = {each: {} for each in (metric, "brier", "curve")}
    for seed in range(SEEDS):
        federation = RunPlan(Config.of(options(name) | {"seed": seed})).everyone
        for kind, client, pair in compared(federation, [metric, "brier"]):
            pairs[kind].setdefault(client, []).append(pair)
        if seed < RUNS:
            for client, pair in _halved(federation, metric):
                pairs["curve"].setdefault(client, []).append(pair)
    shares = federation.counts.sum(0) / federation.counts.sum()
    found: dict[str, Row] = {}
    rows = {
        kind: {row.client: row for row in _rows(each, kind if kind in DECIDING else metric, federation)}
        for kind, each in pairs.items()
    }
    for client, row in rows[metric].items():
        counts = federation.counts[client]
        found[row.name] = {
            "rows": int(counts.sum()),
            "classes": federation.classes,
            "skew": float(np.abs(counts / counts.sum() - shares).sum() / 2),
            **{kind: 100 * rows[kind][client].gain for kind in ("curve", "brier")},
            "probe": 100 * row.gain,
            "probe low": 100 * row.low,
            "probe high": 100 * row.high,
        }
    return found


def _rows(pairs: dict[int, list[Paired]], metric: str, federation: Federation) -> Sequence[Any]:
    sums = {client: ClientPairs.of(each, metric) for client, each in pairs.items()}
    return paired_rows(sums, metric, 0.01, federation.client_names)[0]


def _halved(federation: Federation, metric: str) -> Iterator[tuple[int, Paired]]:
    """Per client: the own model against one from half of its rows."""
    for client in federation.clients:
        rows, tests = Rows.of(client.train), Rows.of(client.test)
        half = np.random.default_rng(federation.seed).permutation(len(rows.y))[: max(1, len(rows.y) // 2)]
        models = (common([some], federation.classes) for some in (rows, Rows(rows.x[half], rows.y[half])))
        whole, fewer = (
            scores(metric, log_probabilities(model, tests.x), tests.y, np.exp(log_probabilities(model, rows.x)).mean(0))
            for model in models
        )
        if whole is not None and fewer is not None:
            yield client.id, Paired(federation.seed, len(rows.y), client.test_ids, tests.y, whole, fewer, False)


def _truth(name: str) -> dict[str, Row]:
    with (EVIDENCE / "leaderboard-clients.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["federation"], row["configuration"]) == (name, JOINED)]
    gains = ("gain", "low", "high")
    return {row["client"]: {k: 100 * float(row[k]) for k in gains} | {"state": row["state"]} for row in rows}


def _conflict(name: str) -> dict[str, Row]:
    """Per client: minus the mean cosine between its update and the others', early and late, at the tuned rate."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(RUNS):
        tuned = {"method": JOINED, "lr": leaderboard()[name].lr, "seed": seed, "reference": "none"}
        run, names = comity.run(**options(name) | tuned), _names(name)
        for when, entry in (("conflict early", run.cosines[0]), ("conflict late", run.cosines[-1])):
            cosines = np.array(entry.cosines, dtype=float)
            others = (cosines.sum(1) - np.diag(cosines)) / (len(cosines) - 1)
            for client, value in zip(entry.ids, others, strict=True):
                found.setdefault(names[client], {}).setdefault(when, []).append(-value)
    return {client: {when: fmean(values) for when, values in each.items()} for client, each in found.items()}


@cache
def _names(name: str) -> Sequence[str]:
    return RunPlan(Config.of(options(name))).everyone.client_names


def longer(name: str) -> Iterator[Row]:
    """The gain of FedAvg over local training after longer training of both: mean over three seeds."""
    gains: dict[int, list[float]] = {}
    for seed in range(RUNS):
        run = comity.run(**options(name) | {"method": JOINED, "seed": seed, "control": "none"} | LONGER_TRAINING)
        for client, each in run.result.transfer.clients.items():
            gains.setdefault(client, []).append(100 * each.gain)
    yield from ({"client": _names(name)[c], "gain": fmean(each)} for c, each in gains.items())


# Calibration, and its evaluation on federations that were left out.

Predict = Callable[[Sequence[Row]], NDArray[np.float64]]


def by_groups(rows: Sequence[Row]) -> Predict:
    """The share of clients that gained, by the range of the probe's gain, with one client more of either kind."""
    group, gained = _groups(rows), np.array([row["gain"] > 0 for row in rows])
    share = [(gained[group == k].sum() + 1) / ((group == k).sum() + 2) for k in range(len(EDGES) + 1)]
    return lambda left_out: np.array(share)[_groups(left_out)]


def _groups(rows: Sequence[Row]) -> NDArray[np.int64]:
    return np.digitize([row["probe"] for row in rows], EDGES)


def by_regression(*features: str) -> Callable[[Sequence[Row]], Predict]:
    """Logistic regression on standardised features; every federation weighs the same."""

    def fitted(rows: Sequence[Row]) -> Predict:
        x = np.array([[row[name] for name in features] for row in rows])
        size = {name: sum(row["federation"] == name for row in rows) for name in NAMES}
        weight = np.array([1 / size[row["federation"]] for row in rows])
        centre, scale = x.mean(0), x.std(0)
        gained = [row["gain"] > 0 for row in rows]
        model = LogisticRegression(C=10).fit((x - centre) / scale, gained, sample_weight=weight / weight.mean())
        return lambda left_out: model.predict_proba(
            (np.array([[row[name] for name in features] for row in left_out]) - centre) / scale
        )[:, 1]

    return fitted


PREDICTORS: dict[str, Callable[[Sequence[Row]], Predict]] = {
    "always the share of all clients": lambda rows: (
        lambda left_out: np.full(len(left_out), np.mean([row["gain"] > 0 for row in rows]))
    ),
    "groups of the probe's gain (in use)": by_groups,
    "the probe's gain": by_regression("probe"),
    "… and the federation's mean": by_regression("probe", "mean"),
    "… and rows": by_regression("probe", "log rows"),
    "… and class skew": by_regression("probe", "skew"),
    "… and learning curve": by_regression("probe", "curve"),
    "… and all four": by_regression("probe", "mean", "log rows", "skew", "curve"),
    "the gain in Brier score": by_regression("brier"),
    "conflict in early rounds": by_regression("conflict early"),
    "conflict in late rounds": by_regression("conflict late"),
}


def prepared() -> list[Row]:
    rows = read(CLIENTS)
    after = {(row["federation"], str(row["client"])): row["gain"] for row in read(LONGER)}
    for row in rows:
        row["longer"] = after[row["federation"], str(row["client"])]
        row["mean"] = fmean(other["probe"] for other in rows if other["federation"] == row["federation"])
        row["log rows"] = float(np.log(row["rows"]))
    return rows


def left_out(rows: Sequence[Row], scheme: Callable[[Sequence[Row]], Predict]) -> NDArray[np.float64]:
    """Each client's predicted chance of a gain, from the other federations."""
    predicted = np.empty(len(rows))
    for name in {row["federation"] for row in rows}:
        here = np.array([row["federation"] == name for row in rows])
        rest = [row for row, out in zip(rows, here, strict=True) if not out]
        predicted[here] = scheme(rest)([row for row, out in zip(rows, here, strict=True) if out])
    return predicted


def calibrate() -> None:
    rows = prepared()
    gained, federations = np.array([row["gain"] > 0 for row in rows]), [row["federation"] for row in rows]
    group = _groups(rows)
    known = {
        "about": "clients of natural federations by the gain of comity ask, in points, and how many gained",
        "truth": "FedAvg without a guard minus local training on the leaderboard: learning rates chosen by validation",
        "made by": "benchmarks/ask.py calibrate, from evidence/ask-clients.csv",
        "federations": sorted(set(federations)),
        "edges": EDGES,
        "clients": [int((group == k).sum()) for k in range(len(EDGES) + 1)],
        "gained": [int(gained[group == k].sum()) for k in range(len(EDGES) + 1)],
    }
    package = Path(logistic.__file__).with_name("calibration.json")
    write_text(package, json.dumps(known, indent=1) + "\n")

    def judged() -> Iterator[Row]:
        for name, scheme in PREDICTORS.items():
            predicted = left_out(rows, scheme)
            errors = (predicted - gained) ** 2
            by_federation = [errors[[f == each for f in federations]].mean() for each in set(federations)]
            right = float(((predicted > 0.5) == gained).mean())
            mean = float(np.mean(by_federation))
            yield {"predicted by": name, "brier": float(errors.mean()), "brier by federation": mean, "right": right}

    write(SCHEMES, judged())
    chances = left_out(rows, by_groups)
    write(
        "ask-groups.csv",
        (
            {
                "group": k,
                "clients": clients,
                "gained": won,
                "predicted": 100 * float(chances[group == k].mean()),
                "gained longer": sum(row["longer"] > 0 for row, g in zip(rows, group, strict=True) if g == k),
            }
            for k, (clients, won) in enumerate(zip(known["clients"], known["gained"], strict=True))
        ),
    )
    features = ("probe", "brier", "rows", "skew", "curve", "conflict early", "conflict late")
    trained = {"tuned": rows, "longer": [row | {"gain": row["longer"]} for row in rows]}
    write(
        "ask-correlations.csv",
        (
            {"feature": name, "training": what} | correlations(some, name)
            for what, some in trained.items()
            for name in features
        ),
    )
    for name in (SCHEMES, "ask-groups.csv", "ask-correlations.csv"):
        print((EVIDENCE / name).read_text())


def correlations(rows: Sequence[Row], feature: str) -> dict[str, float]:
    """Spearman's correlation with the gain: over clients, over federations, and within federations on average."""
    names = sorted({row["federation"] for row in rows})
    by_name = [[row for row in rows if row["federation"] == name] for name in names]
    pairs = [(fmean(row[feature] for row in each), fmean(row["gain"] for row in each)) for each in by_name]
    within = [_rank(each, feature) for each in by_name if len(each) >= 6 and len({row[feature] for row in each}) > 1]
    over = float(spearmanr(*zip(*pairs, strict=True)).statistic)
    return {"clients": _rank(rows, feature), "federations": over, "within": float(np.nanmean(within))}


def _rank(rows: Sequence[Row], feature: str) -> float:
    return float(spearmanr([row[feature] for row in rows], [row["gain"] for row in rows]).statistic)


# The figure.


def draw() -> None:
    """Gain by joining over what the probe said, and over conflict between updates."""
    rows = read(CLIENTS)
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = {
        "probe": "comity ask: gain of the common\nlogistic regression (points)",
        "conflict early": "conflict in early rounds\n(−mean cosine with other updates)",
        "conflict late": "conflict in late rounds\n(−mean cosine with other updates)",
    }
    for axes, (feature, label) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        for state, colour in (("undecided", "#9aa5b1"), ("not worse", "#1b7f79"), ("worse", "#c8102e")):
            some = [row for row in rows if row["state"] == state]
            axes.scatter([r[feature] for r in some], [r["gain"] for r in some], s=12, color=colour, label=state, lw=0)
        axes.axhline(0, color="black", lw=0.6)
        found = correlations(rows, feature)
        title = f"Spearman {found['clients']:+.2f} over clients,\n{found['federations']:+.2f} over federations"
        axes.set_title(title.replace("-", "−"), fontsize=10)
        axes.set_xlabel(label)
    figure.axes[0].axvline(0, color="black", lw=0.6)
    figure.axes[0].set_ylabel("gain of FedAvg over local training (points)")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(ROOT / "docs" / "images" / "ask.png", dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("clients", "longer", "calibrate", "draw"))
    what = parser.parse_args().what
    if what in ("clients", "longer"):
        each_federation(*((CLIENTS, clients) if what == "clients" else (LONGER, longer)))
    else:
        {"calibrate": calibrate, "draw": draw}[what]()


if __name__ == "__main__":
    main()
