"""How a round grows with the number of clients, in time and memory.

    python benchmarks/growth.py [--clients 20 100 500 2000] [--model mlp] [--store memory] [--samples 50]
    python benchmarks/growth.py --model resnet18 --clients 500 --samples 2 --store disk --rounds 0
    python benchmarks/growth.py --long digits clients tenth
    python benchmarks/growth.py --rules Mean ConFREE CALM ConFREE+1024 CALM+1024 --clients 1000 --rounds 3

Each client has the same work: ``--samples`` Fashion-MNIST-shaped samples in batches of 10, one epoch, FedAvg. Every
size runs in a process of its own, ``--rounds`` after one that does not count (unless it is the only one). Memory is
what the process has for itself (RssAnon, looked at every 10 ms), above what it had before the run; files that are
mapped are not in it, since the system takes them back when it needs the room.

``--long`` looks for what grows over the rounds of whole runs, with their folders: the second tenth of the rounds beside
the last one. ``digits`` are 20 clients for 2,000 rounds; ``clients`` are 10,000 of an `mlp` on 8×8 images, ``tenth``
the same of which a tenth takes part in a round.

``--rules`` compares rules with Mean, exact or with a sketch of so many numbers, in runs of an `mlp` on 8×8 images with
their folders: processor time and memory of each round after the first, and the last of these over the first.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from comity import Config
from comity.engine import Callback, Run, RunPlan, run
from comity.results import RoundRecord
from round import BATCH, federation, header

_MANY = {"data": {"name": "synthetic", "samples": 20, "size": 8}, "clients": 10_000, "rounds": 20}
LONG = {
    "digits": {"data": "digits", "clients": 20, "rounds": 2_000},
    "clients": _MANY,
    "tenth": _MANY | {"participation": 0.1},
}


def memory() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


def measure(clients: int, model: str, store: str, samples: int, rounds: int) -> dict[str, float]:
    torch.set_num_threads(1)
    data = federation(clients, samples, (1, 28, 28), tests=2)
    before = most = memory()
    done = False

    def watch() -> None:
        nonlocal most
        while not done:
            most = max(most, memory())
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    config = Config(clients=clients, model=model, store=store, batch_size=BATCH, reference="none")
    _, server = RunPlan(config, data).build()
    fit, spent = server.fit, list[float]()

    def timed(*asked: Any) -> Any:
        started = time.process_time()
        replies = fit(*asked)
        spent.append(time.process_time() - started)
        return replies

    server.fit = timed
    taken = [server.step().seconds for _ in range(rounds + 1)]
    taken = taken[1:] or taken
    done = True
    steps = clients * -(-samples // BATCH)
    return {
        "train": min(seconds.train for seconds in taken) / steps * 1e3,
        "aggregate": min(seconds.aggregate for seconds in taken) / steps * 1e3,
        "processor": min(spent[1:] or spent) / steps * 1e3,
        "memory": most - before,
        "row": server.theta.numel() * 4,
    }


class Watch(Callback):
    """Seconds and memory of each round without its evaluation, and the bytes of the run's folder after it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, list[tuple[float, int, int]]()

    def on_round(self, run: Run, record: RoundRecord) -> None:
        files = sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        self.seen.append((record.seconds.train + record.seconds.aggregate, memory(), files))


