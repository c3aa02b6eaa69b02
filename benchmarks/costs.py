"""Measures the stored cost model of ``comity reproduce --dry-run``: seconds per batch of each net and each method.

``python benchmarks/costs.py`` writes src/comity/examples/published/costs.json; about five minutes on one core.
"""

import json
import math
import platform
from datetime import date
from pathlib import Path
from time import process_time

from comity.engine import run
from comity.methods import METHODS
from comity.studies import _cost

FILE = Path(__file__).parents[1] / "src/comity/examples/published/costs.json"
NETS = {
    "mlp": (28, 1),
    "lenet5": (32, 3),
    "cnn": (32, 3),
    "cnn-fedpg": (32, 3),
    "resnet4": (32, 3),
    "resnet10": (32, 3),
    "resnet18": (32, 3),
    "resnet34": (32, 3),
    "nf-resnet18": (32, 3),
    "vit-tiny": (32, 3),
}
SMALL, LARGE = 10, 50
"""Batch sizes, from whose times the cost of a batch and of its operations follow."""


def seconds(
    net: str, batch: int, samples: int, method: str = "FedAvg", size: int = 32, channels: int = 3, trainer: str = "auto"
) -> float:
    """CPU seconds of a round of training, per client: what three rounds take more than one."""
    options = {
        **{"data": {"name": "synthetic", "samples": 2 * samples, "size": size, "channels": channels}, "model": net},
        **{
            "method": method,
            "batch_size": batch,
            "clients": 2,
            "eval_every": 100,
            "test_share": 0.5,
            "trainer": trainer,
        },
        **{"reference": "none", "control": "none", "workers": 1, "general_every": "never"},
        "val_share": 0.2 if method in ("FedFomo", "FEDORA") else 0.0,
    }

    def taken(rounds: int) -> float:
        started = process_time()
        run(rounds=rounds, **options)
        return process_time() - started

    taken(1)  # compiles and warms up
    return max(taken(3) - taken(1), 1e-4) / 2 / 2


def main() -> None:
    nets, methods = {}, {}
    for net, (size, channels) in NETS.items():
        samples = 200 if net in ("mlp", "lenet5", "cnn", "cnn-fedpg") else 50 if net in ("resnet4", "resnet10") else 20
        few, many = (seconds(net, batch, samples, size=size, channels=channels) for batch in (SMALL, LARGE))
        flops = _cost.TRAINING * samples * _cost._flops(net, "{}", (channels, size, size), 10)
        batches = [math.ceil(samples / batch) for batch in (SMALL, LARGE)]
        per_batch = max(0.0, (few - many) / (batches[0] - batches[1]))
        computing = max(few - per_batch * batches[0], few / 10)
        nets[net] = {"gflops": round(flops / computing / 1e9, 1), "ms_per_batch": round(1e3 * per_batch, 3)}
        print(net, nets[net], f"{few:.3f} s and {many:.3f} s")
    usual = seconds("cnn", SMALL, 60, trainer="autograd")
    for method in METHODS:
        methods[method] = round(seconds("cnn", SMALL, 60, method, trainer="autograd") / usual, 2)
        print(method, methods[method])
    FILE.write_text(
        json.dumps(
            {"machine": platform.platform(), "date": f"{date.today()}", "nets": nets, "methods": methods}, indent=1
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
