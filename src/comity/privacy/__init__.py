"""Secure aggregation and differential privacy: masked sums whose terms stay hidden, signed keys, and epsilon.

This package handles bytes and arrays only; clients and the meaning of numbers are the engine's concern. The protocol is
that of Bonawitz et al. (CCS 2017) on the sparse graph of Bell et al. (CCS 2020); docs/explanation/privacy.md states its
guarantees.
"""

from comity._errors import ComityError, install

try:
    import cryptography  # noqa: F401
except ImportError as error:
    raise ComityError(f"masked sums need the package cryptography: {install('privacy')}") from error

from comity.privacy._accountant import epsilon, epsilon_of
from comity.privacy._collector import Collector
from comity.privacy._fixed_point import BOUND, FixedPoint
from comity.privacy._graph import degree, members_of, threshold
from comity.privacy._keys import ANNOUNCEMENT, REASONS, SEALED, Rejected, derive, hashed
from comity.privacy._ledger import Ledger
from comity.privacy._masks import gaussian, keystream
from comity.privacy._parties import Party, place_of
from comity.privacy._policy import Policy
from comity.privacy._secrets import Secrets, rehearsed, write_secrets
from comity.privacy._shamir import SHARE, join, split
from comity.privacy._weights import objection_to_weights, within_bounds

# fmt: off
__all__ = [
    # the two sides of a masked sum
    "Party", "Collector", "Rejected", "place_of", "hashed", "derive", "objection_to_weights", "within_bounds",
    "REASONS", "ANNOUNCEMENT", "SEALED", "SHARE",
    # numbers
    "FixedPoint", "BOUND", "gaussian", "keystream", "epsilon", "epsilon_of",
    # secret sharing
    "degree", "members_of", "threshold", "split", "join",
    # secrets of a client
    "Secrets", "Policy", "Ledger", "rehearsed", "write_secrets",
]
# fmt: on
