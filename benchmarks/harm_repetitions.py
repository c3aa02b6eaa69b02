"""Who is named as harmed with 1, 2, 3, 5 and 8 repetitions: the two studies in which more seeds made harm disappear.

    python benchmarks/harm_repetitions.py FOLDER [--metric accuracy]

Trains FedAvg on `heart` (mlp of 16, 20 rounds) and on `watch` with 24 seeds, which are 8 repetitions of 3 folds, then
reads the first 3, 6, 9, 15 and 24 runs and prints the states as Markdown. Resumable: finished runs are kept.
"""

import argparse
from pathlib import Path

from comity.compare import LoadedStudy
from comity.studies import study

REPETITIONS, FOLDS = (1, 2, 3, 5, 8), 3
STUDIES = {
    "heart": {"data": "heart", "model": {"name": "mlp", "widths": [16]}, "rounds": 20},
    "watch": {"data": "watch", "rounds": 20},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--metric", default="accuracy")
    arguments = parser.parse_args()
    for name, options in STUDIES.items():
        out = arguments.folder / f"{name}-{arguments.metric}"
        study(method="FedAvg", seeds=FOLDS * max(REPETITIONS), metric=arguments.metric, out=out, **options)
        print(f"\n**{name}**, {arguments.metric}\n")
        print("| repetitions | runs | mean gain | worse | undecided | not worse | worse clients |")
        print("|---:|---:|---:|---:|---:|---:|---|")
        for repetitions in REPETITIONS:
            loaded = LoadedStudy(*(run.path for run in LoadedStudy(out).runs if run.seed < FOLDS * repetitions))
            cell = next(cell for cell in loaded.cells if not cell.local)
            gain, rows = (
                cell.mean_gain,
                {state: cell.with_state(state) for state in ("worse", "undecided", "not worse")},
            )
            assert gain is not None
            counts = " | ".join(str(len(each)) for each in rows.values())
            named = ", ".join(
                f"{row} ({100 * row.gain:.1f} [{100 * row.low:.1f}, {100 * row.high:.1f}])" for row in rows["worse"]
            )
            runs = FOLDS * repetitions
            print(
                f"| {repetitions} | {runs} | {gain.mean:.1f} [{gain.low:.1f}, {gain.high:.1f}] | {counts} | {named} |"
            )


if __name__ == "__main__":
    main()
