"""When classes are so uneven that accuracy says little."""

from collections.abc import Sequence

MOST = 0.6
"""The largest share of one class that is still even."""
EQUAL_SHARES = 1.5
"""How many times an equal share a class may have."""
LEAST = 20
"""Samples of a client that are enough to judge its classes by: of fewer, luck gives one class over 60 %."""
RULE = (
    f"one class holds over {100 * MOST:.0f} % of the samples, or of those of half of the natural clients, or over "
    f"{EQUAL_SHARES} times an equal share"
)
"""In words, after “classes are uneven where”; clients with fewer than LEAST samples are not counted."""


def are_uneven(counts: Sequence[Sequence[int]]) -> bool:
    """Whether ``RULE`` holds for ``counts``, a row of samples per class for each client, or one row for all of them.

    Clients that a partition made differ in their classes on purpose: they are judged by the row of the whole data set.
    """
    totals = [total for total in map(sum, zip(*counts, strict=True)) if total]
    if len(totals) < 2:
        return False
    if max(totals) > min(MOST, EQUAL_SHARES / len(totals)) * sum(totals):
        return True
    sizable = [row for row in counts if sum(row) >= LEAST]
    one_sided = sum(max(row) > MOST * sum(row) for row in sizable)
    return 0 < len(sizable) <= 2 * one_sided
