"""What travels where updates are masked."""

import math

from torch import Tensor

from comity.methods import Payload

UPDATES, AGAINST = 0, 1
"""The two masked sums of a round: of the weighted updates, and of the clients whose loss the step increases.

Before the first round: of the columns that each client knows, and of its numbers in them.
"""


class MaskedReply(Payload):
    """What a client says openly after it fitted, or where it is asked for numbers to add up: these stay with it."""

    keys: Tensor
    """The public half of its keys for this round, signed."""
    size: int
    train_loss: float = math.nan
    loss: float | None = None
    sketch: Tensor | None = None
    """Of its update, where the rule compares updates."""
    spent: float = 0.0
    """With noise z: the sum of 1/z² over the rounds of other runs that the same secrets were used for."""


class EveryonesKeys(Payload):
    ids: Tensor
    keys: Tensor


class SealedShares(Payload):
    """Of the sender's secrets, a row for each of its neighbours that only that one can open."""

    sealed: Tensor
    digests: Tensor
    """Of the shares, a row for each holder: its neighbours and itself."""


class Coefficients(Payload):
    """How much each client counts, the same for all, and what neighbours sealed for this one."""

    sealed: Tensor
    present: Tensor
    """Who masks together."""
    coefficients: Tensor
    """What each client counts for in the parameters."""
    shares: Tensor
    """What each client counts for in the buffers."""


class TakenStep(Payload):
    """The shared part after the step, the same for all."""

    present: Tensor
    theta: Tensor


class KnownColumns(Payload):
    """How many clients know each column of the numbers that are added up next, the same for all."""

    present: Tensor
    known: Tensor


class MaskedWords(Payload):
    words: Tensor


class Survivors(Payload):
    """Those whose masked words arrived."""

    total: int
    """Of which sum."""
    survivors: Tensor


class Agreement(Payload):
    """The sender's signature of all that it was sent about a sum."""

    signature: Tensor


class Signatures(Payload):
    """Who signed the same, for a client to see before it unmasks."""

    total: int
    ids: Tensor
    signatures: Tensor


class Revealed(Payload):
    """One share of each of the sender's neighbours and then of itself."""

    shares: Tensor
