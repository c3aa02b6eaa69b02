"""How near one run with the rule Auto comes to the best of a grid of rules and step lengths, and at what cost.

FedAvg on four data sets; accuracy of the last round and clients below Local, means over seeds. Costs are those of one
run with Mean. The grid's best cell is chosen by its test accuracy after the fact, which no run could do.

    COMITY_DATA=... python benchmarks/auto.py watch heart fashion-mnist flowers102 --seeds 3
"""

import argparse
import time
from statistics import mean, stdev
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
DIRICHLET = {"partition": {"name": "dirichlet", "alpha": 0.3}}
DATA: dict[str, dict[str, Any]] = {
    "digits": DIRICHLET | {"model": {"name": "mlp", "widths": (64,)}, "rounds": 30},
    "watch": {"model": {"name": "mlp", "widths": (64,)}, "rounds": 30},
    "heart": {"rounds": 30},
    "fashion-mnist": DIRICHLET | {"model": {"name": "mlp", "widths": (64,)}, "steps": 50, "rounds": 20},
    "flowers102": DIRICHLET | {"model": "lenet5", "steps": 10, "rounds": 10},
}
SHARED = {"eval_every": 1000, "general_every": "never", "reference": "none", "workers": 1}


class Cell(NamedTuple):
    """Means over seeds of one rule."""

    name: str
    accuracy: float
    spread: float
    harmed: float
    megabytes: float
    seconds: float


def cell(rule: dict[str, Any], options: dict[str, Any], alone: list[list[float]]) -> Cell:
    words = ", ".join(f"{key}={value}" for key, value in rule.items() if key != "name")
    found = []
    for seed, local in enumerate(alone):
        started = time.process_time()
        done = comity.run(**options, seed=seed, rule=rule)
        seconds = time.process_time() - started
        accuracy = done.columns["L-acc"]
        harmed = sum(mine < before for mine, before in zip(accuracy, local, strict=True))
        traffic = sum(record.bytes.up + record.bytes.down for record in done.records) / 1e6
        found.append((100 * mean(accuracy), harmed, traffic, seconds))
    accuracies, harms, traffics, times = zip(*found, strict=True)
    spread = stdev(accuracies) if len(found) > 1 else 0.0
    return Cell(f"{rule['name']}({words})", mean(accuracies), spread, mean(harms), mean(traffics), mean(times))


def compare(name: str, seeds: int) -> None:
    options = SHARED | DATA[name] | {"data": name}
    alone = [comity.run(**options, seed=seed, method="Local").columns["L-acc"] for seed in range(seeds)]
    cell({"name": "Mean"}, options | {"rounds": 1}, alone[:1])  # what is loaded once is not the first rule's cost
    grid = [cell(rule | {"length": length}, options, alone) for rule in RULES for length in LENGTHS]
    auto = cell({"name": "Auto"}, options, alone)
    plain, best = grid[0], max(grid, key=lambda each: each.accuracy)
    for each in (auto, best, plain, min(grid, key=lambda each: each.accuracy)):
        costs = f"{each.megabytes / plain.megabytes:.2f} | {each.seconds / plain.seconds:.2f}"
        print(f"| {name} | `{each.name}` | {each.accuracy:.2f} ± {each.spread:.2f} | {each.harmed:.1f} | {costs} |")
    behind, harms = best.accuracy - auto.accuracy, auto.harmed - best.harmed
    print(
        f"<!-- {name}: {behind:+.2f} points behind the best of {len(grid)} cells, {harms:+.1f} clients harmed more -->"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", choices=DATA, default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| data | rule | accuracy | harmed | traffic | processor time |\n|---|---|---|---|---|---|", flush=True)
    for name in options.data:
        compare(name, options.seeds)


if __name__ == "__main__":
    main()
