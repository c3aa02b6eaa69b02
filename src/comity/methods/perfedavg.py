from collections.abc import Iterator
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from comity._errors import ComityError
from comity.methods._method import Client, Method, Payload
from comity.nn import Model

Batch = tuple[Tensor, Tensor]
LARGEST = 512
"""Samples in one pass of a full gradient."""


class PerFedAvg(Method):
    """Learn together a model from which one gradient step on a client's own data goes far.

    Fallah et al., NeurIPS 2020, Algorithm 1. On batches B, B', B'': w̃ = w − alpha ∇f(w; B), then
    w ← w − beta (I − alpha ∇²f(w; B'')) ∇f(w̃; B'). First-order leaves the Hessian out; hessian-free has its product
    with g = ∇f(w̃; B') from (∇f(w + delta g; B'') − ∇f(w − delta g; B'')) / (2 delta). The batches of a step follow one
    another in the client's epoch, so that a round goes over the data as often as in FedAvg and makes a half (a third)
    of its steps; a last group that falls short uses its batches again. The personal model takes full gradient steps
    (public code: one step on one batch). The paper has alpha 0.01 and beta 0.001 over a thousand rounds; here both are
    the run's rate unless told.

    Options:
        hessian: what is made of the second derivative: nothing, or differences of gradients
        alpha: rate of the step to the personal model, or none for the run's own learning rate
        beta: rate of the common model's step, or none for the run's own learning rate
        delta: how far the differences of gradients reach
        personal_steps: gradient steps from the common model to a client's own
    """

    hessian: Literal["first-order", "hessian-free"] = "first-order"
    alpha: float | None = None
    beta: float | None = None
    delta: float = 1e-3
    personal_steps: int = 1

    def check(self) -> None:
        if self.alpha is not None and self.alpha < 0:
            raise ComityError(f"method.alpha must be at least 0, got {self.alpha}")
        if self.beta is not None and self.beta <= 0:
            raise ComityError(f"method.beta must be above 0, got {self.beta}")
        if self.delta <= 0:
            raise ComityError(f"method.delta must be above 0, got {self.delta}")
        if self.personal_steps < 1:
            raise ComityError(f"method.personal_steps must be at least 1, got {self.personal_steps}")

    def fit(self, client: Client, received: Payload) -> Payload:
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
        """The batches of each step."""
        count = 2 if self.hessian == "first-order" else 3
        batches = client.batches(client.training.epochs)
        while group := list(islice(batches, count)):
            yield (group * count)[:count]

    @torch.no_grad()
    def meta_gradient(
        self, model: Model, params: list[Tensor], alpha: float, batches: list[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        """(I − alpha ∇²f(w; B'')) ∇f(w̃; B') at the parameters w, which it leaves as they are, and f(w̃; B')."""
        w = [param.clone() for param in params]

        def gradient(batch: Batch) -> tuple[list[Tensor], Tensor]:
            with torch.enable_grad():
                loss = model.loss(*batch)
                return list(torch.autograd.grad(loss, params)), loss.detach()

        def gradient_at(step: float, direction: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
            torch._foreach_copy_(params, torch._foreach_add(w, direction, alpha=step))
            return gradient(batch)

        inner, _ = gradient(batches[0])
        outer, loss = gradient_at(-alpha, inner, batches[1])
        if self.hessian == "hessian-free":
            ahead, _ = gradient_at(self.delta, outer, batches[2])
            behind, _ = gradient_at(-self.delta, outer, batches[2])
            curvature = torch._foreach_sub(ahead, behind)
            outer = list(torch._foreach_add(outer, curvature, alpha=-alpha / (2 * self.delta)))
        torch._foreach_copy_(params, w)
        return outer, loss

    def adapt(self, client: Client) -> None:
        """From the common model to the client's own: w − alpha ∇f(w) on all of its training data."""
        train, alpha = client.data.train, self._alpha(client)
        pieces = -(-len(train) // LARGEST)
        with client.model.training() as params:
            for _ in range(self.personal_steps):
                step = [torch.zeros_like(param) for param in params]
                for x, y in zip(train.x.tensor_split(pieces), train.y.tensor_split(pieces), strict=True):
                    grads = torch.autograd.grad(client.model.loss(x, y), params)
                    torch._foreach_add_(step, grads, alpha=alpha * len(y) / len(train))
                with torch.no_grad():
                    torch._foreach_sub_(params, step)

    def personal(self, client: Client, received: Payload) -> Tensor:
        self.load(client, received)
        self.adapt(client)
        return client.model.read()

    def _alpha(self, client: Client) -> float:
        return client.lr if self.alpha is None else self.alpha
