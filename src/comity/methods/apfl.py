from typing import Literal

import torch
from torch import Tensor

from comity._options import Share
from comity.methods._method import Client, Message, Method, Reply
from comity.nn import Model

PULL = 0.02
"""Strength of alpha's pull towards 0 in PFLlib's form."""


class APFL(Method):
    """Mix a global and a personal model; each client learns the weight of its personal model.

    Use: when you expect the global model to help some clients and not others.

    Paper: Deng et al., 2020 (arXiv:2003.13461), Algorithm 1.

    Equation: The client uses the mixture v̄ = alpha v + (1 − alpha) w of its personal model v and the global model w.
    Each step sets w ← w − lr ∇f(w) and v ← v − lr alpha ∇f(v̄), both with the old values on the right. In the first
    step of a round, alpha ← alpha − lr ⟨v − w, ∇f(v̄)⟩, clipped to [0, 1].

    Departures:
        - ``form="pfllib"`` selects PFLlib's APFL, which is a different method. ConFREE's tables use it. Here v is the
          personal and w the global model; v is trained on its own: v ← v − lr ∇f(v). After every batch alpha ← alpha −
          lr (⟨v − w, alpha ∇f(v) + (1 − alpha) ∇f(w)⟩ + 0.02 alpha), clipped to [0, 1]. At the end of the round, alpha
          v + (1 − alpha) w replaces v, and the client uses this new v. PFLlib starts at alpha 1: give ``alpha=1``.
        - The mixture has BatchNorm statistics of its own, measured during training. They are not mixed from those of
          the two models.

    Options:
        form: the paper's algorithm, or PFLlib's
        alpha: initial weight of the personal model in the mixture; PFLlib starts at 1 (with alpha=1 and adaptive=false,
            a client uses the model of Local)
        adaptive: let each client learn its own alpha
        personal_model: model that a client uses: the mixture with the newest global model, or the mixture after its
            last local training (with form=pfllib, always the latter)
    """

    form: Literal["paper", "pfllib"] = "paper"
    alpha: Share = 0.5
    adaptive: bool = True
    personal_model: Literal["received", "post_local"] = "received"

    own_steps = True

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["v"] = client.model.read()
        client.keep["alpha"] = torch.tensor(self.alpha, dtype=torch.float64)

    def fit(self, client: Client, received: Message) -> Reply:
        return self._fit_like_pfllib(client, received) if self.form == "pfllib" else self._fit(client, received)

    def _fit(self, client: Client, received: Message) -> Reply:
        alpha, v = float(client.keep["alpha"]), client.keep["v"].clone()
        mixture = _second_model(client.model)
        mixture.write(self.personal(client, received))  # also writes the received model into client.model
        losses: list[Tensor] = []
        own = mixture.split(v)[: len(mixture.parameters())]  # views: training them trains v
        with (
            client.model.training() as w,
            mixture.training() as mixed,
            client.optimiser(w) as common_steps,
            client.optimiser(own) as own_steps,
        ):
            at_mixed, at_w = mixture.gradients(), client.model.gradients()
            for x, y in client.batches():
                loss, grads = at_mixed(x, y)
                step = alpha
                if self.adaptive and not losses:
                    slope = sum(torch.sum((a - b).detach() * g) for a, b, g in zip(own, w, grads, strict=True))
                    step = min(max(alpha - client.lr * float(slope), 0.0), 1.0)
                common_steps.step(at_w(x, y)[1])
                own_steps.step(list(torch._foreach_mul(grads, alpha)))
                alpha = step
                with torch.no_grad():
                    between = torch._foreach_add(torch._foreach_mul(own, alpha), torch._foreach_mul(w, 1 - alpha))
                    torch._foreach_copy_(mixed, between)
                losses.append(loss)
        client.train_loss = float(torch.stack(losses).mean()) if losses else client.train_loss
        v[len(v) - mixture.size("buffers") :] = mixture.read("buffers")
        client.keep |= {"v": v, "alpha": torch.tensor(alpha, dtype=torch.float64)}
        reply = self.reply(client)
        client.model.write(mixture.read())
        return reply

    def _fit_like_pfllib(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        alpha, losses = float(client.keep["alpha"]), list[Tensor]()
        own = _second_model(client.model)
        own.write(client.keep["v"])
        with (
            client.model.training() as w,
            own.training() as v,
            client.optimiser(w) as common_steps,
            client.optimiser(v) as own_steps,
        ):
            common, personal = client.model.gradients(), own.gradients()
            for x, y in client.batches():
                (_, at_w), (loss, at_v) = common(x, y), personal(x, y)
                between = torch._foreach_add(torch._foreach_mul(at_v, alpha), torch._foreach_mul(at_w, 1 - alpha))
                common_steps.step(at_w)
                own_steps.step(at_v)
                if self.adaptive:
                    slope = sum(torch.sum((a - b).detach() * g) for a, b, g in zip(v, w, between, strict=True))
                    alpha = min(max(alpha - client.lr * (float(slope) + PULL * alpha), 0.0), 1.0)
                losses.append(loss)
            with torch.no_grad():
                torch._foreach_copy_(
                    v, torch._foreach_add(torch._foreach_mul(v, alpha), torch._foreach_mul(w, 1 - alpha))
                )
        client.train_loss = float(torch.stack(losses).mean()) if losses else client.train_loss
        client.keep |= {"v": own.read(), "alpha": torch.tensor(alpha, dtype=torch.float64)}
        reply = self.reply(client)
        client.model.write(client.keep["v"])
        return reply

    def personal(self, client: Client, received: Message) -> Tensor:
        self.load(client, received)
        if self.form == "pfllib":
            return client.keep["v"]
        v, alpha, size = client.keep["v"], float(client.keep["alpha"]), client.model.layout().size
        return torch.cat([alpha * v[:size] + (1 - alpha) * client.model.read()[:size], v[size:]])


def _second_model(model: Model) -> Model:
    """A second model; its vector still has to be written."""
    model.twin.counters = model.counters
    return model.twin
