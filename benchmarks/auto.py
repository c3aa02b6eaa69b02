"""How near one run with the rule Auto comes to the best of a grid of rules and step lengths, and at what cost.

FedAvg on digits, 20 clients, Dirichlet 0.3; accuracy of the last round and clients below Local, means over seeds.

    python benchmarks/auto.py --seeds 3 --rounds 30
"""

import argparse
import time
from statistics import mean
from typing import Any, NamedTuple

import comity

RULES = [
    {"name": "Mean"},
    {"name": "ConFREE", "c": 0.2},
    {"name": "ConFREE", "c": 0.5},
    {"name": "ConFREE", "c": 0.8},
    {"name": "CALM", "scale": "layer"},
]
LENGTHS = ["own", "mean", 1.5, 2.0]


class Cell(NamedTuple):
    name: str
    accuracy: float
    harmed: float
    megabytes: float
    seconds: float


def cell(name: str, rule: dict[str, Any], shared: dict[str, Any], alone: list[list[float]]) -> Cell:
    found = []
    for seed, local in enumerate(alone):
        started = time.process_time()
        done = comity.run(**shared, seed=seed, rule=rule)
        seconds = time.process_time() - started
        accuracy = done.columns["L-acc"]
        harmed = sum(mine < before for mine, before in zip(accuracy, local, strict=True))
        traffic = sum(record.bytes.up + record.bytes.down for record in done.records) / 1e6
        found.append((100 * mean(accuracy), harmed, traffic, seconds))
    return Cell(name, *(mean(column) for column in zip(*found, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()
    shared: dict[str, Any] = {
        "partition": {"name": "dirichlet", "alpha": 0.3},
        "model": {"name": "mlp", "widths": (64,)},
        "rounds": options.rounds,
        "lr": options.lr,
        "eval_every": options.rounds,
        "general_every": "never",
        "reference": "none",
        "workers": 1,
    }
    alone = [comity.run(**shared, seed=s, method="Local").columns["L-acc"] for s in range(options.seeds)]
    auto = cell("Auto", {"name": "Auto"}, shared, alone)
    grid = []
    for rule in RULES:
        for length in LENGTHS:
            words = ", ".join(f"{key}={value}" for key, value in (rule | {"length": length}).items() if key != "name")
            grid.append(cell(f"{rule['name']}({words})", rule | {"length": length}, shared, alone))
    plain, best = grid[0], max(grid, key=lambda each: each.accuracy)
    print("| rule | accuracy | harmed | MB | processor seconds |\n|---|---|---|---|---|")
    for each in (auto, best, plain, min(grid, key=lambda each: each.accuracy)):
        print(f"| {each.name} | {each.accuracy:.2f} | {each.harmed:.1f} | {each.megabytes:.1f} | {each.seconds:.1f} |")
    print(f"\nAuto is {best.accuracy - auto.accuracy:+.2f} points behind the best of {len(grid)} cells, harms")
    print(f"{auto.harmed - best.harmed:+.1f} clients more, and takes {auto.megabytes / plain.megabytes:.2f} times the")
    print(f"traffic and {auto.seconds / plain.seconds:.2f} times the processor time of one run with Mean.")


if __name__ == "__main__":
    main()
