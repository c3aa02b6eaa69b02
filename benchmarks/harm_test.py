"""Level, power and coverage of the test for harm by simulation: the tables of docs/explanation/harm.md.

Each test sample has a difficulty that all models share, a part that is specific to the local or the joined model and
stays the same in each run, and a part that is new in each run; training luck moves all samples of a run. A model
predicts the sample correctly if the sum is positive. ``agree`` is the share of the models' own variance that stays the
same in each run, ``differ`` the share of the total variance that is the models' own.

    python benchmarks/harm_test.py --scale 0.05               # a look: two minutes
    python benchmarks/harm_test.py --out evidence/harm.csv && make results
"""

import argparse
import csv
import math
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri

from comity.compare.evidence import Evidence, estimate, luck, mean_estimate, states

Array = NDArray[np.float64]
MARGIN = 0.02


@dataclass(frozen=True)
class Federation:
    """What is simulated. Accuracies are drawn per client between 60 and 95 %."""

    clients: int = 20
    tests: int = 60
    repetitions: int = 8
    luck: float = 0.02
    """Standard deviation of a model's accuracy between training seeds."""
    uneven: bool = False
    """Whether clients with a low accuracy have more luck (up to twice ``luck``) than those with a high one (half)."""
    agree: float = 0.5
    differ: float = 0.1
    loss: float = 0.0
    """Accuracy that the first client loses by joining."""
    folds: int = 1
    """With 3, a repetition is 3 runs, each of which tests a third of the samples."""
    score: Literal["hits", "weighted", "traded", "log-loss"] = "hits"
    """weighted: class-weighted hits with 15 % in the rare class. traded: the same, where joining loses 10 points in the
    rare class and gains 10 in the other, so that balanced accuracy stays the same."""
    shared: bool = False
    """Whether the joined model's luck is the same for all clients."""
    churn: float = 0.0
    """Above 0, "joined" is the local model after a little more training: changes are this share of a new training."""

    def simulate(self, random: np.random.Generator) -> tuple[Array, Array, NDArray[np.int64], float, Array]:
        """Differences joined − local and repeated − local (clients × tests × repetitions), folds, unit, true gains."""
        clients, tests, runs = shape = self.clients, self.tests, self.repetitions
        accuracy = random.uniform(0.6, 0.95, clients)
        aim = accuracy - self.loss * (np.arange(clients) == 0)
        density = np.exp(-(ndtri(accuracy) ** 2) / 2) / math.sqrt(2 * math.pi)
        spread = np.full(clients, self.luck / 0.19) if self.uneven else self.luck / density
        fold = random.integers(self.folds, size=shape)
        index = fold + self.folds * np.arange(runs)

        def shift(common: bool = False) -> Array:
            seeds = random.standard_normal((1 if common else clients, runs * self.folds)) * spread[:, None]
            return np.take_along_axis(seeds, index.reshape(clients, -1), axis=1).reshape(shape)

        def parts(share: float, last: int) -> Array:
            return random.standard_normal((clients, tests, last)) * math.sqrt(share)

        new, same, rare = self.differ * (1 - self.agree), self.differ * self.agree, np.zeros((clients, tests, 1))
        if self.score in ("weighted", "traded"):
            rare = (random.uniform(size=rare.shape) < 0.15).astype(float)
            rare[:, 0], rare[:, 1] = 1, 0  # no client without one of them
        common = parts(1 - self.differ, 1)
        stays = common + parts(same, 1)
        local, repeated = (ndtri(accuracy)[:, None, None] + stays + parts(new, runs) + shift() for _ in "lr")
        traded = 0.1 * (1 - 2 * rare) * (accuracy[:, None, None] < 0.89) if self.score == "traded" else 0.0
        goal = ndtri(np.clip(aim[:, None, None] + traded, 0.01, 0.99))
        joined = goal + common + parts(same, 1) + parts(new, runs) + shift(self.shared)
        if self.churn:
            joined = local + self.churn * (parts(self.differ, runs) + shift())
        if self.score == "log-loss":
            score = [-np.logaddexp(0, -2 * each) for each in (joined, local, repeated)]
            return score[0] - score[1], score[2] - score[1], fold, 0.0, np.zeros(clients)
        weight = np.ones_like(rare)
        if self.score != "hits":
            few = rare.sum(1, keepdims=True)
            weight = tests / 2 * (rare / few + (1 - rare) / (tests - few))
        hits = [weight * (each > 0) for each in (joined, local, repeated)]
        return hits[0] - hits[1], hits[2] - hits[1], fold, float(weight.max()), aim - accuracy

    def evidence(self, d: Array, fold: NDArray[np.int64], unit: float) -> list[Evidence]:
        """What ``Evidence.of`` makes of each client's differences, for all clients at once."""
        _, _, runs = d.shape
        s = d.sum(2)
        e = (d - s[:, :, None] / runs) * math.sqrt(runs / max(runs - 1, 1))
        rows = np.stack([np.ones_like(d), d, d * d, np.abs(d), e, e * e])
        sums = np.stack([np.where(fold == each, rows, 0).sum(2) for each in range(self.folds)], axis=-1)
        sums = sums.reshape(6, len(d), -1)  # run = repetition · folds + fold
        size, ids = np.abs(s), np.arange(sums.shape[2])
        table = np.stack([(s * s).sum(1), s.sum(1) * runs, np.full(len(d), self.tests * runs**2), size.sum(1)])
        table = np.concatenate([table, (s**4).sum(1)[None]]).T.tolist()
        step = np.where(size > 0, size, np.inf).min(1).tolist()
        return [Evidence(ids, sums[:, c], tuple(table[c]), step[c], unit, float(runs)) for c in range(len(d))]


