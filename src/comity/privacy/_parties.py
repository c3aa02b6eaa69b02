"""A client's side of a round's masked sums.

Five steps: keys are announced; each client shares its secrets with its neighbours; it sends masked words; it signs what
it was sent about the round and who is left; and once two thirds of all clients have signed the same, it opens one
secret of each neighbour: the seed if its words arrived, or the key if it dropped out, never both. A client that drops
out in any step costs the sum only its own term.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity.privacy._fixed_point import Words
from comity.privacy._graph import members_of, threshold
from comity.privacy._keys import (
    ANNOUNCEMENT,
    KEY,
    PUBLIC,
    SEALED,
    SECRETS,
    SUMS,
    Rejected,
    agreed,
    derive,
    digest,
    hashed,
    is_signed,
    private_key,
    public,
    seal,
    share_digest,
    sign,
    unseal,
)
from comity.privacy._masks import add_mask
from comity.privacy._secrets import Secrets
from comity.privacy._shamir import MISSING, SHARE, split

NO_KEYS = bytes(ANNOUNCEMENT)
"""Placeholder for the keys of a neighbour with an invalid signature."""
UNSEALED = SECRETS * SHARE


def place_of(run: str, round: int, sent: bytes = b"") -> bytes:
    """Identifies the round of a run that keys, shares and masks are valid for, with a hash of the sent model.

    Nothing can be replayed in another round, and clients that were sent different models do not accept each other's
    keys.
    """
    return hashed(run.encode(), number(round), sent)


def number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def packed(clients: Iterable[int]) -> bytes:
    return b"".join(number(cid) for cid in sorted(clients))


def unpacked(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[start : start + 8], "big") for start in range(0, len(packed), 8)]


def cut(text: bytes, width: int) -> list[bytes]:
    return [text[start : start + width] for start in range(0, len(text), width)]


def transcript_of(place: bytes, everyone: Mapping[int, bytes]) -> bytes:
    return hashed(place, *(number(cid) + everyone[cid] for cid in sorted(everyone)))


def context_of(transcript: bytes, sum: int, present: Collection[int], about: bytes) -> bytes:
    """Hash of everything that clients that mask together must have been sent: if it differs, masks do not cancel."""
    return hashed(transcript, number(sum), packed(present), about)


def statement_of(context: bytes, survivors: Collection[int]) -> tuple[bytes, bytes, bytes]:
    """The statement that a client signs before it unmasks: all that it was sent about this sum, and who is left."""
    return b"agreement", context, packed(survivors)


def quorum(clients: int) -> int:
    """Number of clients that must sign the same statement before any of them unmasks: two thirds."""
    return threshold(clients)


def mask_key(announcement: bytes, sum: int) -> bytes:
    return announcement[KEY * (1 + sum) : KEY * (2 + sum)]


def seed_digest(announcement: bytes, sum: int) -> bytes:
    return announcement[KEY * (1 + SUMS + sum) : KEY * (2 + SUMS + sum)]


class Party:
    """A client's state and steps in one masked round. ``kept`` is its whole state between steps and must stay secret.

    Each step is done once. Repeated questions, and those out of turn or of another round, are rejected.
    """

    def __init__(self, secrets: Secrets, place: bytes, kept: dict[str, bytes]) -> None:
        self.secrets, self.me, self.place, self.kept = secrets, secrets.client, place, kept

    def announce(self) -> bytes:
        """Create new keys for this round and return their signed public part."""
        kept = self.kept
        kept.clear()
        kept |= {name: os.urandom(KEY) for name in ("channel", *_names("key"), *_names("seed"))}
        announced = public(kept["channel"])
        announced += b"".join(public(kept[name]) for name in _names("key"))
        announced += b"".join(digest(kept[name]) for name in _names("seed"))
        kept["place"] = self.place
        kept["announcement"] = announced + sign(self.secrets.identity, *_round_keys(self.place, self.me, announced))
        return kept["announcement"]

    def share(self, everyone: Mapping[int, bytes]) -> tuple[list[bytes], list[bytes]]:
        """Sealed shares of its secrets for each neighbour; zeros for one whose keys are not signed.

        Also returns the digests of these shares for each holder, including itself.
        """
        kept = self.kept
        self._expect("announcement", "transcript")
        if everyone.get(self.me) != kept["announcement"]:
            raise Rejected.because("keys")
        transcript = transcript_of(self.place, everyone)
        neighbours = members_of(everyone, transcript)[self.me]
        holders = sorted((*neighbours, self.me))
        each = [split(kept[name], len(holders), threshold(len(holders))) for name in (*_names("key"), *_names("seed"))]
        texts = dict(zip(holders, map(b"".join, zip(*each, strict=True)), strict=True))
        channel, known, sealed = private_key(kept["channel"]), [], []
        # not only its neighbours: clients that do not exist could take all the weight except one's
        good = {other for other, announcement in everyone.items() if self._is_member(other, announcement)}
        for other in neighbours:
            announcement = everyone[other] if other in good else NO_KEYS
            known.append(announcement)
            if other in good:
                key = agreed(channel, announcement[:KEY], b"shares", _direction(self.me, other))
            sealed.append(seal(key, texts[other], transcript) if other in good else bytes(SEALED))
        kept |= {"everyone": packed(everyone), "members": packed(good)}
        kept |= {"transcript": transcript, "neighbours": packed(neighbours), "keys": b"".join(known)}
        kept["held"] = texts[self.me]  # its own share, after those of its neighbours as they arrive
        digests = [
            b"".join(share_digest(transcript, self.me, place, share) for share in cut(texts[holder], SHARE))
            for place, holder in enumerate(holders, 1)
        ]
        return sealed, digests

    def receive(self, sealed: Sequence[bytes]) -> None:
        """Open the shares that its neighbours sealed for it, in their order; unreadable ones count as missing."""
        self._expect("transcript", "received")
        kept, held = self.kept, []
        channel = private_key(kept.pop("channel"))
        for (other, announcement), text in zip(self._neighbours().items(), sealed, strict=True):
            opened = None
            if announcement != NO_KEYS and any(text):
                key = agreed(channel, announcement[:KEY], b"shares", _direction(other, self.me))
                opened = unseal(key, text, kept["transcript"])
            held.append(opened if opened is not None and len(opened) == UNSEALED else SECRETS * MISSING)
        kept["held"], kept["received"] = b"".join(held) + kept["held"], b"1"

    def mask(self, sum: int, words: Words, present: Collection[int], about: bytes) -> Words:
        """The words, and a 1 for counting, hidden by the client's own mask and by the masks shared with neighbours.

        ``present`` are the clients that mask together; ``about`` is everything else that they must have been sent.
        """
        self._expect("received", f"context{sum}")
        kept = self.kept
        if self.me not in present or len(set(present)) != len(present):
            raise Rejected.because("cohort")
        if not set(present) <= set(unpacked(kept["everyone"])):
            raise Rejected.because("cohort")
        if not set(present) <= set(unpacked(kept["members"])):
            raise Rejected.because("unlisted")
        neighbours = self._neighbours()
        partners = {other: key for other, key in neighbours.items() if other in present}
        if 1 + len(partners) < threshold(1 + len(neighbours)):
            raise Rejected.because("few")
        context = kept[f"context{sum}"] = context_of(kept["transcript"], sum, present, about)
        kept[f"present{sum}"] = packed(present)
        key, seed = private_key(kept.pop(f"key{sum}")), kept.pop(f"seed{sum}")
        masked = np.append(words, np.uint64(1))
        add_mask(masked, derive(seed, b"own mask", context), 1)
        for other, announcement in partners.items():
            add_mask(masked, pair_mask(key, announcement, sum, context), 1 if self.me < other else -1)
        return masked

    def present(self, sum: int) -> list[int]:
        """The clients that this client masked with."""
        self._expect(f"context{sum}", "")
        return unpacked(self.kept[f"present{sum}"])

    def survivors(self, sum: int) -> list[int]:
        """The remaining clients of a sum that it helped to open."""
        self._expect(f"answered{sum}", "")
        return unpacked(self.kept[f"survivors{sum}"])

    def agree(self, sum: int, survivors: Collection[int]) -> bytes:
        """Sign what was sent about this sum and who is left; only one statement is signed per sum."""
        self._expect(f"context{sum}", f"survivors{sum}")
        present = self.present(sum)
        if self.me not in survivors or len(set(survivors)) != len(survivors) or not set(survivors) <= set(present):
            raise Rejected.because("survivors")
        self.kept[f"survivors{sum}"] = packed(survivors)
        return sign(self.secrets.identity, *statement_of(self.kept[f"context{sum}"], survivors))

    def unmask(self, sum: int, signatures: Mapping[int, bytes]) -> list[bytes]:
        """One share of each neighbour, then of itself: of a survivor's seed, or of the key of one that dropped out.

        Two thirds of all clients whose keys it was shown must have signed the statement that it was sent. Two such
        groups have a third in common, so no two statements are opened while fewer than a third of the clients sign
        both.
        """
        self._expect(f"survivors{sum}", f"answered{sum}")
        present, survivors = self.present(sum), unpacked(self.kept[f"survivors{sum}"])
        everyone, members = unpacked(self.kept["everyone"]), self.secrets.members
        statement = statement_of(self.kept[f"context{sum}"], survivors)
        signed = [cid for cid in survivors if is_signed(members.get(cid, b""), signatures.get(cid, b""), *statement)]
        if len(signed) < quorum(len(everyone)):
            raise Rejected.because("agreement")
        self.kept[f"answered{sum}"] = b"1"
        revealed = []
        owners = (*self._neighbours(), self.me)
        held = cut(self.kept["held"], UNSEALED)
        for place, owner in enumerate(owners):
            shares = cut(held[place], SHARE)
            which = SUMS + sum if owner in survivors else sum
            revealed.append(shares[which] if owner in present else MISSING)
            shares[sum] = shares[SUMS + sum] = MISSING  # the other one is never revealed
            held[place] = b"".join(shares)
        self.kept["held"] = b"".join(held)
        return revealed

    def _expect(self, done: str, not_yet: str) -> None:
        if done not in self.kept or not_yet in self.kept or self.kept["place"] != self.place:
            raise Rejected.because("turn")

    def _is_member(self, cid: int, announcement: bytes) -> bool:
        """Whether this client is on the federation's list, and its keys are signed for this round."""
        signed = _round_keys(self.place, cid, announcement[:PUBLIC])
        member = self.secrets.members.get(cid, b"")
        return len(announcement) == ANNOUNCEMENT and is_signed(member, announcement[PUBLIC:], *signed)

    def _neighbours(self) -> dict[int, bytes]:
        """The neighbours with their announced keys."""
        ids = unpacked(self.kept["neighbours"])
        return dict(zip(ids, cut(self.kept["keys"], ANNOUNCEMENT), strict=True))


def _round_keys(place: bytes, cid: int, announced: bytes) -> tuple[bytes, ...]:
    """The statement that a client signs about its keys."""
    return b"round keys", place, number(cid), announced


def _names(kind: str) -> list[str]:
    return [f"{kind}{sum}" for sum in range(SUMS)]


def _direction(sender: int, receiver: int) -> bytes:
    return number(sender) + number(receiver)


def pair_mask(private: X25519PrivateKey, announcement: bytes, sum: int, context: bytes) -> bytes:
    return agreed(private, mask_key(announcement, sum), b"pair mask", context)
