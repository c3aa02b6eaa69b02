"""Malicious clients."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._random import generator
from comity.methods import Payload, Reply

Kind = Literal["none", "gaussian", "scale", "inner"]

AGAINST = 2.0
"""How far ``inner`` goes against the honest clients' mean, over its length."""


@dataclass(frozen=True)
class Attack:
    """Malicious clients upload something other than what they trained. Buffers stay as they are.

    ``gaussian`` replaces the shared parameters by standard normal numbers (A1 of FedPG, supplement B.3) and ``scale``
    multiplies the client's update by 100 (A2). With ``inner`` malicious clients collude: they know the mean μ of the
    honest updates and send −2μ (inner-product manipulation, Xie et al., UAI 2020).
    """

    kind: Kind
    malicious: frozenset[int]
    seed: int

    @classmethod
    def by_share(cls, kind: Kind, share: float, clients: int, seed: int) -> "Attack":
        order = torch.randperm(clients, generator=generator(seed, "malicious")).tolist()
        return cls(kind, frozenset(order[: round(share * clients)] if kind != "none" else ()), seed)

    def on(self, reply: Reply, origin: Tensor | None, parameters: int, cid: int, round: int) -> Reply:
        """The reply that leaves a client which started from ``origin``; behind ``parameters`` numbers lie buffers."""
        if cid not in self.malicious or not parameters or self.kind == "inner":
            return reply
        if self.kind == "gaussian":
            return _with_parameters(
                reply, torch.randn(parameters, generator=generator(self.seed, "attack", round, cid))
            )
        origin = self._origin(origin)[:parameters]
        return _with_parameters(reply, origin + 100 * (reply.theta[:parameters] - origin))

    def collude(self, replies: Mapping[int, Reply], sent: Mapping[int, Payload], parameters: int) -> dict[int, Reply]:
        """All replies of a round, with those of colluding clients in place of what they trained."""
        lying, honest = self.malicious & replies.keys(), sorted(replies.keys() - self.malicious)
        if self.kind != "inner" or not parameters or not lying or not honest:
            return dict(replies)
        origins = {cid: self._origin(sent[cid].tensors().get("theta"))[:parameters] for cid in replies}
        updates = torch.stack([replies[cid].theta[:parameters] - origins[cid] for cid in honest])
        _, mean = torch.std_mean(updates, dim=0, correction=0)  # updates.mean(0) would change the locked bits
        lie = -AGAINST * mean
        return {
            cid: _with_parameters(reply, origins[cid] + lie) if cid in lying else reply
            for cid, reply in replies.items()
        }

    def _origin(self, origin: Tensor | None) -> Tensor:
        if origin is None:
            raise ComityError(f"attack {self.kind} needs a method whose clients start from a shared part")
        return origin


def _with_parameters(reply: Reply, parameters: Tensor) -> Reply:
    return replace(reply, theta=torch.cat([parameters, reply.theta[len(parameters) :]]))
