"""Which coefficients a client lends its update to."""

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9
LEAST = 0.1
"""A client counts where its weight is at least so much of what it would have in a uniform mean."""


def objection_to_weights(weights: NDArray[np.float64], most: float, least_clients: int) -> str | None:
    """Why a sum with these coefficients, one row or one for each layer, would say too much of one client.

    ``most`` is the largest share of a row's weight that a client may have, and ``least_clients`` how many must count.
    """
    if not np.isfinite(weights).all():
        return "a weight is no number"
    sizes = np.abs(weights)
    totals = sizes.sum(1, keepdims=True)
    moving = totals[:, 0] > 0
    shares = sizes[moving] / totals[moving]
    if not len(shares):
        return None
    if (largest := float(shares.max())) > most * (1 + ROUNDING):
        return f"a client has {largest:.3g} of a layer's weight; {most:g} is the most"
    counting = int((shares >= LEAST / shares.shape[1]).sum(1).min())
    if counting < least_clients:
        return f"{counting} clients count in a layer; {least_clients} are the fewest"
    return None
