from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor

from comity._options import Count, CountOrZero, NonNegative, Positive, Range
from comity.methods._method import Message, Method, Reply, Server

MOST_JOINT_STEPS = 20  # maximum number of clients whose steps are joined


class PFedHN(Method):
    """Train a hypernetwork on the server that generates each client's model from an embedding.

    Use: when there are many similar clients and the model is small.

    Paper: Shamsian et al., ICML 2021, Algorithm 1.

    Equation: The hypernetwork H generates theta_i = H(v_i; phi) from the client's embedding v_i, and the client trains
    this model to theta'_i. With Δ_i = theta_i − theta'_i the server takes gradient steps on phi, by Jᵀ_phi Δ_i, and on
    v_i, by Jᵀ_v Δ_i, where J are the Jacobians of H. A client uses the generated theta_i. Gradients are averaged, not
    models, so no rule applies.

    Departures:
        - The authors train one client per round. Here a round makes one step of the hypernetwork's weights, with the
          mean gradient of the round's N clients and the learning rate server_lr · min(N, 20). So this step is as long
          as min(N, 20) single steps; the limit 20 prevents overshooting. Each embedding takes its own step.
        - The embeddings of absent clients do not change. In the authors' code, momentum and weight decay change them.
        - The bias of the last layer starts as the parameters of the common initial model; in the authors' code it
          starts at random.
        - One last layer generates all tensors of the model. The authors have one last layer per tensor, which is
          equivalent. The last layer has ``width`` weights per parameter of the model.

    Options:
        embedding: size of a client's embedding (none = 1 + clients/4)
        width: width of the hypernetwork
        hidden: number of the hypernetwork's hidden layers, not counting the first
        server_lr: learning rate of hypernetwork and embeddings, for a round with one client
        server_momentum: momentum of hypernetwork and embeddings
        server_weight_decay: weight decay of hypernetwork and embeddings
        server_clip: maximum norm of the gradient of a round (0 = no limit)
        local_head: generate only the body and let each client keep its own head (pFedHN-PC)
    """

    embedding: Count | None = None
    width: Count = 100
    hidden: CountOrZero = 3
    server_lr: Positive = 0.01
    server_momentum: Annotated[float, Range(least=0, below=1)] = 0.9
    server_weight_decay: NonNegative = 0.001
    server_clip: NonNegative = 50.0
    local_head: bool = False

    mixes_models = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_head:
            self.shared = ("body",)  # type: ignore[misc]

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
        """Weight and bias of each layer in order, or their momentum."""
        return [server.store[f"{room}phi/{k}/{what}"] for k in range(self.hidden + 2) for what in ("weight", "bias")]

    def send(self, server: Server, cid: int) -> Message:
        return Message(theta=torch.cat([server.store["models"][cid], server.theta[server.layout.size :]]))

    def welcome(self, server: Server, cid: int, last: Reply | None) -> Message:
        """The hypernetwork is fixed; a newcomer's v starts as the mean of all and takes its own steps."""
        store, size, name = server.store, server.layout.size, f"newcomer/{cid}"
        v = store.get(name, store["v"].mean(0, keepdim=True)).requires_grad_()
        made = _make(self._phi(server), v)
        if last is not None:
            (slope,) = torch.autograd.grad(made, v, made.detach() - last.theta[None, :size])
            v = v - self.server_lr * slope
            made = _make(self._phi(server), v)
        store[name] = v.detach()
        return Message(theta=torch.cat([made.detach()[0], server.theta[size:]]))

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        store, cids, size = server.store, sorted(replies), server.layout.size
        trained = torch.stack([replies[cid].theta for cid in cids])
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
        torch._foreach_add_(weights[:-1], speed[:-1], alpha=-self.server_lr * min(len(cids), MOST_JOINT_STEPS))
        weights[-1].add_(speed[-1], alpha=-self.server_lr)
        store["v"][cids], store["momentum/v"][cids] = weights[-1], speed[-1]
        store["models"] = _make(self._phi(server), store["v"])
        sizes = torch.tensor([float(replies[cid].size) for cid in cids])
        server.theta = torch.cat([server.theta[:size], (sizes / sizes.sum()) @ trained[:, size:]])  # buffers


def _make(phi: list[Tensor], v: Tensor) -> Tensor:
    """h(v; phi): the models for embeddings ``v``, one per row. No ReLU before the last layer."""
    x = torch.addmm(phi[1], v, phi[0])
    for weight, bias in zip(phi[2:-2:2], phi[3:-2:2], strict=True):
        x = torch.addmm(bias, x.relu(), weight)
    return torch.addmm(phi[-1], x, phi[-2])
