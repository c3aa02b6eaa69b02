"""Does ``comity ask`` know before training what joining does to a client? On natural federations, each left out once.

Truth is the study of benchmarks/guard_natural.py: FedAvg without a guard against local training, an mlp with 32 hidden
units, 24 seeds. Each step writes into evidence/, and the calibration into the package.

    python benchmarks/ask.py clients --runs runs/guard-natural   # probe, features, conflict and truth of each client
    python benchmarks/ask.py longer --runs runs/guard-natural    # the same clients after longer training
    python benchmarks/ask.py calibrate                           # calibration.json, and its evaluation
    python benchmarks/ask.py draw                                # docs/images/ask.png
"""

import argparse
import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from comity.compare import ClientPairs, LoadedStudy, Paired, paired_rows
from comity.data import Dataset, Federation, federate, load
from comity.probe import SEEDS, compared
from comity.probe import _logistic as logistic
from comity.probe._logistic import Rows, common, log_probabilities

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "evidence"
PLAN = json.loads(Path(__file__).with_name("guard_federations.json").read_text())
NAMES = sorted(PLAN["choosing"] + PLAN["reporting"])
EDGES = [-5.0, -2.0, 0.0, 2.0, 5.0]
"""Points of accuracy between the groups of the calibration; chosen before the last seven federations were read."""
CLIENTS, SCHEMES, LONGER = "ask-clients.csv", "ask-schemes.csv", "ask-longer.csv"
LONGER_TRAINING = {"rounds": 100, "lr": 0.2}
"""Beside 30 rounds at 0.05."""
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


# One row per client.


def clients(runs: Path) -> Iterator[Row]:
    """Federations that the file has already are kept."""
    done = read(CLIENTS) if (EVIDENCE / CLIENTS).exists() else []
    for name in NAMES:
        if kept := [row for row in done if row["federation"] == name]:
            yield from kept
            continue
        study = runs / "studies" / name
        if not (study / "table.csv").exists():
            print(f"{name} is not finished")
            continue
        start = time.perf_counter()
        dataset = load(str(next((runs / "data").glob(f"{name}.*"))))
        assert isinstance(dataset, Dataset)
        truth, conflict = _truth(study), _conflict(study)
        for client, row in _probed(dataset).items():
            yield {"federation": name} | row | truth[client] | conflict[client]
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def _probed(dataset: Dataset) -> dict[int, Row]:
    """The probe's gain with its interval, and what might say more: size, class skew, learning curve, other probes."""
    pairs: dict[str, dict[int, list[Paired]]] = {"accuracy": {}, "brier": {}}
    curve: dict[int, list[float]] = {}
    kernel: dict[int, list[float]] = {}
    for seed in range(SEEDS):
        federation = federate(dataset, seed=seed)
        for metric, client, pair in compared(federation, list(pairs)):
            pairs[metric].setdefault(client, []).append(pair)
        if seed < 3:
            for client, rise, gain in _further(federation, pairs["accuracy"], seed):
                curve.setdefault(client, []).append(rise)
                kernel.setdefault(client, []).append(gain)
    shares = federation.counts.sum(0) / federation.counts.sum()
    found: dict[int, Row] = {}
    sums = {metric: {c: ClientPairs.of(p, metric) for c, p in each.items()} for metric, each in pairs.items()}
    brier = {row.client: row.gain for row in paired_rows(sums["brier"], "brier", 0.01, federation.client_names)[0]}
    for row in paired_rows(sums["accuracy"], "accuracy", 0.01, federation.client_names)[0]:
        counts = federation.counts[row.client]
        found[row.client] = {
            "client": row.name,
            "rows": int(counts.sum()),
            "classes": federation.classes,
            "skew": float(np.abs(counts / counts.sum() - shares).sum() / 2),
            "curve": 100 * fmean(curve[row.client]),
            "random features": 100 * fmean(kernel[row.client]),
            "brier": 100 * brier[row.client],
            "probe": 100 * row.gain,
            "probe low": 100 * row.low,
            "probe high": 100 * row.high,
        }
    return found


