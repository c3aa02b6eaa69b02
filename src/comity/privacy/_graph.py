"""Who masks with whom, and how many of them can be lost or false."""

import hashlib
import math
from collections.abc import Collection

COLLUDING = LOST = 0.1
"""Shares of a cohort that may collude with the server, and that may be lost, in what follows."""
PRIVACY, AVAILABILITY = 40, 20
"""The chance that a client's masks fail it is below 2⁻⁴⁰, that a round cannot be unmasked below 2⁻²⁰."""


def threshold(holders: int) -> int:
    """How many holders of a client's shares must agree to open one: two thirds.

    It is more than half, so that no server gets both secrets of a client by telling one half of its holders that the
    client dropped out and the other half that it was not.
    """
    return -(-2 * holders // 3)


def degree(clients: int) -> int:
    """How many others each client masks with: all of a small cohort, and of a large one O(log N) (Bell et al., 2020).

    Chernoff's bound, which also holds for draws without replacement (Hoeffding, 1963), over all clients: fewer than two
    thirds of the holders collude, no more than a third is lost, and those who are neither hang together on the circle.
    """
    collude = (PRIVACY * math.log(2) + math.log(clients)) / _divergence(2 / 3, COLLUDING)
    missing = (AVAILABILITY * math.log(2) + math.log(clients)) / _divergence(1 / 3, LOST)
    apart = 2 * (PRIVACY * math.log(2) + math.log(clients)) / -math.log(COLLUDING + LOST)
    wanted = 2 * math.ceil(max(collude, missing, apart) / 2)
    return min(wanted, clients - 1)


def _divergence(a: float, b: float) -> float:
    """Kullback and Leibler's, of two coins."""
    return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))


def members_of(clients: Collection[int], seed: bytes) -> dict[int, list[int]]:
    """Each client's neighbours, in order: those near it on a circle (Harary's graph) that ``seed`` has shuffled."""
    circle = sorted(clients, key=lambda cid: hashlib.sha256(seed + cid.to_bytes(8, "big")).digest())
    count, each = len(circle), degree(len(circle))
    if each >= count - 1:
        return {cid: sorted(set(circle) - {cid}) for cid in circle}
    reach = range(1, each // 2 + 1)
    return {
        cid: sorted({circle[(place + sign * step) % count] for step in reach for sign in (1, -1)})
        for place, cid in enumerate(circle)
    }
