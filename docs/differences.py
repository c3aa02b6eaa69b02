"""Differences over seeds: how they are written, which effects they would have found, and what divergence changes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median

from comity._words import number
from comity.compare import Difference, Spread


def interval(difference: Difference, real: bool | None = None) -> str:
    """``↑ 1.20 [0.40, 2.00]``, ``≈`` where it is not ``real``; without a mark where nobody asked."""
    ends = ", ".join(number(end) for end in (difference.low or 0.0, difference.high or 0.0))
    mark = "" if real is None else "≈ " if not real else "↑ " if difference.mean > 0 else "↓ "
    return f"{mark}{number(difference.mean)} [{ends}]"


def discovered(p_values: Sequence[float], share: float = 0.05) -> float:
    """The largest p-value that counts: of those that do, so many are expected to be wrong (Benjamini–Hochberg)."""
    ordered = sorted(p_values)
    return max((p for rank, p in enumerate(ordered, 1) if p <= share * rank / len(ordered)), default=0.0)


def detectable(difference: Difference, level: float, power: float = 0.8) -> float | None:
    """The smallest effect that a paired t-test at ``level`` finds with this power, given the spread over seeds."""
    from scipy.special import nctdtr, stdtrit

    if difference.high is None or difference.high <= difference.mean or isinstance(difference, Ranked):
        return None
    df = difference.seeds - 1
    error = (difference.high - difference.mean) / float(stdtrit(df, 0.975))
    bar = float(stdtrit(df, 1 - level / 2))
    low, high = 0.0, 20.0  # in standard errors; scipy's power is not exact far above
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if 1 - nctdtr(df, middle, bar) > power else (middle, high)
    return error * high


@dataclass(frozen=True)
class Ranked(Difference):
    """A difference by Wilcoxon's signed ranks: the middle of all means of two, with an exact interval.

    It takes the place of the t-test where a run diverged, whose one number would hide all others.
    """

    @classmethod
    def over_seeds(cls, differences: Spread | None) -> "Ranked | None":
        if differences is None:
            return None
        values = sorted(differences.by_seed.values())
        pairs = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
        signs = list(product((0, 1), repeat=len(values)))
        sums = sorted(sum(rank for rank, sign in enumerate(each, 1) if sign) for each in signs)
        by_size = sorted(values, key=abs)
        own = sum(rank for rank, value in enumerate(by_size, 1) if value > 0)
        tail = min(sum(each <= own for each in sums), sum(each >= own for each in sums)) / len(sums)
        out = next(each for each in sums if sum(other <= each for other in sums) / len(sums) > 0.025) - 1
        return cls(median(pairs), pairs[out], pairs[-1 - out], min(1.0, 2 * tail), len(values))


def of_half(mean: float, half: float, seeds: int) -> Difference:
    """A difference from half the width of its 95 % interval by Student's t over seeds."""
    from scipy.special import stdtr, stdtrit

    t = abs(mean) / half * stdtrit(seeds - 1, 0.975) if half else math.inf if mean else 0.0
    return Difference(mean, mean - half, mean + half, float(2 * stdtr(seeds - 1, -t)), seeds)
