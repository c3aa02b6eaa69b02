from typing import Literal

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload, Server
from comity.rules import FairDescent, Rule, protected_directions


class FedPG(Method):
    """A global model that gets better for everybody, and personal ones beside it that take nothing from it.

    "Preserving Global Performance in Personalized Federated Learning" (ICCV submission, supplement A.1). The global
    model moves along FairDescent's direction: the min-norm point of the online clients' gradients, those of clients
    absent for a short while, and the gradient of the fairness objective F = −cos(losses, 1), at the length of the mean.
    The main paper is not public; personal models are our reading of the supplement: ω_i = ω + lr·d_i, where d_i is the
    direction nearest to the client's own −g_i that conflicts with no available gradient (gamma 0: no harm to anyone to
    first order, the row of the tables without a gamma) or partly so: g_j·d_i ≤ gamma · max(0, −g_j·g_i). They are never
    trained from. An absent client keeps its last personal model; one never seen uses the global model. The authors'
    rate decays: --lr-decay 0.999.

    Options:
        gamma: how much harm to others a personal model may do, 0 for none to 1 for all that its own gradient does
        base: personal models start from the new global model, or from the old one that gradients were taken at
    """

    gamma: float = 0.0
    base: Literal["new", "old"] = "new"

    def check(self) -> None:
        if not 0 <= self.gamma <= 1:
            raise ComityError(f"method.gamma must be from 0 to 1, got {self.gamma}")

    def own_rule(self) -> Rule:
        return FairDescent()

    def personal(self, client: Client, received: Payload) -> Tensor:
        return super().personal(client, {"theta": received.get("personal", received["theta"])})

    def send(self, server: Server, cid: int) -> Payload:
        mine = server.store.get(f"personal/{cid}")
        return super().send(server, cid) | ({} if mine is None else {"personal": mine})

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        old, size = server.theta, server.layout.size
        super().merge(server, replies)
        ratio = self.ratio(server, replies, server.theta - old)
        if ratio != 1:
            server.theta[:size] = torch.lerp(old[:size], server.theta[:size], ratio)

        assert server.outcome is not None
        updates = server.outcome.updates  # those of absent clients come last
        protected = protected_directions(updates.gram, self.gamma, count=len(replies))
        server.record["protection"] = protected.residual
        start = server.theta if self.base == "new" else torch.cat([old[:size], server.theta[size:]])
        for cid, direction in zip(sorted(replies), updates.mix(protected.coefficients), strict=True):
            mine = start.clone()
            mine[:size].add_(direction, alpha=ratio)
            server.store[f"personal/{cid}"] = mine

    def ratio(self, server: Server, replies: dict[int, Payload], step: Tensor) -> float:
        """The size of the step as a multiple of the learning rate's."""
        return 1.0
