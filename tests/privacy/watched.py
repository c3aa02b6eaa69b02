"""A masked run in this process whose server, or the way to it, does what one likes."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from comity import Config
from comity.engine import Server, Site, Threads, Verb
from comity.methods import Payload
from comity.privacy import FixedPoint
from helpers import Options, build

K = 16
"""Numbers of a sketch."""
Change = Callable[[str, int, Any], Any]


class Watched(Threads):
    """Threads that write down all that the server receives, lose whom one likes and change what one likes."""

    def __init__(self, site: Site, lost: Mapping[str, Collection[int]], change: Change | None = None) -> None:
        super().__init__(site, 1)
        self.lost, self.change = lost, change
        self.spoilt: dict[str, dict[str, Tensor]] = {}
        """What client 2 sends in place of fields of its replies."""
        self.received: list[tuple[str, int, Payload]] = []
        self.told: dict[str, Payload] = {}
        """The newest question of each verb."""
        self.updates: dict[int, Tensor] = {}
        """What each client keeps to itself in this round."""

    def deliver(self, verb: Verb, questions: Mapping[int, Payload], round: int) -> dict[int, Payload]:
        if self.change is not None:
            questions = {cid: self.change(verb.name, cid, question) for cid, question in questions.items()}
        self.told[verb.name] = next(iter(questions.values()))
        replies = super().deliver(verb, questions, round)
        if verb.name in self.spoilt and 2 in replies:
            replies[2] = replace(replies[2], **self.spoilt[verb.name])  # type: ignore[type-var]
        if verb.name == "fit":
            self.updates = {cid: self._states[cid].secret["update"] for cid in replies}
        kept = {cid: reply for cid, reply in replies.items() if cid not in self.lost.get(verb.name, ())}
        self.failures |= dict.fromkeys(replies.keys() - kept.keys(), "is gone")
        self.received += [(verb.name, cid, reply) for cid, reply in kept.items()]
        return kept


STAGES = ("fit", "share", "mask", "agree", "unmask", "against")


def masked_options(tiny: Options) -> Options:
    return tiny | {"rounds": 2, "masked": True, "sketch": K, "min_clients": 2}


def assembled(
    options: Options,
    lost: Mapping[str, Collection[int]] | None = None,
    change: Change | None = None,
    **more: Any,
) -> tuple[Watched, Server]:
    _, server = build(Config(**(options | more)), link=lambda _, site: Watched(site, lost or {}, change))
    assert isinstance(server.link, Watched)
    return server.link, server


def open_sum(link: Watched, server: Server, clients: Collection[int]) -> Tensor:
    """The fixed-point sum of these clients' terms with the coefficients that were sent to all, without any mask."""
    told: Any = link.told["mask"]
    present, total = told.present.tolist(), np.zeros(server.theta.numel(), dtype=np.uint64)
    size = server.layout.size
    for cid in clients:
        place, update = present.index(cid), link.updates[cid].double().numpy()
        weights = np.repeat([told.coefficients[place], told.shares[place]], [size, len(update) - size])
        total += FixedPoint(len(present)).encode(weights * update)
    return torch.from_numpy(FixedPoint(len(present)).decode(total)).float()


def refusal(server: Server) -> str:
    """Why a round is refused that changes nothing."""
    before = server.theta.clone()
    (refused,) = server.step().warnings
    assert refused.startswith("round 1 is rejected and changes nothing: ")
    assert torch.equal(server.theta, before)
    return refused
