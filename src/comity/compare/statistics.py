"""Statistics over seeds: spread, and mean differences with an interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Literal

from comity.results import ZERO

if TYPE_CHECKING:
    from comity.compare.evidence import Estimate

Direction = Literal["gain", "loss", "noise", "unknown"]

SIGNIFICANCE = 0.05  # significance level; intervals have confidence 1 − this


@dataclass(frozen=True)
class Spread:
    """A number for each of one or more seeds."""

    by_seed: Mapping[int, float]

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> "Spread | None":
        """The spread over seeds with a known number; ``None`` if there are none."""
        known = {seed: value for seed, value in by_seed.items() if not math.isnan(value)}
        return cls(known) if known else None

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds; None for one seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class Difference:
    """A mean difference and its 95 % interval, in display units."""

    mean: float
    low: float | None
    high: float | None  # None if unknown: one seed without scores of single tests
    p_value: float | None  # two-sided
    seeds: int

    @classmethod
    def of(cls, estimate: "Estimate", scale: float, seeds: int) -> "Difference":
        """Difference from scores of single tests: the interval accounts for overlapping test sets."""
        mean, low, high = (scale * number for number in (estimate.gain, estimate.low, estimate.high))
        return cls(mean, low, high, 2 * min(estimate.p, 1 - estimate.p), seeds)

    @classmethod
    def between(cls, numbers: Spread | None, base: Spread | None, scale: float = 1) -> "Difference | None":
        """Difference paired by seed, over common seeds; ``None`` if there are none."""
        if numbers is None or base is None:
            return None
        both = [seed for seed in numbers.by_seed if seed in base.by_seed]
        return cls.over_seeds(Spread.of({seed: scale * (numbers.by_seed[seed] - base.by_seed[seed]) for seed in both}))

    @classmethod
    def over_seeds(cls, differences: Spread | None) -> "Difference | None":
        """Difference by Student's t over seeds, if scores of single tests are not known."""
        if differences is None or differences.std is None:
            return None if differences is None else cls(differences.mean, None, None, None, 1)
        from scipy.special import stdtr, stdtrit  # scipy.stats has the same and takes a second to import

        mean, seeds = differences.mean, len(differences.by_seed)
        error = differences.std / math.sqrt(seeds)
        half = float(stdtrit(seeds - 1, 1 - SIGNIFICANCE / 2)) * error
        p = float(2 * stdtr(seeds - 1, -abs(mean) / error)) if error > ZERO else float(abs(mean) <= ZERO)
        return cls(mean, mean - half, mean + half, p, seeds)

    @property
    def direction(self) -> Direction:
        """``noise`` if the interval contains zero, so that the direction is uncertain."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.low <= ZERO and self.high >= -ZERO:
            return "noise"
        return "gain" if self.mean > 0 else "loss"


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which differences are significant, with a family-wise error of at most ``SIGNIFICANCE`` (Holm)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    real = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > SIGNIFICANCE / (len(p_values) - rank):
            break
        real[i] = True
    return real
