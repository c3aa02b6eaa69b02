"""Sums for means and spreads: over sites exact, whatever their order."""

from fractions import Fraction
from itertools import permutations

import numpy as np

from comity.data import Column, Moments, Schema


def test_sums_over_sites_are_exact_in_any_order() -> None:
    """Those of a table without a least count are added up one by one and rounded each time, as they always were."""
    random = np.random.default_rng(0)
    clients = [Moments.of((random.normal(size=(7, 5)) * 10.0**k).astype(np.float32)) for k in (-3, 0, 3, 6)]
    true = [
        [float(sum(Fraction(value) for value in values)) for values in zip(*rows, strict=True)]
        for rows in zip(*(each.stacked.tolist() for each in clients), strict=True)
    ]
    agreed = Schema("sick", ("no", "yes"), {"age": Column("number")}, min_count=10)
    orders = list(permutations(clients))
    assert all(Moments.together(order, agreed).stacked.tolist() == true for order in orders)
    pooled = Schema("sick", ("no", "yes"), {"age": Column("number")})
    for schema in (None, pooled):
        one_by_one = [Moments.together(order, schema).stacked for order in orders]
        assert len({each.tobytes() for each in one_by_one}) > 1
        assert all(
            np.array_equal(each, ((a.stacked + b.stacked) + c.stacked) + d.stacked)
            for each, (a, b, c, d) in zip(one_by_one, orders, strict=True)
        )
