"""When classes are so imbalanced that accuracy says little."""

from collections.abc import Sequence

MOST = 0.6
"""The largest share of one class that still counts as balanced."""
EQUAL_SHARES = 1.5
"""Maximum share of a class, as a multiple of an equal share."""
LEAST = 20
"""Minimum samples for judging a client's classes: with fewer, one class exceeds 60 % by chance."""
RULE = (
    f"Classes are imbalanced: one class has over {100 * MOST:.0f} % of all samples, or over {EQUAL_SHARES} times an "
    f"equal share, or in half of the natural clients one class has over {100 * MOST:.0f} %"
)
"""When classes are uneven; clients with fewer than LEAST samples are not counted."""


def are_uneven(counts: Sequence[Sequence[int]]) -> bool:
    """Whether ``RULE`` holds for ``counts``: one row of samples per class for each client, or one row in total.

    Clients made by a partition differ in their classes on purpose: use one row for the whole data set.
    """
    totals = [total for total in map(sum, zip(*counts, strict=True)) if total]
    if len(totals) < 2:
        return False
    if max(totals) > min(MOST, EQUAL_SHARES / len(totals)) * sum(totals):
        return True
    sizable = [row for row in counts if sum(row) >= LEAST]
    one_sided = sum(max(row) > MOST * sum(row) for row in sizable)
    return 0 < len(sizable) <= 2 * one_sided
