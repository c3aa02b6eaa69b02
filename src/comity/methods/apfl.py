import copy

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload


class APFL(Method):
    """A FedAvg model w, beside it an own one v, and what a client uses lies between them.

    Deng et al., 2020 (arXiv:2003.13461), Algorithm 1: v̄ = alpha v + (1 − alpha) w. At every step, all at old values,
    w ← w − lr ∇f(w) and v ← v − lr alpha ∇f(v̄), and at the first step of a round
    alpha ← alpha − lr ⟨v − w, ∇f(v̄)⟩, kept in [0, 1]. Common code takes v's gradient at v instead, moves alpha at every
    batch and overwrites v by v̄. BatchNorm's statistics are measured on v̄ itself, not mixed. alpha fixed at 1 is Local
    beside FedAvg.

    Options:
        alpha: share of the own model in the mixture, where it starts
        adaptive: whether each client learns its own alpha; otherwise it stays
    """

    alpha: float = 0.5
    adaptive: bool = True

    def check(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ComityError(f"method.alpha must be at least 0 and at most 1, got {self.alpha}")

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["v"] = client.model.read()
        client.keep["alpha"] = torch.tensor(self.alpha, dtype=torch.float64)

    def fit(self, client: Client, received: Payload) -> Payload:
        alpha, v = float(client.keep["alpha"]), client.keep["v"].clone()
        mixture = copy.deepcopy(client.model)
        mixture.write(self.personal(client, received))  # and the received model into client.model
        losses: list[Tensor] = []
        own = mixture.split(v)[: len(mixture.parameters())]  # views: to train them is to train v
        with (
            client.model.training() as w,
            mixture.training() as mixed,
            client.optimiser(w) as common_steps,
            client.optimiser(own) as own_steps,
        ):
            for x, y in client.batches(client.training.epochs):
                loss = mixture.loss(x, y)
                grads = list(torch.autograd.grad(loss, mixed))
                step = alpha
                if self.adaptive and not losses:
                    slope = sum(torch.sum((a - b).detach() * g) for a, b, g in zip(own, w, grads, strict=True))
                    step = min(max(alpha - client.lr * float(slope), 0.0), 1.0)
                common_steps.step(list(torch.autograd.grad(client.model.loss(x, y), w)))
                own_steps.step(list(torch._foreach_mul(grads, alpha)))
                alpha = step
                with torch.no_grad():
                    between = torch._foreach_add(torch._foreach_mul(own, alpha), torch._foreach_mul(w, 1 - alpha))
                    torch._foreach_copy_(mixed, between)
                losses.append(loss.detach())
        client.train_loss = float(torch.stack(losses).mean()) if losses else client.train_loss
        v[len(v) - mixture.size("buffers") :] = mixture.read("buffers")
        client.keep |= {"v": v, "alpha": torch.tensor(alpha, dtype=torch.float64)}
        reply = self.reply(client)
        client.model.write(mixture.read())
        return reply

    def personal(self, client: Client, received: Payload) -> Tensor:
        self.load(client, received)
        v, alpha, size = client.keep["v"], float(client.keep["alpha"]), client.model.layout().size
        return torch.cat([alpha * v[:size] + (1 - alpha) * client.model.read()[:size], v[size:]])
