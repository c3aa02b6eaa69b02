"""Simulated clients with known risks: how many are more than the margin behind the local baseline under ``certified``.

``python benchmarks/certified_clients.py`` prints the table of docs/explanation/guard.md, in about 20 s of one core.
"""

from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from comity.guard import Certified, HeldOut, certificate, exact_test

Array = NDArray[np.float64]
CLASSES, SIZE, TESTS = 4, 10, 2000


class Model:
    """Nearest class means, estimated from samples."""

    def __init__(self, x: Array, y: NDArray[np.int64]) -> None:
        self.means = np.stack([(x[y == k].sum(0)) / ((y == k).sum() + 1) for k in range(CLASSES)])

    def __call__(self, x: Array) -> Array:
        logits = x @ self.means.T - (self.means**2).sum(1) / 2
        p = np.exp(logits - logits.max(1, keepdims=True))
        return np.asarray(p / p.sum(1, keepdims=True))


class Client:
    """One client, whose local loss falls with its samples, and a federated model of some quality."""

    def __init__(self, samples: int, random: np.random.Generator) -> None:
        common = 0.55 * random.normal(size=(CLASSES, SIZE))
        mine = common + random.choice([0, 0.1, 0.2, 0.4]) * random.normal(size=(CLASSES, SIZE))
        x, y = self.draw(mine, samples, random)
        others = self.draw(common, int(random.choice([100, 300, 1000])), random)
        held = round(0.4 * samples)
        train = x[held:], y[held:]
        self.experts = [Model(*train), Model(*map(np.concatenate, zip(others, train, strict=True)))]
        self.local = Model(x, y)
        self.tests = self.draw(mine, TESTS, random)
        self.held = HeldOut(
            np.stack([expert(x[:held]) for expert in self.experts]),
            y[:held],
            seen=1 - held / samples,
            train=lambda: (np.stack([expert(train[0]) for expert in self.experts]), train[1]),
        )

    @staticmethod
    def draw(means: Array, samples: int, random: np.random.Generator) -> tuple[Array, NDArray[np.int64]]:
        y = random.integers(0, CLASSES, samples)
        return means[y] + random.normal(size=(samples, SIZE)), y

    def error(self, probabilities: Array) -> float:
        return float((probabilities.argmax(1) != self.tests[1]).mean())

    def behind(self, weights: Array, fallback: Model) -> float:
        """The error of what the client uses with these weights, above that of the local baseline on all samples."""
        mixed = sum(weight * expert(self.tests[0]) for weight, expert in zip(weights, self.experts, strict=True))
        used = fallback(self.tests[0]) if weights[0] == 1 else np.asarray(mixed)
        return self.error(used) - self.error(self.local(self.tests[0]))


def simulate(samples: int, count: int, seed: int) -> dict[str, Array]:
    """For each client, how far it is behind the local baseline and whether it uses anything else.

    ``main``: it falls back on the model without the held-out samples; ``plain``: on the local baseline; ``built``: so,
    and the certificate allows for the benefit of the held-out samples.
    """
    certificate.exact_test = cache(exact_test)  # type: ignore[assignment]
    random, guard = np.random.default_rng(seed), Certified()
    found: dict[str, list[float]] = {key: [] for key in ("main", "plain", "built", "plain used", "built used")}
    try:
        for _ in range(count):
            client, order = Client(samples, random), int(random.integers(2**31))
            plain, built = (
                guard.choose(held, np.random.default_rng(order)).weights
                for held in (replace(client.held, seen=1.0), client.held)
            )
            found["main"].append(client.behind(plain, client.experts[0]))
            found["plain"].append(client.behind(plain, client.local))
            found["built"].append(client.behind(built, client.local))
            found["plain used"].append(float(plain[0] < 1))
            found["built used"].append(float(built[0] < 1))
    finally:
        certificate.exact_test = exact_test  # type: ignore[assignment]
    return {key: np.array(values) for key, values in found.items()}


if __name__ == "__main__":
    print("| samples per client | main | plain | built | used: plain, built |\n|---:|---:|---:|---:|---:|")
    for samples in (25, 50, 125):
        found = simulate(samples, 1920, 1000 + samples)
        behind = " | ".join(f"{100 * (found[key] > 0.02).mean():.1f} %" for key in ("main", "plain", "built"))
        used = ", ".join(f"{100 * found[f'{key} used'].mean():.1f} %" for key in ("plain", "built"))
        print(f"| {samples} | {behind} | {used} |")
