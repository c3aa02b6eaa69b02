"""Clients that lie about what they learnt."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._random import generator
from comity.methods import Reply

Kind = Literal["none", "gaussian", "scale"]


@dataclass(frozen=True)
class Attack:
    """Some clients upload something else than they trained (FedPG, supplement B.3).

    ``gaussian`` (A1): zero-mean Gaussian numbers of standard deviation 1 in place of the shared parameters. ``scale``
    (A2): their update times 100. Buffers are left as they are: the attack is on what a rule combines.
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
        if cid not in self.malicious or not parameters:
            return reply
        theta = reply.theta.clone()
        if self.kind == "gaussian":
            random = generator(self.seed, "attack", round, cid)
            theta[:parameters] = torch.randn(parameters, generator=random)
        else:
            if origin is None:
                raise ComityError("attack scale needs a method whose clients start from a shared part")
            theta[:parameters] = origin[:parameters] + 100 * (theta[:parameters] - origin[:parameters])
        return replace(reply, theta=theta)
