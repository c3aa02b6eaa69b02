"""Run folders as the engine writes them, without any training: the numbers are the test's own."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

CONFIG: dict[str, Any] = {
    "data": {"name": "digits"},
    "data_dir": None,
    "partition": {"name": "Dirichlet", "alpha": 0.1},
    "clients": 20,
    "test_share": 0.3,
    "val_share": 0.0,
    "model": {"name": "cnn"},
    "method": {"name": "FedRep", "head_epochs": 1},
    "rule": {"name": "Mean", "weighting": "size"},
    "rounds": 50,
    "participation": 1.0,
    "epochs": 1,
    "lr": 0.05,
    "moment": None,
    "reference": "auto",
    "seed": 0,
    "workers": 2,
    "out": None,
}
HEADER = (
    "round",
    "client",
    "n_train",
    "n_test",
    "L-acc",
    "loss",
    "val-acc",
    "val-loss",
    "S-acc",
    "G-acc",
    "global-acc",
)
RULES: dict[str, dict[str, Any]] = {
    "Mean": {"weighting": "size"},
    "ConFREE": {"c": 0.5},
    "CALM": {"C": 10.0, "eps": 0.1},
}
METHODS: dict[str, dict[str, Any]] = {"FedRep": {"head_epochs": 1}, "Ditto": {"lam": 1.0}}


def make(
    path: Path,
    accuracy: Sequence[float],
    *,
    alone: Sequence[float] | None = None,
    method: str = "FedRep",
    rule: str = "Mean",
    seed: int = 0,
    rounds: int = 5,
    done: int | None = None,
    layers: Sequence[str] = ("body.conv1.weight", "body.conv1.bias", "head.weight"),
    tests: int = 20,
    same_partition: bool = False,
    options: Mapping[str, Any] | None = None,
    own_rule: bool = False,
    thorough: bool = True,
) -> Path:
    """A run whose clients end with ``accuracy``; ``alone`` is what they reach without the others.

    ``done`` rounds of ``rounds``: the run is still under way. ``thorough``: with weights, cosines and partition.
    """
    clients, last = len(accuracy), rounds if done is None else done
    config = {
        **CONFIG,
        "clients": clients,
        "method": {"name": method, **METHODS.get(method, {})},
        "rule": {"name": rule, **RULES.get(rule, {})},
        "rounds": rounds,
        "seed": seed,
        "out": str(path),
    }
    for key, value in (options or {}).items():
        part, dot, option = key.partition(".")
        if dot:
            config[part] = {**config[part], option: value}
        else:
            config[part] = value
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    random = np.random.default_rng(0 if same_partition else seed)
    classes = 10
    counts = random.dirichlet([0.2] * classes, clients) * random.integers(30, 200, (clients, 1))
    sizes = counts.astype(int).sum(1)
    if thorough:
        about = {"name": "digits", "partition": "Dirichlet(alpha=0.1)", "classes": classes}
        (path / "partition.json").write_text(json.dumps(about | {"counts": counts.astype(int).tolist()}))
    _grow(path, np.array(accuracy), last, layers if method != "Local" else (), tests, sizes, random, rule, thorough)
    if done is None:
        result = _result(method, rule, accuracy, alone, rounds, tests, sizes, own_rule)
        (path / "result.json").write_text(json.dumps(result))
    return path


def _grow(
    path: Path,
    accuracy: np.ndarray[Any, Any],
    last: int,
    layers: Sequence[str],
    tests: int,
    sizes: np.ndarray[Any, Any],
    random: np.random.Generator,
    rule: str,
    thorough: bool,
) -> None:
    """What the rounds leave: records, coefficients, cosines and the clients' table."""
    clients = len(accuracy)
    ids = list(range(clients))
    records, weights, cosines = [], [], []
    with (path / "clients.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(HEADER)
        for number in range(1, last + 1):
            now = accuracy * (1 - 0.5 * np.exp(-3 * number / max(1, last))) if number < last else accuracy
            for i in ids:
                table.writerow([number, i, sizes[i], tests, now[i], 1 - now[i], *[""] * 5])
            record: dict[str, Any] = {
                "round": number,
                "cohort": ids,
                "lost": [],
                "train/loss": 2.0 / number,
                "bytes": {"down": 1_000_000, "up": 500_000} if layers else {"down": 0, "up": 0},
                "seconds": {"train": 0.5, "aggregate": 0.25, "evaluate": 0.1},
            }
            record |= metrics(now)
            if number == last:
                record |= {f"eval/{kind}/mean": float(now.mean()) * by for kind, by in (("S-acc", 0.8), ("G-acc", 0.6))}
            if layers:
                rates = {layer: float(random.uniform(0.1, 0.6)) for layer in layers}
                record["conflict"] = {"rate": sum(rates.values()) / len(rates), "layers": rates}
                rows = len(layers) if rule == "CALM" else 1
                coefficients = random.exponential(1 / clients, (rows, clients))
                weights.append({"round": number, "group": "", "ids": ids, "coefficients": coefficients.tolist()})
            if layers and number in (1, last):
                cosine = np.clip(random.normal(0, 0.3, (clients, clients)), -1, 1)
                cosine = (cosine + cosine.T) / 2
                np.fill_diagonal(cosine, 1)
                cosines.append({"round": number, "group": "", "ids": ids, "cosines": cosine.round(4).tolist()})
            records.append(record)
    for name, lines in (("rounds", records), ("weights", weights), ("cosines", cosines)):
        if lines and (thorough or name == "rounds"):
            (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def metrics(accuracy: np.ndarray[Any, Any]) -> dict[str, float]:
    worst = np.sort(accuracy)[: max(1, -(-len(accuracy) // 10))]
    return {
        "eval/L-acc/mean": float(accuracy.mean()),
        "eval/L-acc/std": float(accuracy.std()),
        "eval/L-acc/samples": float(accuracy.mean()),
        "eval/L-acc/worst10": float(worst.mean()),
        "eval/loss/mean": float(1 - accuracy.mean()),
    }


def _result(
    method: str,
    rule: str,
    accuracy: Sequence[float],
    alone: Sequence[float] | None,
    rounds: int,
    tests: int,
    sizes: np.ndarray[Any, Any],
    own_rule: bool,
) -> dict[str, Any]:
    mine = metrics(np.array(accuracy))
    result: dict[str, Any] = {
        "title": method if method == "Local" or own_rule else f"{method} + {rule}",
        "key": "0" * 16,
        "moment": "received",
        "last": {"round": rounds, **mine},
        "best": {"chosen by": "test: do not compare methods by it", "round": rounds, **mine},
        "malicious": [],
        "conflict-rate": 0.3,
        "worst residual": 1e-9,
        "bytes a round": {"down": 1e6, "up": 5e5},
        "seconds": {"train": 0.5 * rounds, "aggregate": 0.25 * rounds, "evaluate": 0.1 * rounds},
        "failures": 0,
        "clients": {
            "client": list(range(len(accuracy))),
            "L-acc": list(accuracy),
            "loss": [1 - value for value in accuracy],
            "n_train": [int(size) for size in sizes],
            "n_test": [tests] * len(accuracy),
        },
        "written": "2026-11-15 12:00:00",
        "versions": {"comity": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "scipy": "1.17.1"},
        "machine": {"cores": 2, "system": "Linux", "python": "3.11.7"},
    }
    if alone is not None:
        gain = [a - b for a, b in zip(accuracy, alone, strict=True)]
        result["transfer"] = {
            "local": sum(alone) / len(alone),
            "relative-accuracy": float(np.mean([g / b for g, b in zip(gain, alone, strict=True) if b > 0])),
            "positive-transfer": float(np.mean([g > 0 for g in gain])),
            "harmed": [i for i, g in enumerate(gain) if g < 0],
            "gain": {str(i): g for i, g in enumerate(gain)},
        }
    return result
