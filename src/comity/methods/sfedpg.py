import math

import torch
from torch import Tensor
from torch.nn import functional as F

from comity._errors import ComityError
from comity.methods._method import Client, Payload, Server
from comity.methods.fedpg import FedPG
from comity.rules import evening


class SFedPG(FedPG):
    """FedPG with a step size that clients agree on: the largest tried that helps each of them and fairness.

    The FedPG supplement's Algorithm 1. From 2^s times the learning rate (from the rate itself when somebody who was
    online the round before is not now) halved down to 2^−s/σ times, the first step ω' that meets Armijo's conditions,
    L_i(ω) − L_i(ω') ≥ −beta η' g_i·d for every online client and the same for F; else the largest that lowers the mean
    loss; else the one with the lowest. σ is how far FairDescent stretched its direction. The direction travels once,
    then step sizes and losses alone. g is the clients' pseudo-gradient as sent, not rescaled.

    Options:
        gamma: how much harm to others a personal model may do, 0 for none to 1 for all that its own gradient does
        base: personal models start from the new global model, or from the old one that gradients were taken at
        s: how many times the step size is doubled at first
        beta: share of the promised improvement that a step must bring
    """

    s: int = 1
    beta: float = 1e-4

    def check(self) -> None:
        super().check()
        if self.s < 0:
            raise ComityError(f"method.s must be at least 0, got {self.s}")
        if not 0 <= self.beta < 1:
            raise ComityError(f"method.beta must be at least 0 and below 1, got {self.beta}")

    def fit(self, client: Client, received: Payload) -> Payload:
        client.keep["origin"] = received["theta"]
        return super().fit(client, received)

    def trial(self, client: Client, received: Payload) -> Payload:
        """The training loss after a step of this size."""
        if "direction" in received:
            client.keep["direction"] = received["direction"]
        self.load(client, {"theta": client.keep["origin"] + received["ratio"] * client.keep["direction"]})
        return {"loss": client.loss()}

    def ratio(self, server: Server, replies: dict[int, Payload], step: Tensor) -> float:
        cids = sorted(replies)
        before, online = server.store.get("online"), torch.tensor(cids)
        server.store["online"] = online
        assert server.outcome is not None
        outcome, n = server.outcome, len(cids)
        sigma = float(outcome.notes["sigma"][0])
        if sigma == 0:  # no direction helps everybody
            return 1.0
        losses = torch.tensor([replies[cid]["loss"] for cid in cids], dtype=torch.float64)
        # −η g_i·d of a step at the learning rate η: with Δ_i = −η g_i it is Δ_i·step / η
        promised = (outcome.updates.gram @ outcome.coefficients[0])[:n] / server.lr
        fairness = torch.from_numpy(evening(losses.numpy())) @ promised

        largest = 2.0**self.s if before is None or bool(torch.isin(before, online).all()) else 1.0
        ratio = largest
        tried: list[tuple[float, float]] = []
        while ratio >= 2.0**-self.s / sigma or not tried:
            question = {"ratio": ratio} | ({} if tried else {"direction": step})
            answers = server.ask("trial", dict.fromkeys(cids, question))
            after = torch.tensor([answers[cid]["loss"] if cid in answers else math.nan for cid in cids]).double()
            after = torch.where(after.isnan(), losses, after)  # who does not answer has no say
            tried.append((ratio, float(after.mean())))
            helped = bool((losses - after >= self.beta * ratio * promised).all())
            if helped and unfairness(losses) - unfairness(after) >= self.beta * ratio * fairness:
                break
            ratio /= 2
        else:
            better = [trial for trial in tried if trial[1] < float(losses.mean())]
            ratio = better[0][0] if better else min(tried, key=lambda trial: trial[1])[0]
        server.record["step"] = {"ratio": ratio, "trials": len(tried)}
        return ratio


def unfairness(losses: Tensor) -> Tensor:
    """F: the negative cosine of the losses and equal ones."""
    return -F.cosine_similarity(losses, torch.ones_like(losses), dim=0)
