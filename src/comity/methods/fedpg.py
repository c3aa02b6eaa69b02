from typing import Literal

import torch
from torch import Tensor

from comity._options import Share
from comity.methods._method import Client, Message, Method, Reply, Server
from comity.rules import FairDescent, Outcome, Rule, protected_directions


class FedPGMessage(Message):
    personal: Tensor | None = None  # the client's personal model; None before its first reply


class FedPG(Method[FedPGMessage, Reply]):
    """Train a global model that improves for all clients, and personal models that work on other clients' data too.

    Use: when the clients' personal models must also work on other clients' data.

    Paper: "Preserving Global Performance in Personalized Federated Learning", ICCV submission, supplement A.1.

    Equation: The global model ω moves by the rule FairDescent. Its direction is the min-norm point of the gradients g_i
    of the online clients and of recently absent clients, and of the gradient of the fairness objective F = −cos(losses,
    1). Its length is that of the mean.

    A personal model is ω_i = ω + lr·d_i. With gamma 0, d_i is the direction nearest to the client's own −g_i that
    conflicts with no other known gradient. With a larger gamma, some conflict is allowed: g_j·d_i ≤ gamma · max(0,
    −g_j·g_i). If the step lr·d_i is longer than the global step, it is shortened to that length. Training never starts
    from a personal model. A client that has never taken part uses the global model.

    Departures:
        - This is a reconstruction, because neither the main paper nor the code of the method is public. The supplement
          says that the personal direction d_i must not conflict with other gradients, and its tables show how much
          gamma costs. How d_i is found, and its length, are our choices.
        - We infer the length of d_i from the supplement's Table 1, where gamma 1 costs 4 points of G-acc on
          Fashion-MNIST. If d_i is as long as five local epochs make it (``length="own"``), gamma 1 costs several times
          as much.
        - The authors' learning rate decays to 0.999^2000 = 0.135 of its first value. To do the same, give
          ``--lr-decay`` the value 0.135^(1/rounds). Then late personal models are nearer to the global one.

    Options:
        gamma: how much a personal model may harm other clients, to first order: 0 (not at all) to 1 (as much as the
            client's own gradient does)
        length: maximum length of a personal direction: that of the global step (global), or no limit (own)
        base: global model that personal models start from: the new one, or the old one, for which the gradients were
            computed
        least_descent: as in the rule FairDescent: leave the fairness term out of a step if it would leave less than
            this share of the common descent (0 = never, as in the supplement)
        rebuild: recompute absent clients' personal models in each round, from the newest global model and their last
            gradients; otherwise these models do not change
    """

    gamma: Share = 0.0
    length: Literal["global", "own"] = "global"
    base: Literal["new", "old"] = "new"
    least_descent: Share = 0.0
    rebuild: bool = False

    def own_rule(self) -> Rule:
        return FairDescent(least_descent=self.least_descent)

    def personal(self, client: Client, received: FedPGMessage) -> Tensor:
        self.assemble(client, received.theta if received.personal is None else received.personal)
        return client.model.read()

    def send(self, server: Server, cid: int) -> FedPGMessage:
        personal = server.store.get(f"personal/{cid}")
        if self.rebuild and personal is not None:
            personal = server.store["start"] + personal
        return FedPGMessage(theta=server.theta, personal=personal)

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        old, size = server.theta, server.layout.size
        combined = server.aggregate(replies)
        server.theta = combined.theta
        step = server.theta - old
        ratio = self.ratio(server, replies, combined.outcome, step)
        if ratio != 1:
            server.theta[:size] = torch.lerp(old[:size], server.theta[:size], ratio)

        updates = combined.outcome.updates  # those of absent clients come last
        count = len(updates) if self.rebuild else int((updates.ages == 0).sum())
        protected = protected_directions(updates.gram, self.gamma, count=count)
        server.record.method["protection"] = protected.residual
        start = server.theta if self.base == "new" else torch.cat([old[:size], server.theta[size:]])
        if self.rebuild:
            server.store["start"] = start
        for cid, direction in zip(updates.ids, updates.mix(protected.coefficients), strict=False):
            if self.length == "global":
                direction *= (step[:size].norm() / direction.norm().clamp(min=1e-30)).clamp(max=1.0)
            mine = torch.zeros_like(start) if self.rebuild else start.clone()
            mine[:size].add_(direction, alpha=ratio)
            server.store[f"personal/{cid}"] = mine

    def ratio(self, server: Server, replies: dict[int, Reply], outcome: Outcome, step: Tensor) -> float:
        """Length of the step relative to the learning rate's."""
        return 1.0