@dataclass
class Counts:
    """What was found in simulated federations."""

    wrong: int = 0
    """Federations in which a client that is not harmed is named."""
    named: int = 0
    """Federations in which the harmed client is named."""
    not_worse: int = 0
    """Federations in which the first client is called not worse."""
    covered: int = 0
    """Clients whose interval has the true gain in it."""
    below: int = 0
    """Clients whose true gain is below their interval: a loss that was excluded wrongly."""
    mean_covered: int = 0
    mean_width: float = 0.0
    detectable: list[float] = field(default_factory=list)


def examine(setting: Federation, federations: int, seed: int = 0) -> Counts:
    random, counts = np.random.default_rng(seed), Counts()
    for _ in range(federations):
        joined, control, fold, unit, truth = setting.simulate(random)
        evidences = setting.evidence(joined, fold, unit)
        tau2 = luck(setting.evidence(control, fold, unit), evidences)
        estimates = {c: estimate(each, tau2, setting.clients) for c, each in enumerate(evidences)}
        state = states(estimates, MARGIN)
        mean = mean_estimate(evidences, tau2)
        worse = {c for c, each in state.items() if each == "worse"}
        harmed = {0} if setting.loss else set()
        counts.wrong += bool(worse - harmed)
        counts.named += 0 in worse
        counts.not_worse += state[0] == "not worse"
        counts.covered += sum(estimates[c].low <= truth[c] <= estimates[c].high for c in estimates)
        counts.below += sum(truth[c] < estimates[c].low for c in estimates)
        counts.mean_covered += mean.low <= truth.mean() <= mean.high
        counts.mean_width += (mean.high - mean.low) / federations
        counts.detectable.append(estimates[0].detectable)
    return counts


def upper(count: int, of: int) -> float:
    """Upper 95 % limit of a share (Clopper and Pearson, one-sided)."""
    return 1.0 if count == of else float(betaincinv(count + 1, of - count, 0.95))


TESTS, REPETITIONS, CLIENTS, LUCK = (10, 30, 60, 100, 300), (1, 2, 3, 5, 8), (4, 20, 100), (0.0, 0.05)
FEDERATIONS = {4: 2000, 20: 1000, 80: 250, 100: 250}
"""Simulated per setting, by the number of clients."""
HARSH = Federation(clients=4, luck=0.05)
SMALL = [(10, 1), (30, 1), (300, 1), (30, 3), (60, 8), (300, 8)]
"""Tests and repetitions of the variants."""


def settings() -> Iterator[tuple[str, Federation]]:
    """Each table's settings, by the table's name."""
    for clients in CLIENTS:
        for tests in TESTS:
            for repetitions in REPETITIONS:
                for luck_ in LUCK:
                    yield "level", Federation(clients, tests, repetitions, luck_)
    for tests, repetitions in SMALL:
        each = replace(HARSH, tests=tests, repetitions=repetitions)
        yield "balanced", replace(each, score="weighted")
        yield "balanced, classes traded", replace(each, score="traded")
        yield "log-loss", replace(each, score="log-loss")
        yield "three folds", replace(each, folds=3)
        yield "luck shared by clients", replace(each, clients=20, shared=True)
        yield "models that differ more", replace(each, differ=0.3)
        yield "more luck for some clients", replace(each, clients=20, luck=0.025, uneven=True)
        yield "local model a few rounds later", replace(each, clients=80, churn=0.1)
        yield "true loss of 2 points", replace(each, luck=0.0, loss=MARGIN)
        yield "true loss of 2 points, few differences", replace(each, luck=0.0, loss=MARGIN, differ=0.02, agree=1.0)
    for repetitions in REPETITIONS:
        for agree in (0.0, 0.2, 0.5, 0.8):
            yield "power by agreement", Federation(repetitions=repetitions, agree=agree, loss=0.1)
        for tests in TESTS:
            for loss in (0.1, 0.3):
                yield "power", Federation(tests=tests, repetitions=repetitions, loss=loss)


RESULTS = ("federations", "wrong", "upper", "named", "not worse", "coverage", "too high", "mean", "width", "detectable")


def row(table: str, setting: Federation, federations: int) -> dict[str, Any]:
    found = examine(setting, federations)
    clients = federations * setting.clients
    shares = (found.wrong, found.named, found.not_worse, found.mean_covered)
    wrong, named, not_worse, mean = (each / federations for each in shares)
    values = (federations, wrong, upper(found.wrong, federations), named, not_worse, found.covered / clients)
    values += (found.below / clients, mean, found.mean_width, float(np.median(found.detectable)))
    return {"table": table, **asdict(setting), **{n: round(v, 4) for n, v in zip(RESULTS, values, strict=True)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of simulated federations")
    parser.add_argument("--only", nargs="*", help="tables (default: all)")
    parser.add_argument("--out", type=Path, help="CSV file (default: the terminal)")
    options = parser.parse_args()
    with options.out.open("w", newline="") if options.out else nullcontext(sys.stdout) as file:
        names = [f.name for f in fields(Federation)]
        writer = csv.DictWriter(file, ["table", *names, *RESULTS], lineterminator="\n")
        writer.writeheader()
        for table, setting in settings():
            if not options.only or table in options.only:
                writer.writerow(row(table, setting, int(options.scale * FEDERATIONS[setting.clients])))
                file.flush()


if __name__ == "__main__":
    main()
