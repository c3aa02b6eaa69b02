"""When classes are so imbalanced that accuracy says little."""

from collections.abc import Sequence

from comity._words import counted

MOST = 0.6
"""The largest share of one class that still counts as balanced."""
EQUAL_SHARES = 1.5
"""Maximum share of a class, as a multiple of an equal share."""
LEAST = 20
"""Minimum samples for judging a client's classes: with fewer, one class exceeds 60 % by chance."""


def imbalance(counts: Sequence[Sequence[int]]) -> str:
    """How classes are imbalanced in ``counts``, as a clause: "one class has over 60 % of all samples"; empty if not.

    ``counts`` has one row of samples per class for each client, or one row in total. Clients made by a partition differ
    in their classes on purpose: use one row for the whole data set.
    """
    totals = [total for total in map(sum, zip(*counts, strict=True)) if total]
    if len(totals) < 2:
        return ""
    share = max(totals) / sum(totals)
    if share > MOST:
        return f"one class has over {100 * MOST:.0f} % of all samples"
    if share > EQUAL_SHARES / len(totals):
        return f"one of {len(totals)} classes has over {EQUAL_SHARES} times an equal share of all samples"
    sizable = [row for row in counts if sum(row) >= LEAST]
    one_sided = sum(max(row) > MOST * sum(row) for row in sizable)
    if not 0 < len(sizable) <= 2 * one_sided:
        return ""
    who = counted(len(sizable), "client") + f" with at least {LEAST} samples" * (len(sizable) < len(counts))
    return f"in {one_sided} of {who}, one class has over {100 * MOST:.0f} % of the samples"
