import torch
from torch import Tensor

from comity._options import Count, NonNegative, Positive
from comity.methods._method import Client, Message, Method, Reply, Server


class PFedMe(Method):
    """Train personal models that stay near the global model, and move the global model towards them (Moreau envelopes).

    Use: when you want strongly regularised personal models and can afford several gradient steps per batch.

    Paper: T. Dinh et al., NeurIPS 2020, Algorithm 1.

    Equation: For each batch, the client approximates theta = argmin f(theta) + lam/2 · ‖theta − w‖² by K steps theta ←
    theta − personal_lr (∇f(theta) + lam (theta − w)), starting from the theta of the previous batch. Then w ← w − eta
    lam (w − theta). The server sets w ← (1 − beta) w + beta · average of the clients' w. The personal model is theta
    after the client's last round, or the global model before its first.

    Departures:
        - A round has as many batches as with FedAvg; the paper has 20. Each batch takes K gradients.
        - The authors' code adds 0.001 theta to the gradient of theta. To do the same, give ``--weight-decay 0.001``.
        - BatchNorm's statistics come from the personal model. For them, a beta above 1 counts as 1.

    Options:
        lam: strength of the pull towards the global model
        K: gradient steps per batch
        personal_lr: learning rate of these steps, best below 1/lam; the authors take 0.01 for synthetic data and 0.09
            for MNIST
        eta: learning rate of the client's copy of the global model (none = the run's --lr)
        beta: how far the server moves the global model towards the average of the clients' copies (1 = to the average,
            0 = not at all)
    """

    lam: Positive = 15.0
    K: Count = 5
    personal_lr: Positive = 0.01
    eta: Positive | None = None
    beta: NonNegative = 1.0

    own_steps = True

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        model, losses = client.model, []
        eta = client.lr if self.eta is None else self.eta
        with model.training() as theta, client.optimiser(theta, self.personal_lr) as steps:
            w, gradients = [param.detach().clone() for param in theta], model.gradients()
            for x, y in client.batches():
                for _ in range(self.K):
                    loss, grads = gradients(x, y)
                    with torch.no_grad():
                        torch._foreach_add_(grads, torch._foreach_sub(theta, w), alpha=self.lam)
                    steps.step(grads)
                losses.append(loss)
                with torch.no_grad():
                    torch._foreach_sub_(w, torch._foreach_sub(w, theta), alpha=eta * self.lam)
        client.train_loss = float(torch.stack(losses).mean()) if losses else client.train_loss
        client.keep["theta"] = model.read()
        with torch.no_grad():
            torch._foreach_copy_(theta, w)
        reply = self.reply(client)
        model.write(client.keep["theta"])
        return reply

    def personal(self, client: Client, received: Message) -> Tensor:
        return client.keep["theta"] if "theta" in client.keep else super().personal(client, received)

    sums_only = True

    def merge(self, server: Server, replies: dict[int, Reply]) -> None:
        old, size = server.theta, server.layout.size
        super().merge(server, replies)
        new = server.theta
        server.theta = torch.cat(
            [old[:size].lerp(new[:size], self.beta), old[size:].lerp(new[size:], min(self.beta, 1.0))]
        )
