"""A whole cohort in one place, to take through the protocol's steps with whom one likes lost in each."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from comity.privacy import Collector, Party, Secrets, place_of, rehearsed

Words = NDArray[np.uint64]


@dataclass
class Cohort:
    """Clients with random words; ``lost`` says who never answers which step, from that one on."""

    clients: int
    seed: int = 0
    width: int = 5
    lost: dict[str, Collection[int]] = field(default_factory=dict)
    about: Callable[[int], bytes] = lambda _: b"alike"
    tamper: Callable[[str, dict[int, list[bytes]]], None] = lambda *_: None

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        self.place = place_of("run", 3)
        self.words = {cid: random.integers(0, 2**64, self.width, dtype=np.uint64) for cid in range(self.clients)}
        self.secrets: list[Secrets] = rehearsed(self.seed, self.clients)
        self.parties = {cid: Party(self.secrets[cid], self.place, {}) for cid in range(self.clients)}
        self.seen: list[bytes] = []
        """All that the server received."""

    def left(self, step: str, among: Collection[int]) -> list[int]:
        gone = set(self.lost.get(step, ()))
        return [cid for cid in among if cid not in gone]

    def announce(self) -> None:
        everyone = {cid: self.parties[cid].announce() for cid in self.left("keys", range(self.clients))}
        self.collector = Collector(self.place, everyone)
        self.seen += everyone.values()

    def share(self) -> dict[int, str]:
        everyone = self.collector.everyone
        shared = {cid: self.parties[cid].share(everyone) for cid in self.left("shares", everyone)}
        self.tamper("shares", {cid: sealed for cid, (sealed, _) in shared.items()})
        self.seen += [row for both in shared.values() for rows in both for row in rows]
        refused = self.collector.receive(shared)
        self.present = self.collector.present
        return refused

    def mask(self, sum: int = 0) -> None:
        if sum == 0:
            for cid in self.left("mask", self.present):
                self.parties[cid].receive(self.collector.sealed_for(cid))
        self.masked = {
            cid: self.parties[cid].mask(sum, self.words[cid], self.present, self.about(cid))
            for cid in self.left("mask", self.present)
        }
        self.seen += [words.tobytes() for words in self.masked.values()]

    def open(self, sum: int = 0) -> Words:
        signed = {cid: self.parties[cid].agree(sum, list(self.masked)) for cid in self.left("agree", self.masked)}
        told = self.left("unmask", signed)
        revealed = {cid: self.parties[cid].unmask(sum, signed) for cid in told}
        self.tamper("unmask", revealed)
        self.revealed = revealed
        self.seen += [row for rows in revealed.values() for row in rows]
        return self.collector.open(sum, self.present, self.about(0), self.masked, revealed)

    def sum(self) -> Words:
        """All five steps."""
        self.announce()
        self.share()
        self.mask()
        return self.open()

    def expected(self) -> Words:
        total = np.zeros(self.width, dtype=np.uint64)
        for cid in self.masked:
            total += self.words[cid]
        return total
