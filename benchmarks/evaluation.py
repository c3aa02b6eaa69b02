"""What evaluation costs beside a round: 100 clients with 100 training and 43 test samples each, CIFAR-shaped.

Between rounds clients predict their tests; the last evaluation also predicts the training samples, for balanced
accuracy, and everybody's tests, for G-acc and S-acc.

python benchmarks/evaluation.py [--models mlp cnn] [--methods FedAvg FedRep]
"""

import argparse

import torch

from round import Here, federation, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--methods", nargs="+", default=["FedAvg", "FedRep"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | method | round, s | between rounds, s | by class, s | with G-acc and S-acc, s |")
    print("|---|---|---:|---:|---:|---:|")
    for model in args.models:
        for method in args.methods:
            here = Here(federation(100, 100, tests=43), model, method)
            here.round()
            trained = min(seconds(here.round) for _ in range(2))
            looked, by_class = (
                min(seconds(lambda: here.server.evaluate(general=False, by_class=by_class)) for _ in range(2))  # noqa: B023
                for by_class in (False, True)
            )
            everybody = seconds(lambda: here.server.evaluate(general=True))  # noqa: B023
            shares = " | ".join(f"{each:.2f} ({each / trained:.0%})" for each in (looked, by_class))
            print(f"| {model} | {method} | {trained:.2f} | {shares} | {everybody:.1f} |", flush=True)


if __name__ == "__main__":
    main()
