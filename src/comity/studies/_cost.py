"""A stored cost model: estimate the time of a run from its configuration.

A batch takes ``ms_per_batch`` plus its floating-point operations at ``gflops``, both by network; a method takes a
multiple of FedAvg's time. ``benchmarks/costs.py`` measured these numbers on one core and wrote
examples/published/costs.json.
"""

import json
import math
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from comity.config import Config

TRAINING = 3
"""Cost of a training step (forward and backward) in forward passes."""
NOMINAL = {
    "mnist": (70_000, (1, 28, 28), 10),
    "fashion-mnist": (70_000, (1, 28, 28), 10),
    "cifar10": (60_000, (3, 32, 32), 10),
    "cifar100": (60_000, (3, 32, 32), 100),
    "cinic10": (270_000, (3, 32, 32), 10),
    "tiny-imagenet": (110_000, (3, 64, 64), 200),
    "flowers102": (8_189, (3, 64, 64), 102),
    "gtsrb": (51_839, (3, 32, 32), 43),
    "yearbook": (37_921, (1, 32, 32), 2),
    "digits": (1_797, (1, 8, 8), 10),
    "heart": (920, (25,), 2),
    "watch": (2_368, (6, 50), 7),
}
"""Samples, shape and classes of the data sets in the papers."""


@cache
def costs() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((files("comity") / "examples" / "published" / "costs.json").read_text())
    return stored


@cache
def _flops(net: str, options: str, shape: tuple[int, ...], classes: int) -> float:
    """Floating-point operations of a forward pass of one sample."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from comity._components import Component

    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        made = Component.parse("model", {"name": net, **json.loads(options)}).build(shape=shape, classes=classes)
        made(torch.empty(2, *shape))  # BatchNorm rejects a single sample
    return float(counter.get_total_flops()) / 2


def seconds(config: Config, size: tuple[int, tuple[int, ...], int] | None = None) -> float:
    """Estimated seconds of all rounds of a run; ``size``: samples, shape and classes of its data, if known."""
    samples, shape, classes = size or NOMINAL[config.data.name]
    if len(shape) == 3 and (pixels := config.data.options.get("size")):
        shape = (shape[0], pixels, pixels)
    options = config.partition.options if config.partition is not None else {}
    clients = config.clients or 20
    if options.get("samples_per_client"):
        samples = min(samples, clients * options["samples_per_client"])
    tests = samples * config.test_share
    online = config.participation
    trained = (samples - tests) * (1 - config.val_share) * online * config.epochs
    batches = max(trained / config.batch_size, clients * online * config.epochs)
    known, net = costs()["nets"], config.model.name if config.model is not None else "cnn"
    speed = known.get(net) or {
        name: median(each[name] for each in known.values()) for name in ("gflops", "ms_per_batch")
    }
    chosen = json.dumps(config.model.options if config.model is not None else {}, default=list)
    forward = _flops(net, chosen, shape, classes) / speed["gflops"] / 1e9
    method = costs()["methods"].get(config.method.name, 1.0)
    fit = method * (TRAINING * forward * trained + batches * speed["ms_per_batch"] / 1e3)
    evaluations = sum(map(config.evaluates_in, range(1, config.last_round + 1)))
    return float(config.last_round * fit + evaluations * forward * tests)


def size_of(dataset: Any) -> tuple[int, tuple[int, ...], int] | None:
    """Samples, shape and classes of a loaded data set."""
    y = getattr(dataset, "y", None)
    return None if y is None else (len(y), tuple(dataset.shape), int(dataset.classes or y.max() + 1))


def in_words(data: str, size: tuple[int, tuple[int, ...], int]) -> str:
    """By how much the files of a data set are smaller than the paper's; empty if they are not."""
    (samples, shape, _), (usual, wanted, _) = size, NOMINAL.get(data, size)
    parts = [f"{samples:,} of {usual:,} samples"] if samples < usual else []
    parts += [f"{shape[-1]} instead of {wanted[-1]} pixels"] if math.prod(shape) != math.prod(wanted) else []
    return ", ".join(parts)
