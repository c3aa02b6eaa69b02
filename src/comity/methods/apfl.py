import copy
from typing import Literal

import torch
from torch import Tensor

from comity._options import Share
from comity.methods._method import Client, Message, Method, Reply


class APFL(Method):
    """Each client uses a mixture of a FedAvg model w and a model v of its own.

    Paper: Deng et al., 2020 (arXiv:2003.13461), Algorithm 1.

    Equation: The client uses v̄ = alpha v + (1 − alpha) w. At every step, all at the old values, w ← w − lr ∇f(w) and
    v ← v − lr alpha ∇f(v̄). At the first step of a round alpha ← alpha − lr ⟨v − w, ∇f(v̄)⟩, kept in [0, 1].

    Departures:
        - Common code takes v's gradient at v instead, moves alpha at every batch and overwrites v by v̄. The paper does
          none of this, and neither does this class.
        - BatchNorm's statistics are measured on v̄ itself, not mixed.

    Options:
        alpha: share of the client's own model in the mixture at the start; fixed at 1 it is Local beside FedAvg
        adaptive: whether each client learns its own alpha; otherwise it stays as it is
        personal_model: what a client uses: v̄ with the newest w, or v̄ as local training left it
    """

    alpha: Share = 0.5
    adaptive: bool = True
    personal_model: Literal["received", "post_local"] = "received"

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["v"] = client.model.read()
        client.keep["alpha"] = torch.tensor(self.alpha, dtype=torch.float64)

    def fit(self, client: Client, received: Message) -> Reply:
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
            for x, y in client.batches():
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

    def personal(self, client: Client, received: Message) -> Tensor:
        self.load(client, received)
        v, alpha, size = client.keep["v"], float(client.keep["alpha"]), client.model.layout().size
        return torch.cat([alpha * v[:size] + (1 - alpha) * client.model.read()[:size], v[size:]])
