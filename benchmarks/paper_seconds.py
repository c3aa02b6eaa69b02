"""Processor seconds per round, for the papers' claims on time. Run it on a quiet machine.

python benchmarks/paper_seconds.py EVIDENCE     writes EVIDENCE/paper-seconds.csv

ConFREE and Mean under four methods on Flowers102 at 32 pixels, 60 clients, 30 % online, the paper's net and batches:
the same clients are online with both. FEDORA and the three methods that its slides compare it with on rotated MNIST,
the slides' sizes and net. The first round, in which FEDORA compares clients, and the last, which is evaluated, are
left out.
"""

import csv
import sys
import time
from pathlib import Path
from typing import Any

import torch

from comity.engine import Callback, Run, run

ROUNDS = 8
COMMON: dict[str, Any] = {"general_every": "never", "reference": "none", "control": "none", "workers": 1}
SETTING: dict[str, dict[str, Any]] = {
    "confree": {
        "data": {"name": "flowers102", "size": 32},
        "partition": {"name": "dirichlet", "alpha": 0.1, "self_balancing": True},
        "clients": 60,
        "participation": 0.3,
        "model": "cnn",
        "batch_size": 10,
        "lr": 0.005,
    },
    "fedora": {
        "data": {"name": "mnist", "centred": False},
        "partition": {"name": "rotated", "samples_per_client": 469},
        "clients": 36,
        "test_share": 0.5906,
        "val_share": 0.3333,
        "model": {"name": "mlp", "widths": [128, 128]},
        "batch_size": 64,
        "epochs": 5,
        "momentum": 0.9,
        "weight_decay": 0.00005,
        "lr": 0.005,
    },
}
CELLS: dict[str, list[dict[str, Any]]] = {
    "confree": [
        {"method": method, "rule": rule}
        for method in ("FedRep", "FedALA", {"name": "APFL", "form": "pfllib", "alpha": 1}, "FedPAC")
        for rule in ("Mean", "ConFREE")
    ],
    "fedora": [{"method": method} for method in ("FEDORA", "FedFomo", "FedU", "FedAMP")],
}


class Clock(Callback):
    """Processor time per round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last = time.process_time()

    def on_start(self, run: Run) -> None:
        self.last = time.process_time()

    def on_round(self, run: Run, record: Any) -> None:
        now = time.process_time()
        self.seconds.append(now - self.last)
        self.last = now


def seconds(part: str, cell: dict[str, Any]) -> dict[int, float]:
    """By round."""
    clock = Clock()
    run(**SETTING[part], **COMMON, **cell, rounds=ROUNDS, eval_every=ROUNDS, callbacks=[clock])
    return dict(list(enumerate(clock.seconds, 1))[1:-1])


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = []
    for part, cells in CELLS.items():
        for cell in cells:
            name = cell["method"]["name"] if isinstance(cell["method"], dict) else cell["method"]
            made = {"method": name, "rule": cell.get("rule", "")}
            rows += [made | {"round": at, "seconds": f"{taken:.4f}"} for at, taken in seconds(part, cell).items()]
            print(rows[-1], flush=True)
    with (Path(sys.argv[1]) / "paper-seconds.csv").open("w", newline="") as text:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
