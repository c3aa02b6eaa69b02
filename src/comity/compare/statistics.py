"""Numbers over seeds: their spread, and differences that are paired by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

from comity.results import ZERO

Verdict = Literal["gain", "loss", "noise", "one seed"]

SURE = 0.05
"""An interval of 95 % leaves zero out where a p-value is below this."""
POWER, MOST_SEEDS = 0.8, 100


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

    @property
    def half(self) -> float | None:
        """Half the width of the mean's 95 % confidence interval (Student's t); one seed has none."""
        if self.std is None:
            return None
        from scipy.special import stdtrit  # scipy.stats has the same and takes a second to import

        seeds = len(self.by_seed)
        return float(stdtrit(seeds - 1, 0.975)) * self.std / math.sqrt(seeds)


@dataclass(frozen=True)
class Difference:
    """The mean of differences that are paired by seed, and half the width of its 95 % confidence interval."""

    mean: float
    half: float | None
    """``None`` from one seed."""
    seeds: int

    @classmethod
    def of(cls, differences: Spread | None) -> "Difference | None":
        if differences is None:
            return None
        return cls(differences.mean, differences.half, len(differences.by_seed))

    @classmethod
    def between(cls, numbers: Spread | None, base: Spread | None) -> "Difference | None":
        """Over the seeds that both have; ``None`` without any."""
        if numbers is None or base is None:
            return None
        both = [seed for seed in numbers.by_seed if seed in base.by_seed]
        return cls.of(Spread.of({seed: numbers.by_seed[seed] - base.by_seed[seed] for seed in both}))

    @property
    def low(self) -> float | None:
        return None if self.half is None else self.mean - self.half

    @property
    def high(self) -> float | None:
        return None if self.half is None else self.mean + self.half

    @property
    def verdict(self) -> Verdict:
        """``noise`` where the interval holds zero, so that nobody can say in which direction it goes."""
        if self.half is None:
            return "one seed"
        if abs(self.mean) <= max(self.half, ZERO):
            return "noise"
        return "gain" if self.mean > 0 else "loss"

    @property
    def p_value(self) -> float | None:
        """How often seeds that differ by luck alone would differ as much: the paired t-test; one seed has none."""
        if self.half is None or self.half <= ZERO:
            return None if self.half is None else float(abs(self.mean) <= ZERO)
        from scipy.special import stdtr, stdtrit

        t = abs(self.mean) / self.half * stdtrit(self.seeds - 1, 1 - SURE / 2)
        return float(2 * stdtr(self.seeds - 1, -t))

    def seeds_needed(self, comparisons: int = 1) -> int | None:
        """Seeds with which the paired t-test tells a difference of this size from none in 80 % of all cases.

        ``comparisons``: corrected for so many. ``None``: more than ``MOST_SEEDS``, or nobody knows.
        """
        if self.half is None or abs(self.mean) <= ZERO:
            return None
        if self.half <= ZERO:
            return 2
        from scipy.special import nctdtr, stdtrit

        effect = abs(self.mean) / self.half * stdtrit(self.seeds - 1, 1 - SURE / 2) / math.sqrt(self.seeds)
        for seeds in range(2, MOST_SEEDS + 1):
            t, shift = stdtrit(seeds - 1, 1 - SURE / comparisons / 2), effect * math.sqrt(seeds)
            if 1 - nctdtr(seeds - 1, shift, t) + nctdtr(seeds - 1, shift, -t) >= POWER:
                return seeds
        return None


def holm(p_values: Sequence[float]) -> list[bool]:
    """Which of several differences are real, with a chance of at most ``SURE`` that any is called so wrongly."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    real = [False] * len(p_values)
    for rank, i in enumerate(order):
        if p_values[i] > SURE / (len(p_values) - rank):
            break
        real[i] = True
    return real
