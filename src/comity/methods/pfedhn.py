from itertools import pairwise

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload, Server
from comity.rules import Mean, Rule


class PFedHN(Method):
    """The server learns a network that makes each client's model from a few numbers of its own.

    Shamsian et al., ICML 2021, Algorithm 1: theta_i = h(v_i; phi); the client trains it to theta~_i; with
    Δ_i = theta_i − theta~_i the server steps phi by Jᵀ_phi Δ_i and v_i by Jᵀ_v Δ_i, the gradients through h. Of several
    clients a round the gradients for phi are averaged, while v_i has one alone and an absent client's v_i rests (the
    authors have one client a round; in their code momentum and decay move every v). A client uses theta_i as it is
    made. Departure: the last layer's bias starts as the common initial model; the authors' starts at random, and so
    would BatchNorm's scales, near 0. That layer makes all tensors at once, the same as a layer for each; it holds
    ``width`` numbers for each of the model's. The authors' server_lr of 0.01 is for a step a client, thousands of
    them; here a step counts for all clients of a round. Gradients are averaged, not models: no rule has a place.

    Options:
        embedding: numbers v_i of a client, or none for 1 + clients/4
        width: width of the hypernetwork
        hidden: its hidden layers after the first
        server_lr: learning rate of phi and v; the authors' 0.01 with one client a round
        server_momentum: momentum of phi and v
        server_weight_decay: weight decay of phi and v
        server_clip: largest norm of their gradient; 0 for no limit
        local_head: pFedHN-PC: the hypernetwork makes the body alone, each client keeps a head of its own
    """

    embedding: int | None = None
    width: int = 100
    hidden: int = 3
    server_lr: float = 0.1
    server_momentum: float = 0.9
    server_weight_decay: float = 0.001
    server_clip: float = 50.0
    local_head: bool = False

    def __post_init__(self) -> None:
        if self.local_head:
            self.shared = ("body",)  # type: ignore[misc]

    def check(self) -> None:
        for name, least in (("embedding", 1), ("width", 1), ("hidden", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ComityError(f"method.{name} must be at least {least}, got {value}")
        for name in ("server_weight_decay", "server_clip"):
            if getattr(self, name) < 0:
                raise ComityError(f"method.{name} must be at least 0, got {getattr(self, name)}")
        if self.server_lr <= 0:
            raise ComityError(f"method.server_lr must be above 0, got {self.server_lr}")
        if not 0 <= self.server_momentum < 1:
            raise ComityError(f"method.server_momentum must be at least 0 and below 1, got {self.server_momentum}")

    def own_rule(self) -> Rule:
        return Mean()  # of gradients: the hypernetwork stands in for a rule

    def general(self, client: Client, received: Payload) -> None:
        """Each client has its own."""

    def begin(self, server: Server) -> None:
        store, random, clients = server.store, server.random("hypernetwork"), len(server.clients)
        sizes = [self.embedding or 1 + clients // 4, *[self.width] * (1 + self.hidden), server.layout.size]
        store["v"] = torch.randn(clients, sizes[0], generator=random)
        for k, (n, m) in enumerate(pairwise(sizes)):
            bound = n**-0.5
            store[f"phi/{k}/weight"] = torch.empty(n, m).uniform_(-bound, bound, generator=random)
            store[f"phi/{k}/bias"] = torch.empty(m).uniform_(-bound, bound, generator=random)
        store[f"phi/{k}/bias"] = server.theta[: server.layout.size].clone()
        store |= {f"momentum/{name}": torch.zeros_like(tensor) for name, tensor in store.items()}
        store["models"] = _make(self._phi(server), store["v"])

    def _phi(self, server: Server, room: str = "") -> list[Tensor]:
        """Weight and bias of each layer in turn, or their momentum."""
        return [server.store[f"{room}phi/{k}/{what}"] for k in range(self.hidden + 2) for what in ("weight", "bias")]

    def send(self, server: Server, cid: int) -> Payload:
        return {"theta": torch.cat([server.store["models"][cid], server.theta[server.layout.size :]])}

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        store, cids, size = server.store, sorted(replies), server.layout.size
        trained = torch.stack([replies[cid]["theta"] for cid in cids])
        weights = [*self._phi(server), store["v"][cids]]
        leaves = [weight.detach().requires_grad_() for weight in weights]
        made = _make(leaves[:-1], leaves[-1])
        grads = list(torch.autograd.grad(made, leaves, store["models"][cids] - trained[:, :size]))
        torch._foreach_div_(grads[:-1], len(cids))
        if self.server_clip:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            torch._foreach_mul_(grads, (self.server_clip / norm).clamp(max=1.0))

        speed = [*self._phi(server, "momentum/"), store["momentum/v"][cids]]
        torch._foreach_add_(grads, weights, alpha=self.server_weight_decay)
        torch._foreach_mul_(speed, self.server_momentum)
        torch._foreach_add_(speed, grads)
        torch._foreach_add_(weights, speed, alpha=-self.server_lr)
        store["v"][cids], store["momentum/v"][cids] = weights[-1], speed[-1]
        store["models"] = _make(self._phi(server), store["v"])
        sizes = torch.tensor([float(replies[cid]["size"]) for cid in cids])
        server.theta = torch.cat([server.theta[:size], (sizes / sizes.sum()) @ trained[:, size:]])  # the buffers


def _make(phi: list[Tensor], v: Tensor) -> Tensor:
    """h(v; phi): the models of the clients with embeddings ``v``, a row each. No ReLU before the last layer."""
    x = torch.addmm(phi[1], v, phi[0])
    for weight, bias in zip(phi[2:-2:2], phi[3:-2:2], strict=True):
        x = torch.addmm(bias, x.relu(), weight)
    return torch.addmm(phi[-1], x, phi[-2])