def long(name: str) -> list[dict[str, float]]:
    """Of the second and the last tenth of the rounds: seconds a round, memory, and bytes a round in files."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder) / "run")
        run(
            Config(model="mlp", reference="none", general_every="never", eval_every=2, out=watch.folder, **LONG[name]),
            callbacks=[watch],
        )
    tenth = len(watch.seen) // 10
    found = []
    for part in (watch.seen[tenth - 1 : 2 * tenth], watch.seen[-tenth - 1 :]):
        seconds, held, files = zip(*part, strict=True)
        written = (files[-1] - files[0]) / tenth
        found.append({"seconds": statistics.median(seconds[1:]), "memory": max(held), "written": written})
    return found


class Spent(Callback):
    """Processor time, seconds and the most memory of each round with its records and files."""

    def __init__(self) -> None:
        self.seen, self.most, self._since = list[tuple[float, float, int]](), 0, time.process_time()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, memory())
            time.sleep(0.02)

    def on_round(self, run: Run, record: RoundRecord) -> None:
        spent = time.process_time() - self._since
        self.seen.append((spent, record.seconds.train + record.seconds.aggregate, self.most))
        self.most, self._since = 0, time.process_time()


def ruled(rule: str, clients: int, rounds: int) -> list[tuple[float, float, int]]:
    """What ``rounds`` after the first take: processor time, seconds, memory; stopped there, before an evaluation."""
    name, _, sketch = rule.partition("+")
    spent, last = Spent(), 100 * (rounds + 1)
    options = _MANY | {"clients": clients, "rounds": last, "model": "mlp", "rule": name}
    with tempfile.TemporaryDirectory() as folder:
        run(
            Config(
                **options,
                out=Path(folder) / "run",
                sketch=int(sketch) if sketch else None,
                reference="none",
                eval_every=last,
                checkpoint_every=last,
            ),
            callbacks=[spent],
            stop=lambda: len(spent.seen) >= rounds,  # asked before the callbacks of a round
        )
    return spent.seen[1:]


def grown(clients: int, model: str, store: str, samples: int, rounds: int = 2) -> dict[str, float]:
    """``measure`` in a process of its own."""
    result: dict[str, float] = apart("measure", clients, model, store, samples, rounds)
    return result


def apart(work: str, *arguments: Any) -> Any:
    """``measure`` or ``ruled`` in a process of its own."""
    command = [sys.executable, __file__, "--measure", json.dumps([work, *arguments])]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def compare_rules(rules: list[str], sizes: list[int], rounds: int) -> None:
    """A row per size and rule; the ratio is that of the medians of the processor time, to the first rule."""
    numbers = ("processor, s per round", "wall, s per round", "memory", "÷ first", "last ÷ first round")
    print(header("clients", "rule", "products", numbers=numbers))
    for clients in sizes:
        first = 0.0
        for rule in rules:
            spent, taken, held = zip(*apart("ruled", rule, clients, rounds), strict=True)
            usual, (name, sketch, _) = statistics.median(spent), rule.partition("+")
            products = "–" if name == "Mean" else "sketched" if sketch else "exact"
            first = first or usual
            print(
                f"| {clients:,} | {name} | {products} | {usual:.2f} ({min(spent):.2f}–{max(spent):.2f}) | "
                f"{statistics.median(taken):.1f} | {max(held) / 1e6:,.0f} MB | {usual / first:.2f} | "
                f"{spent[-1] / spent[0]:.2f} time, {held[-1] / held[0]:.3f} memory |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100, 500, 2000])
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--store", default="memory")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--long", nargs="+", choices=LONG)
    parser.add_argument("--rules", nargs="+", metavar="RULE[+SKETCH]")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.long or ():
        for when, m in zip(("second", "last"), long(name), strict=True):
            values = f"{m['seconds']:.3f} s a round, {m['memory'] / 1e6:,.0f} MB, {m['written'] / 1e3:,.1f} kB"
            print(f"{name}, {when} tenth of the rounds: {values} a round in files", flush=True)
    if args.long:
        return
    if args.rules:
        compare_rules(args.rules, args.clients, args.rounds)
        return
    if args.measure:
        work, *arguments = json.loads(args.measure)
        print(json.dumps({"measure": measure, "ruled": ruled}[work](*arguments)))
        return
    steps = "ms per client and step"
    print(header("clients", numbers=(f"training, {steps}", f"aggregation, {steps}", "memory", "rows of all clients")))
    for clients in args.clients:
        m = grown(clients, args.model, args.store, args.samples, args.rounds)
        rows = clients * m["row"]
        print(
            f"| {clients:,} | {m['train']:.3f} | {m['aggregate']:.3f} | {m['memory'] / 1e6:,.0f} MB | "
            f"{rows / 1e6:,.0f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
