from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from comity._options import CountOrZero, Positive
from comity.methods._messages import Message, Reply
from comity.methods._method import Client, Method, Server
from comity.methods._prototypes import class_means

PARTS = 10**9
"""Weights are integers that sum to about this number."""


class FisherReply(Reply):
    fisher: float  # trace of the empirical Fisher information of the fitted model


class FedAS(Method[Message, FisherReply]):
    """Share the body, keep a personal head. Align the received body, and weight clients by Fisher information.

    Use: when many clients take part only rarely.

    Paper: Yang, Huang and Ye, CVPR 2024.

    Equation: A client computes p_k, the mean feature of class k under the body of its last training. It first trains
    the received body to reproduce these features, by the loss Σ_k MSE(b(x), p_k) over the classes k of a batch. Then it
    trains body and head together. The server weights clients by the trace of their Fisher information, Σ ‖∇ log p(y |
    x)‖² over batches.

    Departures:
        - Alignment and weights follow PFLlib's code, except that each client aligns its own copy of the received body.
          In PFLlib all clients change the same body, one after another.
        - BatchNorm's statistics are averaged with the same weights as the body.

    Options:
        align_epochs: epochs of the alignment (0 = off)
        align_lr: learning rate of the alignment
        weights: weight of a client: its Fisher information or its number of samples (with align_epochs=0, size equals
            FedPer)
    """

    align_epochs: CountOrZero = 1
    align_lr: Positive = 0.01
    weights: Literal["fisher", "size"] = "fisher"

    shared = ("body",)
    own_steps = True

    def start(self, client: Client) -> None:
        super().start(client)
        client.keep["own"] = client.model.read("shared")

    def load(self, client: Client, received: Message) -> None:
        prototypes = None
        if self.align_epochs:
            self.assemble(client, client.keep["own"])
            prototypes, _, _ = class_means(client)
        self.assemble(client, received.theta)
        if prototypes is not None:
            self.align(client, prototypes)

    def align(self, client: Client, prototypes: Tensor) -> None:
        """Train the body so that features approach the prototypes of their classes."""

        def loss(x: Tensor, y: Tensor) -> Tensor:
            away = (client.model.features(x) - prototypes[y]).square().mean(1)
            return (away / y.bincount(minlength=len(prototypes))[y]).sum()

        client.sgd(self.align_epochs, "body", loss=loss, lr=self.align_lr)

    def fit(self, client: Client, received: Message) -> FisherReply:
        self.load(client, received)
        client.sgd()
        client.keep["own"] = client.model.read("shared")
        return self.reply(client, fisher=self.fisher(client) if self.weights == "fisher" else 0.0)

    def fisher(self, client: Client) -> float:
        """Trace of the Fisher information, from one gradient per batch."""
        model, trace = client.model, torch.zeros(())
        model.net.eval()
        gradients = model.gradients()
        for x, y in client.batches(1):
            trace += torch.stack(torch._foreach_norm(gradients(x, y)[1])).square().sum()
        return float(trace)

    def objection(self, server: Server, cid: int, reply: FisherReply) -> str | None:
        return "sent a trace that is below 0" if reply.fisher < 0 else None

    def merge(self, server: Server, replies: dict[int, FisherReply]) -> None:
        total = sum(reply.fisher for reply in replies.values())
        if self.weights == "fisher" and total > 0:
            replies = {
                cid: replace(reply, size=max(1, round(PARTS * reply.fisher / total))) for cid, reply in replies.items()
            }
        server.theta = server.aggregate(replies).theta
