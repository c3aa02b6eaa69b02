from collections.abc import Iterator
from itertools import chain, cycle, islice
from typing import Literal

import torch
from torch import Tensor

from comity._options import Count, NonNegative, Positive
from comity.methods._method import Client, Message, Method, Reply
from comity.nn import Model

Batch = tuple[Tensor, Tensor]
LARGEST = 512  # samples per pass of a full gradient


class PerFedAvg(Method):
    """Train a global model from which one gradient step on a client's data gives a good personal model (MAML).

    Use: when clients, or newcomers, can take a few gradient steps before they use the model.

    Paper: Fallah et al., NeurIPS 2020, Algorithm 1.

    Equation: Each step uses three batches B, B' and B'': w̃ = w − alpha ∇f(w; B), then w ← w − beta (I − alpha ∇²f(w;
    B'')) ∇f(w̃; B').

    ``hessian="first-order"`` drops the Hessian. ``hessian="hessian-free"`` approximates its product with g = ∇f(w̃; B')
    by (∇f(w + delta g; B'') − ∇f(w − delta g; B'')) / (2 delta). The personal model is w − alpha ∇f(w), with the
    gradient over all of the client's training data.

    Departures:
        - Steps reuse batches: the second batch of a step is the first batch of the next step. So a round has as many
          steps as with FedAvg. New batches for each step would leave only a half or a third of the steps.

    Options:
        hessian: treatment of the second derivative: left out, or approximated by differences of gradients
        alpha: learning rate of the step to the personal model (none = the run's --lr); the paper has 0.01
        beta: learning rate of the global model (none = the run's --lr); the paper has 0.001, with a thousand rounds
        delta: step length of the gradient differences
        personal_steps: gradient steps from the global model to the personal one
    """

    hessian: Literal["first-order", "hessian-free"] = "first-order"
    alpha: NonNegative | None = None
    beta: Positive | None = None
    delta: Positive = 1e-3
    personal_steps: Count = 1

    own_steps = True

    def fit(self, client: Client, received: Message) -> Reply:
        self.load(client, received)
        alpha, losses = self._alpha(client), []
        with client.model.training() as w, client.optimiser(w, self.beta) as steps:
            for batches in self.groups(client):
                grads, loss = self.meta_gradient(client.model, w, alpha, batches)
                steps.step(grads)
                losses.append(loss)
        client.train_loss = float(torch.stack(losses).mean()) if losses else client.train_loss
        reply = self.reply(client)
        self.adapt(client)
        return reply

    def groups(self, client: Client) -> Iterator[list[Batch]]:
        """The batches of each step: one and its successors; the first batches follow the last."""
        count, batches = 2 if self.hessian == "first-order" else 3, client.batches()
        first = list(islice(batches, count))
        group = list(islice(cycle(first), count))
        for batch in chain(batches, first):
            yield group
            group = [*group[1:], batch]

    @torch.no_grad()
    def meta_gradient(
        self, model: Model, params: list[Tensor], alpha: float, batches: list[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        """(I − alpha ∇²f(w; B'')) ∇f(w̃; B') at the parameters w, which stay unchanged, and f(w̃; B')."""
        w, gradients = [param.clone() for param in params], model.gradients()

        def gradients_at(step: float, direction: list[Tensor], batch: Batch) -> tuple[Tensor, list[Tensor]]:
            torch._foreach_copy_(params, torch._foreach_add(w, direction, alpha=step))
            return gradients(*batch)

        _, inner = gradients(*batches[0])
        loss, outer = gradients_at(-alpha, inner, batches[1])
        if self.hessian == "hessian-free":
            _, ahead = gradients_at(self.delta, outer, batches[2])
            _, behind = gradients_at(-self.delta, outer, batches[2])
            curvature = torch._foreach_sub(ahead, behind)
            outer = list(torch._foreach_add(outer, curvature, alpha=-alpha / (2 * self.delta)))
        torch._foreach_copy_(params, w)
        return outer, loss

    def adapt(self, client: Client) -> None:
        """Step from the global model to the client's own: w − alpha ∇f(w) on all of its training data."""
        train, alpha = client.data.train, self._alpha(client)
        pieces, gradients = -(-len(train) // LARGEST), client.model.gradients()
        with client.model.training() as params:
            for _ in range(self.personal_steps):
                step = [torch.zeros_like(param) for param in params]
                for x, y in zip(train.x.tensor_split(pieces), train.y.tensor_split(pieces), strict=True):
                    torch._foreach_add_(step, gradients(x, y)[1], alpha=alpha * len(y) / len(train))
                with torch.no_grad():
                    torch._foreach_sub_(params, step)

    def personal(self, client: Client, received: Message) -> Tensor:
        self.load(client, received)
        self.adapt(client)
        return client.model.read()

    def _alpha(self, client: Client) -> float:
        return client.lr if self.alpha is None else self.alpha
