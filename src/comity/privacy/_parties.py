"""The two sides of a round's masked sums: a client's, which holds secrets, and the server's, which never sees a term.

Four steps: keys are announced; each client shares its secrets out among its neighbours; it sends words that its masks
hide; and the neighbours of everybody open one secret of each client, the seed of one whose words arrived or the key of
one who was lost, never both. A client that is lost in any step costs the sum its own term and nothing else.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from comity.privacy._fixed_point import Words
from comity.privacy._graph import members_of, threshold
from comity.privacy._keys import (
    ANNOUNCEMENT,
    KEY,
    SEALED,
    SECRETS,
    SUMS,
    Refused,
    agreed,
    derive,
    digest,
    is_signed,
    private_key,
    public,
    seal,
    sign,
    unseal,
)
from comity.privacy._masks import add_mask
from comity.privacy._secrets import Secrets
from comity.privacy._shamir import MISSING, SHARE, recover, split

NOBODY = bytes(ANNOUNCEMENT)
"""In place of the keys of a neighbour whose signature is wrong."""
UNSEALED = SECRETS * SHARE


def place_of(run: str, round: int) -> bytes:
    """The one round of the one run that keys, shares and masks are good for: nothing can be replayed in another."""
    return hashed(run.encode(), _number(round))


def hashed(*parts: bytes) -> bytes:
    """SHA-256 of parts with their lengths, so that no two lists of them look alike."""
    return hashlib.sha256(b"".join(_number(len(part)) + part for part in parts)).digest()


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _packed(clients: Iterable[int]) -> bytes:
    return b"".join(_number(cid) for cid in sorted(clients))


def _unpacked(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[start : start + 8], "big") for start in range(0, len(packed), 8)]


def _cut(text: bytes, width: int) -> list[bytes]:
    return [text[start : start + width] for start in range(0, len(text), width)]


def _transcript(place: bytes, everyone: Mapping[int, bytes]) -> bytes:
    return hashed(place, *(_number(cid) + everyone[cid] for cid in sorted(everyone)))


def _context(transcript: bytes, sum: int, present: Collection[int], about: bytes) -> bytes:
    """All that those who mask together must have been told alike: other words, other masks, and nothing cancels."""
    return hashed(transcript, _number(sum), _packed(present), about)


def _mask_key(announcement: bytes, sum: int) -> bytes:
    return announcement[KEY * (1 + sum) : KEY * (2 + sum)]


def _seed_digest(announcement: bytes, sum: int) -> bytes:
    return announcement[KEY * (1 + SUMS + sum) : KEY * (2 + SUMS + sum)]


class Party:
    """A client in one round. ``kept`` is all that it knows from one step to the next, and nobody else may see it.

    Each step is done once. What is asked again, out of turn or of another round is refused.
    """

    def __init__(self, secrets: Secrets, place: bytes, kept: dict[str, bytes]) -> None:
        self.secrets, self.me, self.place, self.kept = secrets, secrets.client, place, kept

    def announce(self) -> bytes:
        """New keys for this round, and their public part, signed."""
        kept = self.kept
        kept.clear()
        kept |= {name: os.urandom(KEY) for name in ("channel", *_names("key"), *_names("seed"))}
        announced = public(kept["channel"])
        announced += b"".join(public(kept[name]) for name in _names("key"))
        announced += b"".join(digest(kept[name]) for name in _names("seed"))
        kept["place"] = self.place
        kept["announcement"] = sign(self.secrets.identity, self.place, self.me, announced)
        return kept["announcement"]

    def share(self, everyone: Mapping[int, bytes]) -> list[bytes]:
        """Shares of its secrets for each of its neighbours in turn, sealed; zeros for one whose keys are not signed."""
        kept = self.kept
        self._expect("announcement", "transcript")
        if everyone.get(self.me) != kept["announcement"]:
            raise Refused("was shown other keys than its own under its name")
        transcript = _transcript(self.place, everyone)
        neighbours = members_of(everyone, transcript)[self.me]
        holders = sorted((*neighbours, self.me))
        each = [split(kept[name], len(holders), threshold(len(holders))) for name in (*_names("key"), *_names("seed"))]
        texts = dict(zip(holders, map(b"".join, zip(*each, strict=True)), strict=True))
        channel, known, sealed = private_key(kept["channel"]), [], []
        for other in neighbours:
            member, announcement = self.secrets.members.get(other, b""), everyone[other]
            good = is_signed(member, self.place, other, announcement)
            known.append(announcement if good else NOBODY)
            if good:
                key = agreed(channel, announcement[:KEY], b"shares", _direction(self.me, other))
            sealed.append(seal(key, texts[other], transcript) if good else bytes(SEALED))
        kept["everyone"] = _packed(everyone)
        kept |= {"transcript": transcript, "neighbours": _packed(neighbours), "keys": b"".join(known)}
        kept["held"] = texts[self.me]  # its own share, behind those of its neighbours as they arrive
        return sealed

    def receive(self, sealed: Sequence[bytes]) -> None:
        """What its neighbours sealed for it, in their order. One that cannot be opened is held as missing."""
        self._expect("transcript", "received")
        kept, held = self.kept, []
        channel = private_key(kept.pop("channel"))
        for (other, announcement), text in zip(self._neighbours().items(), sealed, strict=True):
            opened = None
            if announcement != NOBODY and any(text):
                key = agreed(channel, announcement[:KEY], b"shares", _direction(other, self.me))
                opened = unseal(key, text, kept["transcript"])
            held.append(opened if opened is not None and len(opened) == UNSEALED else SECRETS * MISSING)
        kept["held"], kept["received"] = b"".join(held) + kept["held"], b"1"

    def mask(self, sum: int, words: Words, present: Collection[int], about: bytes) -> Words:
        """The words and a 1 to count by, hidden by the client's own mask and by those that it shares with neighbours.

        ``present`` are those who mask together and ``about`` is all else that they must have been told alike.
        """
        self._expect("received", f"context{sum}")
        kept = self.kept
        if self.me not in present or len(set(present)) != len(present):
            raise Refused("was asked to mask with others who do not count it in, or count somebody twice")
        if not set(present) <= set(_unpacked(kept["everyone"])):
            raise Refused("was asked to mask with clients whose keys it was never shown")
        neighbours = self._neighbours()
        partners = {other: key for other, key in neighbours.items() if other in present}
        if strangers := [other for other, announcement in partners.items() if announcement == NOBODY]:
            raise Refused(f"was asked to mask with client {strangers[0]}, whose keys are not signed as the list says")
        if 1 + len(partners) < threshold(1 + len(neighbours)):
            raise Refused(f"{len(partners)} of the {len(neighbours)} clients that it masks with are left: too few")
        context = kept[f"context{sum}"] = _context(kept["transcript"], sum, present, about)
        kept[f"present{sum}"] = _packed(present)
        key, seed = private_key(kept.pop(f"key{sum}")), kept.pop(f"seed{sum}")
        masked = np.append(words, np.uint64(1))
        add_mask(masked, derive(seed, b"own mask", context), 1)
        for other, announcement in partners.items():
            add_mask(masked, _pair_mask(key, announcement, sum, context), 1 if self.me < other else -1)
        return masked

    def present(self, sum: int) -> list[int]:
        """Whom it masked with."""
        self._expect(f"context{sum}", "")
        return _unpacked(self.kept[f"present{sum}"])

    def unmask(self, sum: int, survivors: Collection[int]) -> list[bytes]:
        """One share of each of its neighbours and then of itself: of the seed of a survivor, of the key of one lost."""
        self._expect(f"context{sum}", f"answered{sum}")
        present = self.present(sum)
        if self.me not in survivors or not set(survivors) <= set(present):
            raise Refused("was told of survivors that cannot be: itself not among them, or others than it masked with")
        self.kept[f"answered{sum}"] = b"1"
        revealed = []
        owners = (*self._neighbours(), self.me)
        held = _cut(self.kept["held"], UNSEALED)
        for place, owner in enumerate(owners):
            shares = _cut(held[place], SHARE)
            which = SUMS + sum if owner in survivors else sum
            revealed.append(shares[which] if owner in present else MISSING)
            shares[sum] = shares[SUMS + sum] = MISSING  # the other one is never told
            held[place] = b"".join(shares)
        self.kept["held"] = b"".join(held)
        return revealed

    def _expect(self, done: str, not_yet: str) -> None:
        if done not in self.kept or not_yet in self.kept or self.kept["place"] != self.place:
            raise Refused("was asked out of turn, again, or for another round")

    def _neighbours(self) -> dict[int, bytes]:
        """With the keys that they announced."""
        ids = _unpacked(self.kept["neighbours"])
        return dict(zip(ids, _cut(self.kept["keys"], ANNOUNCEMENT), strict=True))


def _names(kind: str) -> list[str]:
    return [f"{kind}{sum}" for sum in range(SUMS)]


def _direction(sender: int, receiver: int) -> bytes:
    return _number(sender) + _number(receiver)


def _pair_mask(private: X25519PrivateKey, announcement: bytes, sum: int, context: bytes) -> bytes:
    return agreed(private, _mask_key(announcement, sum), b"pair mask", context)


class Collector:
    """The server in one round: it passes on what clients seal for each other, and opens sums."""

    def __init__(self, place: bytes, everyone: Mapping[int, bytes]) -> None:
        self.everyone, self.transcript = dict(everyone), _transcript(place, everyone)
        self.neighbours = members_of(everyone, self.transcript)
        self._sealed: dict[int, list[bytes]] = {}

    def receive(self, sealed: Mapping[int, Sequence[bytes]]) -> dict[int, str]:
        """What clients sealed for their neighbours; whom most of those refuse, and why."""
        self._sealed = {cid: list(rows) for cid, rows in sealed.items()}
        refused = {}
        for cid in sorted(sealed):
            asked = [other for other in self.neighbours[cid] if other in sealed]
            against = [other for other in asked if not any(self._sealed_by(other, cid))]
            if 2 * len(against) > len(asked):
                refused[cid] = "its keys are not signed as the federation's list says"
        for cid in refused:
            del self._sealed[cid]
        return refused

    @property
    def present(self) -> list[int]:
        """Those whose shares others have."""
        return sorted(self._sealed)

    def sealed_for(self, cid: int) -> list[bytes]:
        """What its neighbours sealed for a client, in their order; zeros of those who were lost."""
        return [
            self._sealed_by(other, cid) if other in self._sealed else bytes(SEALED) for other in self.neighbours[cid]
        ]

    def _sealed_by(self, sender: int, receiver: int) -> bytes:
        return self._sealed[sender][self.neighbours[sender].index(receiver)]

    def open(
        self,
        sum: int,
        present: Collection[int],
        about: bytes,
        masked: Mapping[int, Words],
        revealed: Mapping[int, Sequence[bytes]],
    ) -> Words:
        """The sum of those whose words arrived; refused where too few shares are true, or where masks do not cancel."""
        context = _context(self.transcript, sum, present, about)
        total = np.zeros(len(next(iter(masked.values()))), dtype=np.uint64)
        for words in masked.values():
            total += words
        for cid in sorted(present):
            if cid in masked:
                seed = self._recover(cid, revealed, digest, _seed_digest(self.everyone[cid], sum))
                add_mask(total, derive(seed, b"own mask", context), -1)
                continue
            key = private_key(self._recover(cid, revealed, public, _mask_key(self.everyone[cid], sum)))
            for other in self.neighbours[cid]:
                if other in masked:
                    pair = _pair_mask(key, self.everyone[other], sum, context)
                    add_mask(total, pair, -1 if other < cid else 1)
        if int(total[-1]) != len(masked):
            raise Refused("masks do not cancel: clients were told different things, or one does not keep the protocol")
        return total[:-1]

    def _recover(
        self,
        owner: int,
        revealed: Mapping[int, Sequence[bytes]],
        commits_to: Callable[[bytes], bytes],
        announced: bytes,
    ) -> bytes:
        """The secret whose public half the owner announced."""
        holders = sorted((*self.neighbours[owner], owner))
        shares = {}
        for place, holder in enumerate(holders, 1):
            if holder in revealed:
                owners = (*self.neighbours[holder], holder)
                shares[place] = revealed[holder][owners.index(owner)]
        secret = recover(
            shares, threshold(len(holders)), lambda found: len(found) == KEY and commits_to(found) == announced
        )
        if secret is None:
            raise Refused(f"too few of the clients that hold shares of client {owner} are left, or tell the truth")
        return secret
