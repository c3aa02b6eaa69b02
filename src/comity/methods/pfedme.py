import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload, Server


class PFedMe(Method):
    """Every client's own model stays near the common one, which learns from where they went.

    T. Dinh et al., NeurIPS 2020, Algorithm 1. For each batch theta ≈ argmin f(theta) + lam/2 · ‖theta − w‖² by K steps
    theta ← theta − personal_lr (∇f(theta) + lam (theta − w)), which go on from the batch before, then
    w ← w − eta lam (w − theta). The server: w ← (1 − beta) w + beta · average. There are as many batches a round as in
    FedAvg (the paper: 20), each with K gradients. The authors' code adds 0.001 theta to the inner gradient: that is
    --weight_decay 0.001. A client's own model is theta as its last round left it; before its first, the common model.
    BatchNorm's statistics of w are those of theta, and a beta above 1 does not stretch them.

    Options:
        lam: strength of the pull of the own model towards the common one
        K: steps on each batch
        personal_lr: learning rate of those steps; the authors take 0.09 for MNIST, 0.01 for synthetic data
        eta: learning rate of the common model, or none for the run's own
        beta: how far the server goes towards the average; 0 leaves the common model where it is
    """

    lam: float = 15.0
    K: int = 5
    personal_lr: float = 0.09
    eta: float | None = None
    beta: float = 1.0

    def check(self) -> None:
        if self.K < 1:
            raise ComityError(f"method.K must be at least 1, got {self.K}")
        if self.beta < 0:
            raise ComityError(f"method.beta must be at least 0, got {self.beta}")
        for name in ("lam", "personal_lr", "eta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ComityError(f"method.{name} must be above 0, got {value}")

    def fit(self, client: Client, received: Payload) -> Payload:
        self.load(client, received)
        model, losses = client.model, []
        eta = client.lr if self.eta is None else self.eta
        with model.training() as theta, client.optimiser(theta, self.personal_lr) as steps:
            w = [param.detach().clone() for param in theta]
            for x, y in client.batches(client.training.epochs):
                for _ in range(self.K):
                    loss = model.loss(x, y)
                    grads = list(torch.autograd.grad(loss, theta))
                    with torch.no_grad():
                        torch._foreach_add_(grads, torch._foreach_sub(theta, w), alpha=self.lam)
                    steps.step(grads)
                losses.append(loss.detach())
                with torch.no_grad():
                    torch._foreach_sub_(w, torch._foreach_sub(w, theta), alpha=eta * self.lam)
        client.train_loss = float(torch.stack(losses).mean()) if losses else client.train_loss
        client.keep["theta"] = model.read()
        with torch.no_grad():
            torch._foreach_copy_(theta, w)
        reply = self.reply(client)
        model.write(client.keep["theta"])
        return reply

    def personal(self, client: Client, received: Payload) -> Tensor:
        return client.keep["theta"] if "theta" in client.keep else super().personal(client, received)

    def merge(self, server: Server, replies: dict[int, Payload]) -> None:
        old, size = server.theta, server.layout.size
        super().merge(server, replies)
        new = server.theta
        server.theta = torch.cat(
            [old[:size].lerp(new[:size], self.beta), old[size:].lerp(new[size:], min(self.beta, 1.0))]
        )
