"""Time and memory of every rule beside what no rule can do without: one Gram product and one combination.

All of one size in one run, in turns. Ratios are of processor time, which a busy machine distorts less than the clock;
1 is a rule that costs nothing but its Gram product and combination. A matrix above ``--memory`` GB is streamed from a
temporary file.

    python benchmarks/rules.py --quick
    python benchmarks/rules.py --clients 20 60 --numbers 1e6 1e7 --memory 1
"""

import argparse
import gc
import platform
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table

from comity._layout import Layout
from comity.rules import CALM, MGDA, ConFREE, FairDescent, FedFV, FedMGDAPlus, Mean, Projection, Rule, Updates

RULES: dict[str, Callable[[], Rule]] = {
    "Mean()": Mean,
    "Projection()": Projection,
    "Projection(order='sequential')": lambda: Projection(order="sequential"),
    "ConFREE()": ConFREE,
    "ConFREE(scope='layer')": lambda: ConFREE(scope="layer"),
    "CALM()": CALM,
    "CALM(scale='layer')": lambda: CALM(scale="layer"),
    "MGDA()": MGDA,
    "FedMGDAPlus()": FedMGDAPlus,
    "FedFV(tau=0)": lambda: FedFV(tau=0),
    "FedFV()": FedFV,
    "FairDescent()": FairDescent,
}


def layout(numbers: int) -> Layout:
    """Five weights and their biases, most of it in the fourth, as in a small CNN."""
    shares = {"conv1": 0.002, "conv2": 0.06, "conv3": 0.1, "fc1": 0.8}
    shapes = []
    for name, share in shares.items():
        shapes += [(f"{name}.weight", (int(share * numbers),)), (f"{name}.bias", (64,))]
    rest = numbers - sum(shape[0] for _, shape in shapes)
    return Layout([*shapes, ("fc2.weight", (rest - 10,)), ("fc2.bias", (10,))])


@contextmanager
def matrix(clients: int, numbers: int, memory: float) -> Iterator[tuple[torch.Tensor, bool]]:
    """Updates about 0.1 long with something in common, in memory or in a file; and whether it is a file."""
    streamed = clients * numbers * 4 > memory * 1e9
    common = torch.randn(numbers, generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory(prefix="comity-rules-") as folder:
        if streamed:
            path = str(Path(folder) / "updates")
            U = torch.from_file(path, shared=True, size=clients * numbers, dtype=torch.float32).view(clients, numbers)
        else:
            U = torch.empty(clients, numbers)
        for i in range(clients):
            row = torch.randn(numbers, generator=torch.Generator().manual_seed(i + 1)).add_(common, alpha=0.1)
            U[i] = row.mul_(0.1 / numbers**0.5)
        yield U, streamed
        del U


class Peak:
    """The most memory that was allocated inside; pages of a mapped file do not count."""

    def __enter__(self) -> "Peak":
        gc.collect()
        self.start, self.most, self.inside = self._now(), 0, True
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.inside = False
        self.thread.join()

    def _watch(self) -> None:
        while self.inside:
            self.most = max(self.most, self._now() - self.start)
            time.sleep(0.002)

    @staticmethod
    def _now() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0


def measure(U: torch.Tensor, repeats: int) -> dict[str, tuple[list[float], list[float], float]]:
    """By what was done: seconds of each repeat, by the clock and of the processor, and the peak in bytes."""
    where, losses = layout(U.shape[1]), torch.linspace(1, 2, len(U))
    uniform = torch.full((len(U),), 1 / len(U), dtype=torch.float64)
    known = Updates(U, layout=where)
    known.measure()  # so that a combination need not look for members that are not finite
    assert len(known) == len(U)
    work: dict[str, Callable[[], object]] = {
        "Gram product": lambda: Updates(U, layout=where).gram,
        "combination": lambda: known.combine(uniform),
        "plain mean (torch)": lambda: U.mean(0),
    }
    for name, make in RULES.items():
        work[name] = lambda make=make: make().apply(Updates(U, layout=where, losses=losses))
    clock: dict[str, list[float]] = {name: [] for name in work}
    processor: dict[str, list[float]] = {name: [] for name in work}
    peaks: dict[str, float] = {}
    for _ in range(repeats):
        for name, do in work.items():
            start = time.perf_counter(), time.process_time()
            do()
            clock[name].append(time.perf_counter() - start[0])
            processor[name].append(time.process_time() - start[1])
    for name, do in work.items():
        with Peak() as peak:
            do()
        peaks[name] = peak.most
    return {name: (clock[name], processor[name], peaks[name]) for name in work}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 60, 200, 1000])
    parser.add_argument("--numbers", type=lambda text: int(float(text)), nargs="+", default=[10**5, 10**6, 10**7])
    parser.add_argument("--memory", type=float, default=4.0, help="GB above which the matrix is streamed from disk")
    parser.add_argument("--disk", type=float, default=8.0, help="GB above which a size is left out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="20 clients, 1e5 and 1e6 numbers, 3 repeats")
    given = parser.parse_args()
    if given.quick:
        given.clients, given.numbers, given.repeats = [20], [10**5, 10**6], 3
    warnings.simplefilter("error")
    console = Console(width=120)
    console.print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    for numbers in given.numbers:
        for clients in given.clients:
            if clients * numbers * 4 > given.disk * 1e9:
                console.print(f"{clients} clients, {numbers:,} numbers: {clients * numbers * 4e-9:.0f} GB, left out")
                continue
            with matrix(clients, numbers, given.memory) as (U, streamed):
                measured = measure(U, given.repeats)
            floor = sum(median(measured[name][1]) for name in ("Gram product", "combination"))
            table = Table(
                "", "ms by the clock", "ms of processor", "min to max", "of Gram + combination", "peak MB",
                title=f"{clients} clients, {numbers:,} numbers{', from disk' if streamed else ''}, n = {given.repeats}",
            )  # fmt: skip
            for name, (clock, processor, peak) in measured.items():
                table.add_row(
                    name,
                    f"{1000 * median(clock):.1f}",
                    f"{1000 * median(processor):.1f}",
                    f"{1000 * min(processor):.1f} to {1000 * max(processor):.1f}",
                    f"{median(processor) / floor:.2f}",
                    f"{peak / 1e6:.0f}",
                )
            console.print(table)


if __name__ == "__main__":
    main()
