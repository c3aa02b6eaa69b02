"""Candidates for the guard on natural federations: chosen on one half of them, reported on the other.

``guard_federations.json`` names the halves, the candidates and the rule of the decision; it was committed before
anything ran. Models are trained once per federation, method and seed. All candidates are then evaluated on the same
stored predictions of own, federated and common model. Resumable: what is trained is kept.

    python benchmarks/guard_natural.py train choosing
    python benchmarks/guard_natural.py evaluate choosing     # then the same with reporting, once
    python benchmarks/guard_natural.py study                 # methods and guards by the product itself, an hour
    python docs/make_results.py guard-natural=runs/guard-natural
"""

import argparse
import csv
import gzip
import io
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

import comity
import guard_recorder
from comity._write import write_text
from comity.guard import mixture_weights, posterior
from comity.metrics import MIXED, OWN
from comity.studies import study

Array = NDArray[np.float64]
PLAN = json.loads(Path(__file__).with_name("guard_federations.json").read_text())
NATURAL = Path(os.environ.get("COMITY_DATA", ".")) / "natural"
"""The natural federations, one file each; its README says where they come from."""
ROUNDS, REFITS = PLAN["training"]["rounds"], (3, 6, 8)
RECORDED = [ROUNDS, *(ROUNDS + refit for refit in REFITS)]
FLOOR = 1e-12


# Data: at most so many clients, and samples of each.


def prepared(name: str, out: Path) -> Path:
    """The file of a federation with at most 20 clients and 300 samples of each."""
    source = next(path for path in NATURAL.glob(f"{name}.*"))
    target = out / "data" / (f"{name}.npz" if source.suffix == ".npz" else f"{name}.csv")
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    if source.suffix == ".npz":
        with np.load(source) as file:
            arrays = dict(file)
        owners = arrays["client_names"][arrays["client_train"]]
        chosen = _chosen(owners, random)
        x = arrays["x_train"][chosen]
        if name == "shakespeare":  # characters are no numbers: one feature for each place and character
            x = np.eye(len(arrays["class_names"]), dtype=np.float32)[x].reshape(len(x), -1)
        y = arrays["class_names"][arrays["y_train"][chosen]]
        np.savez_compressed(target, x_train=x, y_train=y, client_train=owners[chosen])
        return target
    content = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    rows = list(csv.reader(content.decode().splitlines()))
    owner = rows[0].index("client")
    chosen = _chosen(np.array([row[owner] for row in rows[1:]]), random)
    with io.StringIO() as made:
        csv.writer(made).writerows([rows[0], *(rows[1 + place] for place in chosen)])
        write_text(target, made.getvalue())
    return target


def _chosen(owners: NDArray[Any], random: np.random.Generator) -> NDArray[np.int64]:
    names = np.unique(owners)
    size = PLAN["size"]
    if len(names) > size["clients"]:
        names = names[np.linspace(0, len(names) - 1, size["clients"]).round().astype(int)]
    places = [np.flatnonzero(owners == name) for name in names]
    return np.concatenate([np.sort(random.permutation(each)[: size["samples"]]) for each in places])


def settings(name: str, out: Path) -> dict[str, Any]:
    """Accuracy decides everywhere, as the plan says, also where the default would be balanced accuracy."""
    options = {"general_every": "never", "metric": "accuracy", "workers": 1, "checkpoint_every": 100}
    return {"data": str(prepared(name, out)), **PLAN["training"], **options}


# Training.


def train(names: Iterable[str], out: Path) -> None:
    for name in names:
        for seed in PLAN["seeds"]:
            for method in ("Local", *PLAN["methods"]):
                file = out / "predictions" / f"{name}-{method}-{seed}.npz"
                if file.exists():
                    continue
                start = time.perf_counter()
                _train_one(name, method, seed, out, file)
                print(f"{name} {method} {seed}: {time.perf_counter() - start:.1f} s", flush=True)


