"""Which rule withstands which attack.

FedAvg on digits, 20 clients; the accuracy of the common model on the honest clients' own tests, mean over seeds.

    python benchmarks/attacks.py --seeds 8
"""

import argparse
from statistics import mean, stdev
from typing import Any

import comity

RULES: dict[str, dict[str, Any]] = {
    "`Mean`": {"rule": "Mean"},
    "`Mean`, clipped": {"rule": "Mean", "clip_updates": "median"},
    "`ConFREE`": {"rule": "ConFREE"},
    '`CALM(scale="layer")`': {"rule": {"name": "CALM", "scale": "layer"}},
    "`UPGrad`": {"rule": {"name": "UPGrad", "length": "mean"}},
    "`FedMGDAPlus`": {"rule": "FedMGDA+"},
    "`GeometricMedian`": {"rule": "GeometricMedian"},
    '`GeometricMedian(by="uniform")`': {"rule": {"name": "GeometricMedian", "by": "uniform"}},
}
ATTACKS = [("none", 0.2), ("gaussian", 0.2), ("scale", 0.2), ("inner", 0.2)]


def accuracy(entries: dict[str, Any], attack: str, share: float, alpha: float, rounds: int, seed: int) -> float:
    done = comity.run(
        partition={"name": "dirichlet", "alpha": alpha},
        model="mlp",
        rounds=rounds,
        eval_every=rounds,
        general_every="never",
        reference="none",
        workers=1,
        attack=attack,
        malicious=share,
        seed=seed,
        **entries,
    )
    return 100 * done.result.last.metrics["L-acc"].mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--alpha", type=float, default=0.5, help="of the Dirichlet partition: the smaller, the more apart"
    )
    options = parser.parse_args()
    heads = [kind if kind == "none" else f"{kind} {share:.0%}" for kind, share in ATTACKS]
    print("| rule | " + " | ".join(heads) + " |\n|" + "---|" * (1 + len(heads)), flush=True)
    spreads = []
    for name, entries in RULES.items():
        cells = []
        for kind, share in ATTACKS:
            found = [accuracy(entries, kind, share, options.alpha, options.rounds, s) for s in range(options.seeds)]
            cells.append(f"{mean(found):.1f}")
            spreads.append(stdev(found) if len(found) > 1 else 0.0)
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(
        f"\nStandard deviation over seeds: median {sorted(spreads)[len(spreads) // 2]:.1f}, largest {max(spreads):.1f}."
    )


if __name__ == "__main__":
    main()
