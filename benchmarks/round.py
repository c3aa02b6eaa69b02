"""A round here, by the usual eager loop, and what the machine could do at best: the same steps by each, in turn.

    python benchmarks/round.py [--models cnn mlp lenet5 resnet10 vit-tiny] [--shape 3 32 32] [--repeats 5]

20 clients with 100 samples each (CIFAR-shaped by default), batches of 10, one epoch. The eager loop is a DataLoader,
``torch.optim.SGD`` and torch's own number of threads, one client after another, on the same net as it is usually
written: a ReLU before the pooling, where here it comes after, with the same numbers. The floor is what no program can
do without, at rates of all cores that are measured in the same run: the steps' floating-point operations
(torch.utils.flop_counter) at the rate of a 2048³ product, or, where that takes longer, reading and writing every weight
in each step, and twice more to bring the model to a client and back, at the rate of scaling a vector as long as the
model in place; and beside it the calls, one for each product of a layer (forward, by its weights, by its inputs), at
the cost of the smallest product. Other frameworks: benchmarks/peers.py.
"""

import argparse
import copy
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.flop_counter import FlopCounterMode

from comity import Config
from comity.data import ClientData, Federation, Split
from comity.engine import RunPlan
from comity.nn import MODELS
from comity.nn._net import Net

Shape = tuple[int, int, int]
CIFAR, CLASSES, BATCH, LR = (3, 32, 32), 10, 10, 0.005
CORES = os.cpu_count() or 1


def federation(clients: int, samples: int, shape: Shape = CIFAR, tests: int = 30) -> Federation:
    """Random images: what is measured is time."""
    random = torch.Generator().manual_seed(0)

    def split(count: int) -> Split:
        x = torch.randn(count, *shape, generator=random).contiguous(memory_format=torch.channels_last)
        return Split(x, torch.randint(CLASSES, (count,), generator=random))

    members = (ClientData(cid, split(samples), split(0), split(tests)) for cid in range(clients))
    return Federation("noise", shape, CLASSES, tuple(members), seed=0, partition="none")


class Here:
    """The engine's own round: training on all cores and aggregation."""

    def __init__(self, data: Federation, model: str, method: str, workers: int = 0) -> None:
        options = {"model": model, "method": method, "lr": LR, "batch_size": BATCH, "workers": workers}
        _, self.server = RunPlan(Config(clients=len(data), reference="none", **options), data).build()

    def round(self) -> None:
        torch.set_num_threads(1)
        self.training = self.server.step().seconds.train


class Eager:
    """What most code does: the same module, steps and average."""

    def __init__(self, data: Federation, model: str, method: str) -> None:
        self.net = as_usual(MODELS[model](data.shape, CLASSES))
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


def as_usual(net: Net) -> Net:
    """Each ReLU before its pooling."""
    if isinstance(net.body, nn.Sequential):
        layers = dict(net.body.named_children())
        for name in list(layers):
            if name.startswith("pool"):
                layers[name], layers[f"act{name[4:]}"] = layers[f"act{name[4:]}"], layers[name]
        net.body = nn.Sequential(*layers.values())
    return net


@dataclass
class Floor:
    """What the steps of one batch take at least, of a net with so many weights in so many layers."""

    flops: int = 0
    steps: int = 0
    weights: int = 0
    layers: int = 0

    @classmethod
    def of(cls, model: str, method: str, shape: Shape) -> "Floor":
        net = MODELS[model](shape, CLASSES)
        x, y = torch.randn(BATCH, *shape), torch.zeros(BATCH, dtype=torch.int64)
        parts = (net.head, net.body) if method == "FedRep" else (net,)
        with FlopCounterMode(display=False) as counter:
            for part in parts:
                net.requires_grad_(False)
                part.requires_grad_(True)
                F.cross_entropy(net(x), y).backward()
        layers = sum(p.ndim > 1 for p in net.parameters())
        return cls(int(counter.get_total_flops()), len(parts), sum(p.numel() for p in net.parameters()), layers)

    def seconds(self, clients: int, batches: int) -> float:
        arithmetic = clients * batches * self.flops / gemm_rate()
        passes = clients * (batches * self.steps + 2)
        calls = clients * batches * self.steps * (3 * self.layers - 1)
        return max(arithmetic, passes * pass_over(self.weights)) + calls * a_call() / CORES


def gemm_rate(size: int = 2048) -> float:
    """Floating-point operations a second, all cores."""
    torch.set_num_threads(CORES)
    A, B = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / min(seconds(lambda: A @ B) for _ in range(3))


def pass_over(weights: int, times: int = 50) -> float:
    """Seconds to read and write so many numbers once, each core its own, for each of them."""
    torch.set_num_threads(1)

    def scale() -> None:
        own = torch.ones(weights)
        for _ in range(times):
            own.mul_(1.0)

    def together() -> None:
        workers = [threading.Thread(target=scale) for _ in range(CORES)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    return min(seconds(together) for _ in range(3)) / (times * CORES)


def a_call(times: int = 1000) -> float:
    """Seconds of the smallest product."""
    one, out = torch.ones(1, 1), torch.ones(1, 1)

    def call() -> None:
        for _ in range(times):
            torch.mm(one, one, out=out)

    return min(seconds(call) for _ in range(3)) / times


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
        spread = f" ({min(self.values):.3f}–{max(self.values):.3f})" if len(self.values) > 1 else ""
        return f"{self.median:.3f}{spread}"


def header(*names: str, numbers: Sequence[str]) -> str:
    """The first two lines of a Markdown table."""
    return "| " + " | ".join([*names, *numbers]) + " |\n|" + "---|" * len(names) + "---:|" * len(numbers)


def compare(
    model: str, method: str, repeats: int, shape: Shape = CIFAR, clients: int = 20, samples: int = 100
) -> dict[str, Spread]:
    """Seconds a round of each, taken in turn, after one round of each that does not count."""
    data = federation(clients, samples, shape)
    floor = Floor.of(model, method, shape)
    here = Here(data, model, method)
    ways = {"here": here, "eager": Eager(data, model, method)}
    taken: dict[str, list[float]] = {"here": [], "training": [], "eager": [], "floor": []}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            taken[name].append(seconds(way.round))
        taken["training"].append(here.training)
        taken["floor"].append(floor.seconds(clients, samples // BATCH))
        if repeat == 0:
            taken = {name: [] for name in taken}
    return {name: Spread(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["cnn", "mlp", "lenet5", "resnet10", "vit-tiny"])
    parser.add_argument("--methods", nargs="+", default=["FedAvg", "FedRep"])
    parser.add_argument("--shape", type=int, nargs=3, default=CIFAR)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(f"{CORES} cores, torch {torch.__version__}, {args.repeats} rounds of each: median (least–most) seconds\n")
    numbers = ("comity, s", "of which training, s", "eager, s", "floor, s", "eager ÷ comity", "floor ÷ training")
    print(header("model", "images", "method", numbers=numbers))
    images = "×".join(map(str, args.shape))
    for model in args.models:
        for method in args.methods:
            taken = compare(model, method, args.repeats, tuple(args.shape))
            here, training, eager, floor = (taken[name] for name in ("here", "training", "eager", "floor"))
            ratios = f"{eager.median / here.median:.1f} × | {floor.median / training.median:.0%}"
            print(
                f"| {model} | {images} | {method} | {here} | {training.median:.3f} | {eager} | {floor} | {ratios} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