def _train_one(name: str, method: str, seed: int, out: Path, file: Path) -> None:
    """All predictions of one run, and the accuracy of two local models mixed."""
    guard_recorder.RECORDS.clear()
    options = settings(name, out) | {"method": method, "seed": seed, "eval_every": 3}
    options["extension"] = {"name": "guard_recorder.Recorder", "rounds": " ".join(map(str, RECORDED))}
    if method == "Local":
        options |= {"rounds": RECORDED[-1], "reference": "none"}
    else:
        options |= {"val_share": 0.2, "refit": REFITS[-1]}
    run = comity.run(**options)
    arrays = {f"{cid}|{key}": value for cid, kept in guard_recorder.RECORDS.items() for key, value in kept.items()}
    if run.control:
        assert run.local is not None
        assert run.local["client"] == run.control["client"]
        mixed_gain = np.array(run.control[MIXED.key]) - np.array(run.local[OWN.key])
        arrays |= {"control client": np.array(run.control["client"]), "control gain": mixed_gain}
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".part").open("wb") as target:
        np.savez_compressed(target, **arrays)
    file.with_suffix(".part").rename(file)


# Candidates: each gives the probabilities of what a client uses for its tests.

Client = Mapping[str, Any]
"""Predictions of one client by ``model round split``, with double precision."""


def experts(client: Client, split: str, round: int, own: str, change: str = "") -> list[Array]:
    """Own, federated and common model where there is one; ``change``: a candidate's experts."""
    mine, federated = client[f"own {own} {split}"], client[f"federated {round} {split}"]
    if change == "prior-corrected":
        federated = federated * _correction(client, round)
        federated = federated / federated.sum(1, keepdims=True)
    found = [mine, federated]
    if f"common {round} {split}" in client:
        found.append(client[f"common {round} {split}"])
    if change == "geometric":
        found.append(pooled(np.array([0.5, 0.5]), mine, client[f"federated {round} {split}"]))
    return found


def _correction(client: Client, round: int) -> Array:
    """The client's class shares over those that the federated model expects on the client's training samples."""
    predicted, labels = client[f"federated {round} train"], client[f"labels {round} train"]
    shares = np.bincount(labels, minlength=predicted.shape[1]) + 1.0
    return np.asarray(shares / shares.sum() / np.maximum(predicted.mean(0), 1e-6))


def pooled(powers: Array, *models: Array) -> Array:
    """The normalised product of powers."""
    logs = sum(power * np.log(np.maximum(each, FLOOR)) for power, each in zip(powers, models, strict=True))
    return np.asarray(softmax(logs, axis=1))


def of_labels(models: Iterable[Array], labels: NDArray[np.int64]) -> Array:
    return np.stack([np.clip(each[np.arange(len(labels)), labels], FLOOR, 1) for each in models], axis=1)


def mixed(client: Client, refit: int = 3, change: str = "", own: float = 1.0) -> Array:
    """The mixture with weights from the held-out samples; ``own``: the own model's part of the Dirichlet prior."""
    likelihoods = of_labels(experts(client, "val", ROUNDS, "train", change), client[f"labels {ROUNDS} val"])
    weights = favouring(likelihoods, own) if own != 1 else mixture_weights(likelihoods).weights
    used = experts(client, "test", ROUNDS + refit, "all" if refit else "train", change)
    return np.tensordot(weights, np.stack(used), 1)


def favouring(likelihoods: Array, own: float) -> Array:
    """The posterior mean under Dirichlet(own, 1, …): as if the own model alone had been right own − 1 more times."""
    right = np.zeros((round(own) - 1, likelihoods.shape[1]))
    right[:, 0] = 1
    return posterior(np.concatenate([likelihoods, right])).weights


def two(client: Client, split: str, before: bool = False) -> list[Array]:
    """Own and federated model: those that were weighed, or those that are used."""
    return experts(client, split, ROUNDS if before else ROUNDS + 3, "train" if before else "all")[:2]


def selection(client: Client) -> Array:
    losses = -np.log(of_labels(two(client, "val", True), client[f"labels {ROUNDS} val"])).mean(0)
    return two(client, "test")[int(losses.argmin())]


