"""What evaluation costs beside a round: 100 clients with 100 training and 43 test samples each.

Between rounds clients predict their tests; the last evaluation also predicts the training samples, for balanced
accuracy, and everybody's tests, for G-acc and S-acc.

python benchmarks/evaluation.py [--models mlp cnn] [--methods FedAvg FedRep] [--shape 3 32 32] [--repeats 2]
"""

import argparse

import torch

from round import CIFAR, Here, federation, header, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--methods", nargs="+", default=["FedAvg", "FedRep"])
    parser.add_argument("--shape", type=int, nargs=3, default=CIFAR)
    parser.add_argument("--repeats", type=int, default=2, help="rounds and evaluations, of which the least counts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    numbers = ("round, s", "between rounds, s", "by class, s", "with G-acc and S-acc, s")
    print(header("model", "images", "method", numbers=numbers))
    for model in args.models:
        for method in args.methods:
            here = Here(federation(100, 100, tuple(args.shape), tests=43), model, method)
            here.round()
            ways = (
                here.round,
                lambda: here.server.evaluate(general=False, by_class=False),  # noqa: B023
                lambda: here.server.evaluate(general=False, by_class=True),  # noqa: B023
            )
            turns = [[seconds(way) for way in ways] for _ in range(args.repeats)]
            trained, *looked = map(min, zip(*turns, strict=True))
            everybody = seconds(lambda: here.server.evaluate(general=True))  # noqa: B023
            shares = " | ".join(f"{each:.2f} ({each / trained:.0%})" for each in looked)
            images = "×".join(map(str, args.shape))
            print(f"| {model} | {images} | {method} | {trained:.2f} | {shares} | {everybody:.1f} |", flush=True)


if __name__ == "__main__":
    main()
