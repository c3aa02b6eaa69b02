"""What the way over Flower's grid costs against threads: the same run of 100 clients by both, round by round.

    python benchmarks/flower.py [--clients 100] [--rounds 5] [--repeats 3]

The grid is in this process (Flower's messages and records, no network, no processes), so what is measured is ours and
Flower's own work on messages; a deployed node adds a process for every message. One worker each, runs taken in turn.
CPU time of this process is what is compared: it does not depend on what else the machine does.
"""

import argparse
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from comity import Config
from comity.engine import Link, Links, Site, run, threads
from comity.flower import GridLink, client_app

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from in_process import InProcessGrid


def grid(wire: bool) -> Callable[[Config], Links]:
    def links(config: Config) -> Links:
        there = InProcessGrid(client_app(config), config.clients, wire=wire)

        def link(config: Config, _: Site) -> Link:
            return GridLink(there, config.clients, config.key)

        return link

    return links


WAYS: dict[str, Callable[[Config], Links]] = {
    "threads": lambda _: threads,
    "grid, records handed over": grid(wire=False),
    "grid, messages serialised": grid(wire=True),
}


def measured(config: Config, links: Links) -> tuple[list[float], torch.Tensor]:
    """CPU seconds of each round but the first, which also builds what is built once; the final vector."""
    marks: list[float] = []

    def stop() -> bool:
        marks.append(time.process_time())
        return False

    done = run(config, link=links, stop=stop)
    return [after - before for before, after in pairwise(marks[1:])], done.server.theta


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)

    print(f"{os.cpu_count()} cores, torch {torch.__version__}, {options.clients} clients, {options.repeats} repeats\n")
    for model, kind in (({"name": "mlp", "widths": (64,)}, "MLP"), ({"name": "cnn"}, "CNN")):
        config = Config(
            data="digits",
            partition="iid",
            model=model,
            method="FedRep",
            rule="ConFREE",
            clients=options.clients,
            rounds=options.rounds + 1,
            eval_every=options.rounds + 1,
            reference="none",
            workers=1,
        )
        times: dict[str, list[float]] = {name: [] for name in WAYS}
        vectors = []
        for _ in range(options.repeats):
            for name, links in WAYS.items():
                seconds, theta = measured(config, links(config))
                times[name] += seconds
                vectors.append(theta)
        assert all(torch.equal(vectors[0], other) for other in vectors), "not the same bits"
        base = statistics.median(times["threads"])
        print(
            f"{kind}, {vectors[0].numel():,} shared numbers; a round of {options.clients} fits, the same bits each way"
        )
        for name, seconds in times.items():
            median = statistics.median(seconds)
            more = (median - base) / options.clients * 1e3
            spread = f"{min(seconds):.3f}–{max(seconds):.3f}"
            print(f"  {name:28} {median:.3f} s ({spread}), {median / base:.2f}×, {more:+.2f} ms a client")
        print()


if __name__ == "__main__":
    main()
