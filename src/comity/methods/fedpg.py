from typing import Literal

import torch
from torch import Tensor

from comity._options import Share
from comity.methods._method import Client, Message, Method, Reply, Server
from comity.rules import FairDescent, Outcome, Rule, protected_directions


class FedPGMessage(Message):
    personal: Tensor | None = None
    """The client's personal model; none before it was first heard of."""


class FedPG(Method[FedPGMessage, Reply]):
    """A global model that gets better for everybody, and beside it personal models that take nothing from it.

    Paper: "Preserving Global Performance in Personalized Federated Learning", ICCV submission, supplement A.1.

    Equation: The global model ω moves along FairDescent's direction: the min-norm point of the online clients'
    gradients, those of clients absent for a short while, and the gradient of the fairness objective
    F = −cos(losses, 1), at the length of the mean. A personal model is ω_i = ω + lr·d_i, where d_i is the direction
    nearest to the client's own −g_i that conflicts with no available gradient (gamma 0), or only partly so:
    g_j·d_i ≤ gamma · max(0, −g_j·g_i). Personal models are never trained from. An absent client keeps its last personal
    model; one that was never seen uses the global model.

    Departures:
        - The main paper is not public; the personal models are our reading of the supplement.
        - The authors' learning rate decays: give --lr-decay 0.999.

    Options:
        gamma: how much harm to others a personal model may do: from 0, no harm to anyone to first order, which is the
            row of the paper's tables without a gamma, to 1, all the harm that the client's own gradient does
        base: personal models start from the new global model, or from the old one that gradients were taken at
    """

    gamma: Share = 0.0
    base: Literal["new", "old"] = "new"

    def own_rule(self) -> Rule:
        return FairDescent()

    def personal(self, client: Client, received: FedPGMessage) -> Tensor:
        self.assemble(client, received.theta if received.personal is None else received.personal)
        return client.model.read()

    def send(self, server: Server, cid: int) -> FedPGMessage:
        return FedPGMessage(theta=server.theta, personal=server.store.get(f"personal/{cid}"))

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        old, size = server.theta, server.layout.size
        combined = server.aggregate(replies)
        server.theta = combined.theta
        ratio = self.ratio(server, replies, combined.outcome, server.theta - old)
        if ratio != 1:
            server.theta[:size] = torch.lerp(old[:size], server.theta[:size], ratio)

        updates = combined.outcome.updates  # those of absent clients come last
        protected = protected_directions(updates.gram, self.gamma, count=len(replies))
        server.record.method["protection"] = protected.residual
        start = server.theta if self.base == "new" else torch.cat([old[:size], server.theta[size:]])
        for cid, direction in zip(sorted(replies), updates.mix(protected.coefficients), strict=True):
            mine = start.clone()
            mine[:size].add_(direction, alpha=ratio)
            server.store[f"personal/{cid}"] = mine

    def ratio(self, server: Server, replies: dict[int, Reply], outcome: Outcome, step: Tensor) -> float:
        """The size of the step as a multiple of the learning rate's."""
        return 1.0
