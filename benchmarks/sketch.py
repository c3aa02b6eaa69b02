"""What sketches cost and what they lose: rules for thousands of clients, and runs beside the exact ones.

``scale`` makes the updates of one client after another, sketches them, lets rules find coefficients from the sketches
alone, and makes the updates a second time to add them up: no more than 64 are ever in memory. Seconds are of one
processor, and making the updates is not counted. ``runs`` trains on digits with and without sketches.

    python benchmarks/sketch.py scale --clients 1000 --numbers 1e6
    python benchmarks/sketch.py runs --seeds 5
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import torch

import comity
from comity._layout import Layout
from comity._memory import peak
from comity._threads import one_thread
from comity.metrics import OWN
from comity.rules import CALM, MGDA, ConFREE, LayerSketch, Rule, Sketch, SketchedUpdates

TILE = 64
GROUPS = 10
MOST_CHECKED = 2048
"""Clients of whom it is computed whether a step harms them."""


def tiles(clients: int, numbers: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Updates about 1 long: a part that all share, one of the client's group, which has an opposite, and its own."""
    shared = torch.randn(1 + GROUPS, numbers, generator=torch.Generator().manual_seed(0)) / numbers**0.5
    for start in range(0, clients, TILE):
        places = slice(start, min(start + TILE, clients))
        draw = torch.Generator().manual_seed(1 + start)
        own = torch.randn(places.stop - start, numbers, generator=draw).mul_(0.8 / numbers**0.5)
        for row, client in zip(own, range(start, places.stop), strict=True):
            side = 0.56 if client % 3 else -0.56
            row.add_(shared[0], alpha=0.15).add_(shared[1 + client % GROUPS], alpha=side)
        yield places, own


def scale(clients: int, numbers: int, k: int) -> None:
    layout, sketch, key = Layout([("update", (numbers,))]), Sketch(k), b"benchmark"
    sketches = torch.empty(clients, 1, k, dtype=torch.float64)
    print(f"{clients:,} clients × {numbers:,} numbers, k = {k}, error of a cosine {sketch.error():.3f}")
    started = time.process_time()
    drawn, spent = LayerSketch(k, 0, layout.layers[0], key), 0.0
    print(f"  everybody: drawing the map   {time.process_time() - started:8.1f} s, once", flush=True)
    for places, rows in tiles(clients, numbers):
        started = time.process_time()
        sketches[places, 0] = drawn.sketched(lambda some, columns, rows=rows: rows[some, columns], len(rows))
        spent += time.process_time() - started
    print(f"  clients: sketches            {spent:8.1f} s in all, {1e3 * spent / clients:.2f} ms each", flush=True)
    steps = {}
    rules: list[Rule] = [ConFREE(), CALM(eps=1.0, scope="model", scale="layer"), MGDA(normalise=True, length="mean")]
    for rule in rules:
        updates = SketchedUpdates(sketches, sketch, layout)
        started = time.process_time()
        found = rule.coefficients(updates)
        seconds = time.process_time() - started
        steps[rule] = found.coefficients[0].float()
        support = int((found.coefficients > 1e-12).sum())
        certificate = f"{found.certificate} {found.residual:.0e} (target {rule.target:.0e})"
        print(f"  server: {type(rule).__name__:<8} coefficients {seconds:9.1f} s, {certificate}, {support:,} count")
        print(f"{'':42}peak {peak() / 1e9:.1f} GB", flush=True)
    del updates, found
    X, step, spent = torch.stack(list(steps.values())), torch.zeros(len(steps), numbers), 0.0
    for places, rows in tiles(clients, numbers):
        started = time.process_time()
        step += X[:, places] @ rows
        spent += time.process_time() - started
    print(f"  server: weighted sum         {spent / len(steps):8.1f} s a rule", flush=True)
    looked = min(clients, MOST_CHECKED)
    squares, gains = torch.zeros(looked), torch.zeros(len(steps), looked)
    for places, rows in tiles(looked, numbers):
        gains[:, places], squares[places] = step @ rows.T, (rows * rows).sum(1)
    for rule, gain, length in zip(steps, gains, step.norm(dim=1), strict=True):
        worst = float((gain / length / squares.sqrt()).min())
        harmed = f"{int((gain < 0).sum())} of {looked:,} looked at are harmed"
        print(f"  {type(rule).__name__:<8} exact: worst cosine {worst:+.3f}, {harmed}", flush=True)
    print(f"  peak memory {peak() / 1e9:.1f} GB, the rows that the benchmark makes included")


def runs(seeds: int, k: int, rounds: int) -> None:
    for rule in ("ConFREE", "CALM"):
        accuracy: dict[int | None, list[float]] = {None: [], k: []}
        against: dict[int | None, list[float]] = {None: [], k: []}
        for seed in range(seeds):
            for size in accuracy:
                config = {"rule": rule, "sketch": size, "seed": seed, "rounds": rounds, "model": "mlp"}
                result = comity.run(**config, reference="none", workers=2, eval_every=rounds).result
                accuracy[size].append(100 * result.last.metrics[OWN.key].mean)
                against[size].append(100 * (result.rule_against or 0.0))
        apart = [b - a for a, b in zip(*accuracy.values(), strict=True)]
        exact, sketched = (
            f"{statistics.mean(accuracy[size]):.2f} ± {statistics.stdev(accuracy[size]):.2f} % "
            f"(steps against {statistics.mean(against[size]):.2f} % of clients)"
            for size in accuracy
        )
        print(f"{rule}, {rounds} rounds, {seeds} seeds: exact {exact}; k = {k} {sketched};")
        print(f"  apart by {statistics.mean(apart):+.2f} ± {statistics.stdev(apart):.2f} points", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("scale", "runs"))
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--numbers", type=float, default=1e6)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--k", type=int, default=1024)
    given = parser.parse_args()
    with one_thread():
        if given.what == "scale":
            scale(given.clients, int(given.numbers), given.k)
        else:
            runs(given.seeds, given.k, given.rounds)


if __name__ == "__main__":
    main()
