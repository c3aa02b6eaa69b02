"""A round here, by the usual eager loop, and what the machine could do at best: the same steps by each, in turn.

    python benchmarks/round.py [--models cnn mlp lenet5 resnet10 vit-tiny] [--repeats 5] [--peers fluke flwr]

20 clients with 100 CIFAR-shaped samples each, batches of 10, one epoch. The eager loop is a DataLoader,
``torch.optim.SGD`` and torch's own number of threads, one client after another, on the same module. The floor is the
steps' floating-point operations (torch.utils.flop_counter) at the rate of a 2048³ product on all cores, measured in the
same run. ``--peers`` needs their packages; see benchmarks/peers.py.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from comity import Config
from comity.data import ClientData, Federation, Split
from comity.engine import build
from comity.engine._memory import keep_freed_memory
from comity.nn import MODELS

SHAPE, CLASSES, BATCH, LR = (3, 32, 32), 10, 10, 0.005
CORES = os.cpu_count() or 1


def federation(clients: int, samples: int, tests: int = 30) -> Federation:
    """Random images: what is measured is time."""
    random = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        x = torch.randn(count, *SHAPE, generator=random).contiguous(memory_format=torch.channels_last)
        return Split(x, torch.randint(CLASSES, (count,), generator=random))

    members = (ClientData(cid, split(samples), split(0), split(tests)) for cid in range(clients))
    return Federation("noise", SHAPE, CLASSES, tuple(members), seed=0, partition="none")


class Here:
    """The engine's own round: training on all cores and aggregation."""

    def __init__(self, data: Federation, model: str, method: str, workers: int = 0) -> None:
        options = {"model": model, "method": method, "lr": LR, "batch_size": BATCH, "workers": workers}
        keep_freed_memory()
        _, self.server = build(Config(clients=len(data), reference="none", **options), data)

    def round(self) -> None:
        torch.set_num_threads(1)
        self.server.step()


class Eager:
    """What most code does: the same module, steps and average."""

    def __init__(self, data: Federation, model: str, method: str) -> None:
        self.net = MODELS[model](SHAPE, CLASSES)
        self.heads = [copy.deepcopy(self.net.head.state_dict()) for _ in data.clients]
        self.rep = method == "FedRep"
        self.loaders = [
            DataLoader(TensorDataset(c.train.x.contiguous(), c.train.y), BATCH, shuffle=True) for c in data.clients
        ]

    def round(self) -> None:
        torch.set_num_threads(CORES)
        start = copy.deepcopy(self.net.state_dict())
        total = {name: torch.zeros_like(tensor, dtype=torch.float64) for name, tensor in start.items()}
        for cid, loader in enumerate(self.loaders):
            self.net.load_state_dict(start)
            if self.rep:
                self.net.head.load_state_dict(self.heads[cid])
                self.epoch(loader, self.net.head, self.net.body)
                self.epoch(loader, self.net.body, self.net.head)
                self.heads[cid] = copy.deepcopy(self.net.head.state_dict())
            else:
                self.epoch(loader, self.net)
            for name, tensor in self.net.state_dict().items():
                total[name] += tensor / len(self.loaders)
        self.net.load_state_dict(total)

    def epoch(self, loader: DataLoader[tuple[Tensor, ...]], part: nn.Module, frozen: nn.Module | None = None) -> None:
        self.net.requires_grad_(True)
        if frozen is not None:
            frozen.requires_grad_(False)
        optimiser = torch.optim.SGD(part.parameters(), lr=LR)
        self.net.train()
        for x, y in loader:
            optimiser.zero_grad()
            F.cross_entropy(self.net(x), y).backward()
            optimiser.step()


def flops(model: str, method: str) -> int:
    """Of the steps of one batch."""
    net = MODELS[model](SHAPE, CLASSES)
    x, y = torch.randn(BATCH, *SHAPE), torch.zeros(BATCH, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        for part in (net.head, net.body) if method == "FedRep" else (net,):
            net.requires_grad_(False)
            part.requires_grad_(True)
            F.cross_entropy(net(x), y).backward()
    return int(counter.get_total_flops())


def gemm_rate(size: int = 2048) -> float:
    """Floating-point operations a second, all cores."""
    torch.set_num_threads(CORES)
    A, B = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / min(seconds(lambda: A @ B) for _ in range(3))


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass
class Spread:
    values: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({min(self.values):.3f}–{max(self.values):.3f})"


def compare(model: str, method: str, repeats: int, clients: int = 20, samples: int = 100) -> dict[str, Spread]:
    """Seconds a round of each, taken in turn, after one round of each that does not count."""
    data = federation(clients, samples)
    work = clients * (samples // BATCH) * flops(model, method)
    ways = {"here": Here(data, model, method), "eager": Eager(data, model, method)}
    taken: dict[str, list[float]] = {"here": [], "eager": [], "floor": []}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            taken[name].append(seconds(way.round))
        taken["floor"].append(work / gemm_rate())
        if repeat == 0:
            taken = {name: [] for name in taken}
    return {name: Spread(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cnn", "mlp", "lenet5", "resnet10", "vit-tiny"])
    parser.add_argument("--methods", nargs="+", default=["FedAvg", "FedRep"])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{CORES} cores, torch {torch.__version__}, {args.repeats} rounds of each: median (least–most) seconds\n")
    print("| model | method | here | eager loop | floor | eager ÷ here | floor ÷ here |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for model in args.models:
        for method in args.methods:
            taken = compare(model, method, args.repeats)
            here, eager, floor = (taken[name] for name in ("here", "eager", "floor"))
            ratios = f"{eager.median / here.median:.1f} × | {floor.median / here.median:.0%}"
            print(f"| {model} | {method} | {here} | {eager} | {floor} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
