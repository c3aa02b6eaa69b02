from typing import Literal

import torch

from comity._options import Share
from comity.methods._method import Message, Method, Reply, Server


class FedU(Method):
    """Train a model per client, and move the models of related clients towards each other.

    Use: when you know, or assume, which clients are related.

    Paper: Dinh et al., IEEE TPDS 2022.

    Equation: The objective is min Σ_k f_k(w_k) + eta/2 · Σ_k,l a_kl ‖w_k − w_l‖², where a_kl says how strongly clients
    k and l are related. After local training w_k ← w_k − c Σ_l a_kl (w_k − w_l), over the clients l that replied in
    this round, with c = eta · lr · (local steps).

    Departures:
        - The option ``step`` replaces the product c Σ_l a_kl: w_k ← (1 − step) w_k + step · (mean of the neighbours,
          weighted by a_kl). In the paper c is eta · lr · (local steps), and models oscillate if c Σ_l a_kl exceeds 1.

    Options:
        step: how far a model moves towards the mean of its neighbours (0 = Local, 1 = to the mean); the authors'
            settings correspond to about 0.01
        graph: which clients are related: all equally, or at random, as the authors do for MNIST (weights from U(0, 1),
            those below 0.25 set to 0)
    """

    step: Share = 0.1
    graph: Literal["complete", "random"] = "complete"

    mixes_models = True

    def begin(self, server: Server) -> None:
        count = len(server.clients)
        A = torch.ones(count, count, dtype=torch.float64).triu(1)
        if self.graph == "random":
            drawn = torch.rand(count, count, generator=server.random("graph"), dtype=torch.float64)
            A = A * drawn * (drawn >= 0.25)
        server.store |= {"W": server.theta.repeat(count, 1), "A": A + A.mT}

    def send(self, server: Server, cid: int) -> Message:
        return Message(theta=server.store["W"][cid])

    def welcome(self, server: Server, cid: int, last: Reply | None) -> Message:
        """A newcomer is related to all clients equally."""
        mean = server.store["W"].mean(0)
        return Message(theta=mean if last is None else last.theta.lerp(mean, self.step))

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        cids = sorted(replies)
        W = torch.stack([replies[cid].theta for cid in cids])
        A = server.store["A"][cids][:, cids]
        degree = A.sum(1, keepdim=True)
        neighbours = (A / degree.clamp(min=torch.finfo(A.dtype).tiny)).to(W) @ W
        step = torch.where(degree > 0, self.step, 0.0).to(W)  # a model without neighbours does not move
        server.store["W"][cids] = W.lerp(neighbours, step)