def log_linear(client: Client) -> Array:
    mine, federated = two(client, "val", True)
    labels = client[f"labels {ROUNDS} val"]
    found = minimize(
        lambda powers: -np.log(of_labels([pooled(powers, mine, federated)], labels)).mean(),
        [0.5, 0.5],
        method="L-BFGS-B",
        bounds=[(0, 3)] * 2,
    )
    return pooled(found.x, *two(client, "test"))


def stacking(client: Client) -> Array:
    """Logistic regression with one coefficient per model and a bias per class, penalised as in scikit-learn (C = 1)."""
    logs = [np.log(np.maximum(each, 1e-6)) for each in two(client, "val", True)]
    labels, classes = client[f"labels {ROUNDS} val"], logs[0].shape[1]

    def logits(values: Array, given: list[Array]) -> Array:
        return values[0] * given[0] + values[1] * given[1] + values[2:]

    def loss(values: Array) -> float:
        chosen = log_softmax(logits(values, logs), axis=1)[np.arange(len(labels)), labels]
        return float(-chosen.sum() + 0.5 * values @ values)

    found = minimize(loss, np.r_[0.5, 0.5, np.zeros(classes)], method="L-BFGS-B").x
    return np.asarray(softmax(logits(found, [np.log(np.maximum(each, 1e-6)) for each in two(client, "test")]), axis=1))


def temperature(client: Client) -> Array:
    mine, federated = two(client, "val", True)
    labels = client[f"labels {ROUNDS} val"]
    scales = np.geomspace(0.2, 5, 41)
    losses = [-np.log(of_labels([pooled(np.array([s]), federated)], labels)).mean() for s in scales]
    best = scales[[int(np.argmin(losses))]]
    weights = mixture_weights(of_labels([mine, pooled(best, federated)], labels)).weights
    own, used = two(client, "test")
    return np.asarray(weights[0] * own + weights[1] * pooled(best, used))


def _variant(change: str, refit: int) -> Callable[[Client], Array]:
    return lambda client: mixed(client, refit, change)


CANDIDATES: dict[str, Callable[[Client], Array]] = {
    "mixture": mixed,
    **{f"refit {refit}": _variant("", refit) for refit in (0, 6, 8)},
    **{change: _variant(change, 3) for change in ("geometric", "prior-corrected")},
    **{f"{change}, refit {k}": _variant(change, k) for change in ("geometric", "prior-corrected") for k in (6, 8)},
    "careful 5": lambda client: mixed(client, own=5),
    "careful 20": lambda client: mixed(client, own=20),
    "equal weights": lambda client: sum(two(client, "test")) / 2,
    "selection": selection,
    "stacking": stacking,
    "temperature": temperature,
    "log-linear pool": log_linear,
    "federated": lambda client: two(client, "test")[1],
}


# Evaluation.