def _further(federation: Federation, pairs: dict[int, list[Paired]], seed: int) -> Iterator[tuple[int, float, float]]:
    """Per client: accuracy of the own model minus one from half of the rows; gain of a probe with random features."""
    sites = [Rows.of(client.train) for client in federation.clients]
    width = sites[0].x.shape[1]
    directions = np.random.default_rng(0).standard_normal((width, 128)) * 1.5 / np.sqrt(width)

    def lifted(rows: Rows) -> Rows:
        return Rows(np.concatenate([np.maximum(rows.x @ directions, 0), rows.x], axis=1), rows.y)

    together = common([lifted(rows) for rows in sites], federation.classes)
    for client, rows in zip(federation.clients, sites, strict=True):
        tests, own = Rows.of(client.test), pairs[client.id][-1].local.mean()
        half = np.random.default_rng(seed).permutation(len(rows.y))[: max(1, len(rows.y) // 2)]
        fewer = common([Rows(rows.x[half], rows.y[half])], federation.classes)
        mine = common([lifted(rows)], federation.classes)
        gain = _accuracy(together, lifted(tests)) - _accuracy(mine, lifted(tests))
        yield client.id, float(own - _accuracy(fewer, tests)), gain


def _accuracy(weights: NDArray[np.float64], tests: Rows) -> float:
    return float((log_probabilities(weights, tests.x).argmax(1) == tests.y).mean())


def _truth(study: Path) -> dict[int, Row]:
    folders = [path for path in (study / "runs").iterdir() if path.name.startswith(("fedavg-mean-s", "local"))]
    (cell,) = (cell for cell in LoadedStudy(*sorted(folders)).cells if not cell.local)
    return {
        row.client: {
            "gain": 100 * row.gain,
            "low": 100 * row.low,
            "high": 100 * row.high,
            "state": row.state,
        }
        for row in cell.clients
    }


def _conflict(study: Path) -> dict[int, Row]:
    """Per client: minus the mean cosine between its update and the others', early and late."""
    found: dict[int, dict[str, list[float]]] = {}
    for path in sorted((study / "runs").glob("fedavg-mean-s*/cosines.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for when, line in (("conflict early", lines[0]), ("conflict late", lines[-1])):
            cosines = np.array(line["cosines"], dtype=float)
            others = (cosines.sum(1) - np.diag(cosines)) / (len(cosines) - 1)
            for client, value in zip(line["ids"], others, strict=True):
                found.setdefault(client, {}).setdefault(when, []).append(-value)
    return {client: {when: fmean(values) for when, values in each.items()} for client, each in found.items()}


def longer(runs: Path) -> Iterator[Row]:
    """The gain of FedAvg over local training after longer training of both: mean over three seeds."""
    options = {"method": "FedAvg", "model": PLAN["training"]["model"], "metric": "accuracy", "control": "none"}
    quick = {"general_every": "never", "workers": 1, "eval_every": 100, "checkpoint_every": 100}
    for name in NAMES:
        start = time.perf_counter()
        gains: dict[int, list[float]] = {}
        data = str(next((runs / "data").glob(f"{name}.*")))
        for seed in range(3):
            run = comity.run(data=data, seed=seed, **options, **quick, **LONGER_TRAINING)
            for client, each in run.result.transfer.clients.items():
                gains.setdefault(client, []).append(100 * each.gain)
        names = federate(load(data), seed=0).client_names
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        yield from ({"federation": name, "client": names[c], "gain": fmean(each)} for c, each in gains.items())


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
    "the gain with 128 random features": by_regression("random features"),
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
        "about": "clients of natural federations by the gain of comity ask, in points of accuracy, and how many gained",
        "truth": "FedAvg without a guard minus local training, mlp with 32 hidden units, 24 seeds, gain above 0",
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
    features = ("probe", "brier", "random features", "rows", "skew", "curve", "conflict early", "conflict late")
    trained = {"30 rounds": rows, "100 rounds": [row | {"gain": row["longer"]} for row in rows]}
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
    parser.add_argument("--runs", type=Path, default=Path("runs/guard-natural"))
    options = parser.parse_args()
    if options.what == "clients":
        write(CLIENTS, clients(options.runs))
    elif options.what == "longer":
        write(LONGER, longer(options.runs))
    else:
        {"calibrate": calibrate, "draw": draw}[options.what]()


if __name__ == "__main__":
    main()
