"""Which clients mask together, and how many may drop out or collude."""

import hashlib
import math
from collections.abc import Collection

COLLUDING = LOST = 0.1
"""Assumed shares of a cohort that collude with the server, and that drop out."""
PRIVACY, AVAILABILITY = 40, 20
"""Failure probabilities: below 2⁻⁴⁰ for a client's masks, below 2⁻²⁰ for unmasking a round."""


def threshold(holders: int) -> int:
    """Number of holders of a client's shares that must agree to open one: two thirds.

    It is more than half, so that a server cannot get both secrets of a client by claiming to one half of its holders
    that the client dropped out and to the other half that it did not.
    """
    return -(-2 * holders // 3)


def degree(clients: int) -> int:
    """Number of other clients that each client masks with: all in a small cohort, O(log N) in a large one.

    Chernoff's bound, which also holds for draws without replacement (Hoeffding, 1963), over all clients: fewer than two
    thirds of the holders collude, at most a third drop out, and the remaining ones are connected on the circle.
    """
    collude = (PRIVACY * math.log(2) + math.log(clients)) / _divergence(2 / 3, COLLUDING)
    missing = (AVAILABILITY * math.log(2) + math.log(clients)) / _divergence(1 / 3, LOST)
    apart = 2 * (PRIVACY * math.log(2) + math.log(clients)) / -math.log(COLLUDING + LOST)
    wanted = 2 * math.ceil(max(collude, missing, apart) / 2)
    return min(wanted, clients - 1)


def _divergence(a: float, b: float) -> float:
    """Kullback-Leibler divergence of two Bernoulli distributions."""
    return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))


def members_of(clients: Collection[int], seed: bytes) -> dict[int, list[int]]:
    """Each client's neighbours, in order: the closest ones on a circle shuffled by ``seed`` (Harary graph)."""
    circle = sorted(clients, key=lambda cid: hashlib.sha256(seed + cid.to_bytes(8, "big")).digest())
    count, each = len(circle), degree(len(circle))
    if each >= count - 1:
        return {cid: sorted(set(circle) - {cid}) for cid in circle}
    reach = range(1, each // 2 + 1)
    return {
        cid: sorted({circle[(place + sign * step) % count] for step in reach for sign in (1, -1)})
        for place, cid in enumerate(circle)
    }
