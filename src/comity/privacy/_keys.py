"""Keys of one round: made for it, signed by their client, agreed upon in pairs, and forgotten after it.

Every key has one use and one label: X25519 agrees, Ed25519 signs, HKDF-SHA256 derives, ChaCha20-Poly1305 seals.
"""

import hashlib

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
"""Masked sums of a round, each with keys and seeds of its own: revealing one for a sum must not open the other."""
PUBLIC = KEY * (1 + 2 * SUMS)
"""Of a client: the key for sealing, the keys for masks, and the digests of its seeds."""
ANNOUNCEMENT = PUBLIC + 64
"""Bytes of the public part and its signature."""
SECRETS = 2 * SUMS
"""What a client shares out: its keys for masks, then its seeds."""
SEALED = SECRETS * SHARE + 16
"""Bytes of one holder's shares, sealed."""


class Refused(ComityError):
    """Somebody does not do what the protocol says: nothing more is told to them."""


def derive(secret: bytes, *label: bytes) -> bytes:
    """32 bytes for one use. Labels are joined with their lengths, so that no two lists of them look alike."""
    info = b"".join(len(part).to_bytes(4, "big") + part for part in (b"comity", *label))
    return HKDF(SHA256(), KEY, salt=None, info=info).derive(secret)


def private_key(private: bytes) -> X25519PrivateKey:
    """Ready to agree with many others."""
    return X25519PrivateKey.from_private_bytes(private)


def public(private: bytes) -> bytes:
    return private_key(private).public_key().public_bytes_raw()


def agreed(private: X25519PrivateKey, other: bytes, *label: bytes) -> bytes:
    """What the owners of two keys, and nobody else, can know."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:  # a point of low order
        raise Refused("a public key is none") from error
    return derive(secret, *label)


def digest(secret: bytes) -> bytes:
    """What commits a client to a random seed."""
    return hashlib.sha256(b"comity seed" + secret).digest()


def sign(identity: bytes, place: bytes, cid: int, announced: bytes) -> bytes:
    return announced + Ed25519PrivateKey.from_private_bytes(identity).sign(_signed(place, cid, announced))


def is_signed(member: bytes, place: bytes, cid: int, announcement: bytes) -> bool:
    """Whether the member's key signed this announcement for this round of this run."""
    if len(announcement) != ANNOUNCEMENT:
        return False
    try:
        key = Ed25519PublicKey.from_public_bytes(member)
        key.verify(announcement[PUBLIC:], _signed(place, cid, announcement[:PUBLIC]))
        return True
    except (InvalidSignature, ValueError):
        return False


def _signed(place: bytes, cid: int, announced: bytes) -> bytes:
    return b"comity round keys" + hashlib.sha256(place).digest() + cid.to_bytes(8, "big") + announced


def seal(key: bytes, text: bytes, about: bytes) -> bytes:
    """``key`` must be of one use: the nonce is always the same."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """``None`` where it is not what was sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None
