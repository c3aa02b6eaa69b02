"""The server's side of a round's masked sums: it relays sealed shares and never sees a single term."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from comity.privacy._fixed_point import Words
from comity.privacy._graph import degree, members_of, threshold
from comity.privacy._keys import DIGEST, SEALED, SUMS, Rejected, derive, digest, private_key, public, share_digest
from comity.privacy._masks import add_mask
from comity.privacy._parties import context_of, cut, mask_key, pair_mask, quorum, seed_digest, transcript_of
from comity.privacy._shamir import MISSING, join


class Collector:
    """The server's state and steps in one masked round."""

    def __init__(self, place: bytes, everyone: Mapping[int, bytes]) -> None:
        self.everyone, self.transcript = dict(everyone), transcript_of(place, everyone)
        self.neighbours = members_of(everyone, self.transcript)
        self.false: dict[int, set[int]] = {}
        """By client: the owners of shares that it revealed and that differ from the announced digests."""
        self._sealed: dict[int, list[bytes]] = {}
        self._digests: dict[int, list[bytes]] = {}

    def receive(self, shared: Mapping[int, tuple[Sequence[bytes], Sequence[bytes]]]) -> dict[int, str]:
        """Receive sealed shares and digests; returns the clients that most neighbours reject, with the reason."""
        self._sealed = {cid: list(sealed) for cid, (sealed, _) in shared.items()}
        self._digests = {cid: list(digests) for cid, (_, digests) in shared.items()}
        rejects = {}
        for cid in sorted(shared):
            asked = [other for other in self.neighbours[cid] if other in shared]
            against = [other for other in asked if not any(self._sealed_by(other, cid))]
            if 2 * len(against) > len(asked):
                rejects[cid] = "its keys are not signed as the federation's list says, or for another model"
        for cid in rejects:
            del self._sealed[cid]
        return rejects

    @property
    def present(self) -> list[int]:
        """Clients whose shares are held by others."""
        return sorted(self._sealed)

    @property
    def degree(self) -> int:
        """Number of other clients that each client masks with."""
        return degree(len(self.everyone))

    @property
    def quorum(self) -> int:
        """Number of clients that must sign the same statement."""
        return quorum(len(self.everyone))

    def sealed_for(self, cid: int) -> list[bytes]:
        """The shares sealed for a client by its neighbours, in their order; zeros for those that dropped out."""
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
        """The sum over clients whose words arrived; rejected if too few shares are valid, or masks do not cancel."""
        context = context_of(self.transcript, sum, present, about)
        total = np.zeros(len(next(iter(masked.values()))), dtype=np.uint64)
        for words in masked.values():
            total += words
        for cid in sorted(present):
            if cid in masked:
                seed = self._recover(cid, SUMS + sum, revealed, digest, seed_digest(self.everyone[cid], sum))
                add_mask(total, derive(seed, b"own mask", context), -1)
                continue
            key = private_key(self._recover(cid, sum, revealed, public, mask_key(self.everyone[cid], sum)))
            for other in self.neighbours[cid]:
                if other in masked:
                    add_mask(total, pair_mask(key, self.everyone[other], sum, context), -1 if other < cid else 1)
        if int(total[-1]) != len(masked):
            raise Rejected("masks do not cancel: clients were sent different values, or one does not keep the protocol")
        return total[:-1]

    def _recover(
        self,
        owner: int,
        which: int,
        revealed: Mapping[int, Sequence[bytes]],
        commits_to: Callable[[bytes], bytes],
        announced: bytes,
    ) -> bytes:
        """Recover the announced secret of a client from shares with the announced digests."""
        holders = sorted((*self.neighbours[owner], owner))
        answered, true = 0, dict[int, bytes]()
        for place, holder in enumerate(holders, 1):
            if holder not in revealed:
                continue
            answered += 1
            share = revealed[holder][(*self.neighbours[holder], holder).index(owner)]
            if (
                share_digest(self.transcript, owner, place, share)
                == cut(self._digests[owner][place - 1], DIGEST)[which]
            ):
                true[place] = share
            elif share != MISSING:
                self.false.setdefault(holder, set()).add(owner)
        needed = threshold(len(holders))
        secret = join(dict(list(true.items())[:needed])) if len(true) >= needed else b""
        if secret and commits_to(secret) == announced:
            return secret
        if len(true) >= needed or 2 * len(true) < answered:
            raise Rejected(f"client {owner} shared out other secrets than it announced")
        raise Rejected("too few clients that hold shares of one another are left, or tell the truth")

    @property
    def false_sharers(self) -> list[int]:
        """Clients that revealed false shares of most others: a single false share may be the fault of its owner."""
        return [cid for cid, owners in sorted(self.false.items()) if 2 * len(owners) > len(self.present)]
