"""Malicious clients, which send something other than what they trained."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from comity._errors import ComityError
from comity._random import generator
from comity.config import Config
from comity.engine import Client, Extension
from comity.methods import Payload, Reply

if TYPE_CHECKING:
    from comity.engine import RunPlan, Server, Site

AGAINST = 2.0
"""Length of ``inner`` relative to the honest clients' mean."""


class Attack(Extension):
    """Malicious clients that send something other than what they trained. Buffers stay unchanged: rules ignore them.

    Independent attacks: ``gaussian`` sends Gaussian numbers of standard deviation 1 instead of the shared parameters
    (A1 of FedPG, supplement B.3), ``scale`` the update times 100 (A2), ``flip`` the update times −1. Collusion with
    knowledge of the honest updates: ``inner`` sends −2 times their mean (Xie et al., UAI 2020).
    """

    kind: str
    share: float

    @classmethod
    def of(cls, config: Config) -> Self | None:
        return cls(kind=config.attack, share=config.malicious)

    def attach(self, plan: "RunPlan", site: "Site") -> None:
        clients, self.seed = len(plan.federation), plan.config.seed
        order = torch.randperm(clients, generator=generator(self.seed, "malicious")).tolist()
        self.excluded = frozenset(order[: round(self.share * clients)])

    def after_fit(self, site: "Site", client: Client, received: Payload, reply: Any) -> Any:
        """Replace the parameters in a malicious client's reply; buffers follow them in the vector."""
        size = site.parameters
        if client.id not in self.excluded or not size or self.kind == "inner":
            return reply
        if self.kind == "gaussian":
            random = generator(self.seed, "attack", client.round, client.id)
            return _with_parameters(reply, torch.randn(size, generator=random))
        origin = client.origin if client.origin is not None else getattr(received, "theta", None)
        origin = self._origin(origin)[:size]
        factor = 100 if self.kind == "scale" else -1
        return _with_parameters(reply, origin + factor * (reply.theta[:size] - origin))

    def replies(self, server: "Server", replies: dict[int, Reply], sent: Mapping[int, Payload]) -> dict[int, Reply]:
        """All replies of a round, with those of colluding clients replaced."""
        size = server.layout.size
        malicious, honest = self.excluded & replies.keys(), sorted(replies.keys() - self.excluded)
        if self.kind != "inner" or not size or not malicious or not honest:
            return replies
        origins = {cid: self._origin(sent[cid].tensors().get("theta"))[:size] for cid in replies}
        updates = torch.stack([replies[cid].theta[:size] - origins[cid] for cid in honest])
        false = -AGAINST * torch.std_mean(updates, dim=0, correction=0)[1]
        return {
            cid: _with_parameters(reply, origins[cid] + false) if cid in malicious else reply
            for cid, reply in replies.items()
        }

    def _origin(self, origin: Tensor | None) -> Tensor:
        if origin is None:
            raise ComityError(f"attack {self.kind} needs a method whose clients start from a shared part")
        return origin


def _with_parameters(reply: Reply, parameters: Tensor) -> Reply:
    return replace(reply, theta=torch.cat([parameters, reply.theta[len(parameters) :]]))
