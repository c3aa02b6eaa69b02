"""What evaluation costs beside a round: 100 clients with 100 training and 43 test samples each, CIFAR-shaped.

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
    print("| model | method | round, s | evaluation, s | with G-acc and S-acc, s |\n|---|---|---:|---:|---:|")
    for model in args.models:
        for method in args.methods:
            here = Here(federation(100, 100, tests=43), model, method)
            here.round()
            trained = min(seconds(here.round) for _ in range(2))
            looked = min(seconds(lambda: here.server.evaluate(general=False)) for _ in range(2))  # noqa: B023
            everybody = seconds(lambda: here.server.evaluate(general=True))  # noqa: B023
            share = f"{looked / trained:.0%}"
            print(f"| {model} | {method} | {trained:.2f} | {looked:.2f} ({share}) | {everybody:.1f} |", flush=True)


if __name__ == "__main__":
    main()