def evaluate(half: str, out: Path) -> None:
    """One row per federation, method, seed and candidate: points above Local, log-loss, clients behind."""
    rows = []
    for name in PLAN[half]:
        for seed in PLAN["seeds"]:
            local = _read(out, name, "Local", seed)[0]
            for method in PLAN["methods"]:
                clients, control = _read(out, name, method, seed)
                about = {"half": half, "federation": name, "method": method, "seed": seed}
                rows += [about | row for row in _judge(clients, control, local)]
    made = io.StringIO()
    writer = csv.DictWriter(made, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(out / f"{half}.csv", made.getvalue())
    show(rows)


def _read(out: Path, name: str, method: str, seed: int) -> tuple[dict[int, dict[str, Any]], dict[str, Array]]:
    clients: dict[int, dict[str, Any]] = {}
    control: dict[str, Array] = {}
    with np.load(out / "predictions" / f"{name}-{method}-{seed}.npz") as file:
        for key in file:
            cid, _, what = key.partition("|")
            value = file[key]
            if not what:
                control[key.removeprefix("control ")] = value.astype(float)
            else:
                clients.setdefault(int(cid), {})[what] = value.astype(int if what.startswith("labels") else float)
    return clients, control


def _judge(
    clients: dict[int, dict[str, Any]], control: dict[str, Array], local: dict[int, dict[str, Any]]
) -> Iterable[dict[str, Any]]:
    labels = {cid: client[f"labels {ROUNDS} test"] for cid, client in clients.items()}
    base = {cid: _hits(client["own all test"], labels[cid]) for cid, client in clients.items()}
    longer = {f"local, {k} more": (lambda cid, k=k: local[cid][f"federated {ROUNDS + k} test"]) for k in REFITS}
    used = {name: (lambda cid, f=f: f(clients[cid])) for name, f in CANDIDATES.items()}
    for name, predict in ({"local": lambda cid: clients[cid]["own all test"]} | longer | used).items():
        found = {cid: predict(cid) for cid in clients}
        gains = {cid: _hits(found[cid], labels[cid]) - base[cid] for cid in clients}
        loss = [-np.log(of_labels([found[cid]], labels[cid])).mean() for cid in clients]
        behind = sum(gain * len(labels[cid]) < -1.5 for cid, gain in gains.items())
        gain = 100 * float(np.mean(list(gains.values())))
        yield _row(name, gain, float(np.mean(loss)), behind, len(clients))
    gains = dict(zip(control["client"].astype(int), control["gain"], strict=True))
    behind = sum(gain * len(labels[cid]) < -1.5 for cid, gain in gains.items())
    yield _row("two local models mixed", 100 * float(np.mean(list(gains.values()))), np.nan, behind, len(clients))


def _row(name: str, gain: float, loss: float, behind: int, clients: int) -> dict[str, Any]:
    row = {"candidate": name, "gain": f"{gain:.3f}", "log-loss": f"{loss:.4f}"}
    return row | {"behind": behind, "clients": clients}


def _hits(predicted: Array, labels: NDArray[np.int64]) -> float:
    return float((predicted.argmax(1) == labels).mean())


def show(rows: list[dict[str, Any]]) -> None:
    """Means over federations, and in how many a candidate is above the mixture."""
    federations = list(dict.fromkeys(row["federation"] for row in rows))
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    table = {
        (name, federation, column): np.mean(
            [float(r[column]) for r in rows if r["candidate"] == name and r["federation"] == federation]
        )
        for name in names
        for federation in federations
        for column in ("gain", "log-loss", "behind")
    }
    print(f"{'':26}{'gain':>7}{'log-loss':>9}{'behind':>7}{'above':>6}  {' '.join(f'{f[:8]:>8}' for f in federations)}")
    for name in names:
        gains, losses, behind = ([table[name, f, c] for f in federations] for c in ("gain", "log-loss", "behind"))
        above = sum(g > table["mixture", f, "gain"] + 1e-9 for g, f in zip(gains, federations, strict=True))
        each = " ".join(f"{gain:8.2f}" for gain in gains)
        print(f"{name:26}{np.mean(gains):7.2f}{np.mean(losses):9.4f}{np.sum(behind):7.1f}{above:6}  {each}")


# The table of docs/explanation/guard.md.


def run_study(out: Path, seeds: int) -> None:
    """Every federation × method × guard, by the product itself."""
    for name in sorted(PLAN["choosing"] + PLAN["reporting"]):
        start = time.perf_counter()
        options = settings(name, out) | {"eval_every": 100, "method": PLAN["methods"], "seeds": seeds}
        study(guard=[None, "mixture", "certified"], jobs=1, out=out / "studies" / name, **options)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("train", "evaluate", "study"))
    parser.add_argument("half", nargs="?", choices=("choosing", "reporting"), default="choosing")
    parser.add_argument("--out", type=Path, default=Path("runs/guard-natural"))
    parser.add_argument("--seeds", type=int, default=24, help="of the study; 3 are one repetition")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "train":
        train(PLAN[options.half], options.out)
    elif options.what == "evaluate":
        evaluate(options.half, options.out)
    else:
        run_study(options.out, options.seeds)


if __name__ == "__main__":
    main()
