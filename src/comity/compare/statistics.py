"""Numbers over seeds: their spread, and mean differences with an interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal

from comity.results import ZERO

if TYPE_CHECKING:
    from comity.compare.evidence import Estimate

Direction = Literal["gain", "loss", "noise", "unknown"]

SURE = 0.05  # an interval of 95 % leaves zero out where a p-value is below this


@dataclass(frozen=True)
class Spread:
    """A number over seeds, one seed at least."""

    by_seed: Mapping[int, float]

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> "Spread | None":
        """Over the seeds whose number is known; ``None`` without any."""
        known = {seed: value for seed, value in by_seed.items() if not math.isnan(value)}
        return cls(known) if known else None

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds; one seed has none."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class Difference:
    """A mean difference and its 95 % interval, in the unit that people see."""

    mean: float
    low: float | None
    high: float | None  # `None` where it is not known: of one seed without the scores of single tests
    p_value: float | None  # two-sided
    seeds: int

    @classmethod
    def of(cls, estimate: "Estimate", scale: float, seeds: int) -> "Difference":
        """From the scores of single tests: the interval accounts for test sets that overlap."""
        mean, low, high = (scale * number for number in (estimate.gain, estimate.low, estimate.high))
        return cls(mean, low, high, 2 * min(estimate.p, 1 - estimate.p), seeds)

    @classmethod
    def between(cls, numbers: Spread | None, base: Spread | None, scale: float = 1) -> "Difference | None":
        """Paired by seed, over the seeds that both have; ``None`` without any."""
        if numbers is None or base is None:
            return None
        both = [seed for seed in numbers.by_seed if seed in base.by_seed]
        return cls.over_seeds(Spread.of({seed: scale * (numbers.by_seed[seed] - base.by_seed[seed]) for seed in both}))

    @classmethod
    def over_seeds(cls, differences: Spread | None) -> "Difference | None":
        """By Student's t over seeds, where the scores of single tests are not known."""
        if differences is None or differences.std is None:
            return None if differences is None else cls(differences.mean, None, None, None, 1)
        from scipy.special import stdtr, stdtrit  # scipy.stats has the same and takes a second to import

        mean, seeds = differences.mean, len(differences.by_seed)
        error = differences.std / math.sqrt(seeds)
        half = float(stdtrit(seeds - 1, 1 - SURE / 2)) * error
        p = float(2 * stdtr(seeds - 1, -abs(mean) / error)) if error > ZERO else float(abs(mean) <= ZERO)
        return cls(mean, mean - half, mean + half, p, seeds)

    @property
    def direction(self) -> Direction:
        """``noise`` where the interval holds zero, so that nobody can say in which direction it goes."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.low <= ZERO and self.high >= -ZERO:
            return "noise"
        return "gain" if self.mean > 0 else "loss"


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several differences are real, with a chance of at most ``SURE`` that any is called so wrongly."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    real = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > SURE / (len(p_values) - rank):
            break
        real[i] = True
    return real
