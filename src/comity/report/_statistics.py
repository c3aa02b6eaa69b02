"""Differences that are paired by seed, and whether they are more than noise."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom: a study has few seeds, and scipy loads slowly
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788)


def quantile(freedom: int) -> float:
    """The factor of a two-sided 95 % interval."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    # Cornish and Fisher's expansion: with 13 degrees and more these terms are exact to four digits
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True)
class Spread:
    """A number over seeds: its mean and, from two seeds on, its standard deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        known = np.array([value for value in values if not math.isnan(value)])
        if not len(known):
            return cls(math.nan, None, 0)
        return cls(float(known.mean()), float(known.std(ddof=1)) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Difference:
    """The mean of differences paired by seed, with half the width of its 95 % interval where two seeds or more are."""

    mean: float
    half: float | None
    n: int

    @classmethod
    def of(cls, values: Mapping[int, float], base: Mapping[int, float]) -> "Difference | None":
        """Of two numbers by seed, over the seeds that both have; ``None`` without any."""
        both = [seed for seed in values if seed in base]
        spread = Spread.of(values[seed] - base[seed] for seed in both)
        if not spread.n:
            return None
        half = None if spread.std is None else quantile(spread.n - 1) * spread.std / math.sqrt(spread.n)
        return cls(spread.mean, half, spread.n)

    @property
    def verdict(self) -> Literal["gain", "loss", "noise", "one seed"]:
        if self.half is None:
            return "one seed"
        if abs(self.mean) <= self.half:
            return "noise"
        return "gain" if self.mean > 0 else "loss"
