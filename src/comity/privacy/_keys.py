"""Keys of one round: created for it, signed by their client, agreed upon in pairs, and deleted afterwards.

Every key has one use and one label: X25519 agrees, Ed25519 signs, HKDF-SHA256 derives, ChaCha20-Poly1305 seals.
"""

import hashlib
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from comity._errors import ComityError
from comity.privacy._shamir import SHARE

KEY = 32
SUMS = 2
"""Masked sums per round, each with its own keys and seeds: revealing one for a sum must not open the other."""
PUBLIC = KEY * (1 + 2 * SUMS)
"""Public part of a client: the key for sealing, the keys for masks, and the digests of its seeds."""
SIGNATURE = 64
ANNOUNCEMENT = PUBLIC + SIGNATURE
"""Bytes of the public part with its signature."""
SECRETS = 2 * SUMS
"""Secrets that a client shares: its keys for masks, then its seeds."""
SEALED = SECRETS * SHARE + 16
"""Bytes of one holder's sealed shares."""
DIGEST = 16
"""Bytes of a share's digest, by which the server detects a false share."""


REASONS = {
    "turn": "asked out of turn, again, or for another round",
    "again": "this round of this run, or of this model, was answered before with these secrets; give another --seed",
    "form": "sent what does not fit the protocol",
    "update": "its update is too large to be masked",
    "sums": "its sums are beyond what can be masked",
    "keys": "shown other keys than its own under its name",
    "ids": "sent client ids that are repeated, out of order or of another type",
    "cohort": "asked to mask without itself, or with clients whose keys it was never shown",
    "unlisted": "asked to mask with a client whose keys are not signed by the list for this round and model",
    "few": "too few clients are left",
    "weights-form": "coefficients are not one finite float64 number per client",
    "weights-sign": "a coefficient is negative",
    "weights-size": "a coefficient is too large",
    "weights-share": "one client's coefficient stands out",
    "weights-terms": "too few clients count",
    "weights-noise": "with noise all coefficients must be equal",
    "weights-sums": "where numbers are added up all coefficients must be one",
    "known": "too few clients know a column that it knows: their sum would tell of single ones",
    "survivors": "survivors that cannot be: without itself, or others than it masked with",
    "agreement": "too few clients signed the same model, coefficients and survivors",
    "budget": "the site's own limit on epsilon is reached",
}
"""Reasons why a client rejects a question, by code. They contain no numbers, which could reveal data."""


class Rejected(ComityError):
    """A violation of the protocol: nothing more is sent to that party."""

    @classmethod
    def because(cls, code: str) -> "Rejected":
        """Create a client's rejection from the code of its reason."""
        return cls(f"{code}: {REASONS[code]}")


def hashed(*parts: bytes) -> bytes:
    """SHA-256 of parts with their lengths, so that different lists have different hashes."""
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def derive(secret: bytes, *label: bytes) -> bytes:
    """Derive 32 bytes for one use. Labels are joined with their lengths, so that different lists differ."""
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"comity", *label))
    return HKDF(SHA256(), KEY, salt=None, info=info).derive(secret)


def private_key(private: bytes) -> X25519PrivateKey:
    """The private key object of these bytes, for key agreement with many others."""
    return X25519PrivateKey.from_private_bytes(private)


def public(private: bytes) -> bytes:
    return private_key(private).public_key().public_bytes_raw()


def agreed(private: X25519PrivateKey, other: bytes, *label: bytes) -> bytes:
    """A secret that only the owners of the two keys can compute."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # a point of low order
        raise Rejected.because("form") from error
    return derive(secret, *label)


def digest(secret: bytes) -> bytes:
    """Commitment of a client to a random seed."""
    return hashlib.sha256(b"comity seed" + secret).digest()


def sign(identity: bytes, *statement: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(identity).sign(hashed(*statement))


@lru_cache(maxsize=100_000)
def is_signed(member: bytes, signature: bytes, *statement: bytes) -> bool:
    """Whether the member's key signed this; cached, because in a simulation every client checks every signature."""
    try:
        Ed25519PublicKey.from_public_bytes(member).verify(signature, hashed(*statement))
        return True
    except (InvalidSignature, ValueError):
        return False


def share_digest(transcript: bytes, owner: int, place: int, share: bytes) -> bytes:
    """Commitment to one share. Shares are random numbers of 521 bits, so that it reveals nothing about them."""
    return hashed(b"share", transcript, owner.to_bytes(8, "big"), place.to_bytes(8, "big"), share)[:DIGEST]


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypt; ``key`` must have one use, because the nonce is constant."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """Decrypt; ``None`` if it was not sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None
