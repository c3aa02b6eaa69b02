"""Messages of masked runs."""

import math

from torch import Tensor

from comity.methods import Payload

UPDATES, AGAINST = 0, 1
"""The two masked sums of a round: of the weighted updates, and of the clients whose loss the step increases.

Before the first round: of the columns that each client knows, and of its numbers in them.
"""


class MaskedReply(Payload):
    """A client's open reply after fitting, or to a question for numbers: the numbers themselves stay with it."""

    keys: Tensor
    """The signed public part of its keys for this round."""
    size: int
    train_loss: float = math.nan
    loss: float | None = None
    sketch: Tensor | None = None
    """Sketch of its update, if the rule compares updates."""
    spent: float = 0.0
    """With noise z: the sum of 1/z² over rounds of other runs with the same secrets."""


class EveryonesKeys(Payload):
    ids: Tensor
    keys: Tensor


class SealedShares(Payload):
    """Shares of the sender's secrets, one row per neighbour, which only that neighbour can open."""

    sealed: Tensor
    digests: Tensor
    """Digests of the shares, one row per holder: its neighbours and itself."""


class Coefficients(Payload):
    """Coefficients of all clients, equal for everyone, and the shares sealed for this client."""

    sealed: Tensor
    present: Tensor
    """Ids of the clients that mask together."""
    coefficients: Tensor
    """Coefficient of each client for the parameters."""
    shares: Tensor
    """Coefficient of each client for the buffers."""


class TakenStep(Payload):
    """The shared part after the step, equal for all clients."""

    present: Tensor
    theta: Tensor


class KnownColumns(Payload):
    """Number of clients that know each column of the numbers to be summed next, equal for all clients."""

    present: Tensor
    known: Tensor


class MaskedWords(Payload):
    words: Tensor


class Survivors(Payload):
    """Ids of the clients whose masked words arrived."""

    total: int
    """Which sum."""
    survivors: Tensor


class Agreement(Payload):
    """The sender's signature of everything that it was sent about a sum."""

    signature: Tensor


class Signatures(Payload):
    """Signatures of the same statement, for a client to check before it unmasks."""

    total: int
    ids: Tensor
    signatures: Tensor


class Revealed(Payload):
    """One share of each of the sender's neighbours, then of itself."""

    shares: Tensor
