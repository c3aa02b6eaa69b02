import math
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from comity._options import CountOrZero, Range
from comity.methods._method import Client, Payload, Question, Reply, Server, verb
from comity.methods.fedpg import FedPG, FedPGMessage
from comity.rules import Outcome, evening


class Trial(Question):
    ratio: float  # step to try relative to the step of the learning rate
    direction: Tensor | None = None  # the step of the learning rate; sent with the first trial only


class TrialReply(Payload):
    loss: float


class SFedPG(FedPG):
    """FedPG with a line search: the largest step that lowers every participating client's loss and improves fairness.

    Use: instead of FedPG, when a fixed learning rate is too large in some rounds and too small in others.

    Paper: "Preserving Global Performance in Personalized Federated Learning", ICCV submission, supplement, Algorithm 1.

    Equation: As FedPG, but a line search chooses the length of the step. The first length tried is 2^s times the
    learning rate, or the learning rate itself if a client of the previous round is absent now. Then lengths are halved,
    down to (2^−s)/σ times the learning rate, where σ is FairDescent's length ratio.

    The search takes the first step to a model ω' that meets Armijo's conditions: L_i(ω) − L_i(ω') ≥ −beta η' g_i·d for
    every online client, with η' the step length, and the same for F. If no step meets them, it takes the largest step
    that lowers the mean loss. If no step lowers it, it takes the step with the lowest mean loss.

    The server sends the direction once, then only step lengths; clients answer with losses.

    Departures:
        - g_i is the pseudo-gradient as client i sends it. It is not rescaled.

    Options:
        s: the search starts with steps of 2^s times the learning rate
        beta: share of the predicted improvement that a step must reach
    """

    s: CountOrZero = 1
    beta: Annotated[float, Range(least=0, below=1)] = 1e-4

    def fit(self, client: Client, received: FedPGMessage) -> Reply:
        client.keep["origin"] = received.theta
        return super().fit(client, received)

    @verb
    def trial(self, client: Client, received: Trial) -> TrialReply:
        """The training loss after a step of this length."""
        if received.direction is not None:
            client.keep["direction"] = received.direction
        self.assemble(client, client.keep["origin"] + received.ratio * client.keep["direction"])
        return TrialReply(loss=client.loss())

    def ratio(self, server: Server, replies: dict[int, Reply], outcome: Outcome, step: Tensor) -> float:
        cids = sorted(replies)
        before, online = server.store.get("online"), torch.tensor(cids)
        server.store["online"] = online
        sigma = float(outcome.notes["sigma"][0])
        if sigma == 0:  # no direction helps all clients
            return 1.0
        losses = torch.tensor([replies[cid].loss for cid in cids], dtype=torch.float64)
        # −η g_i·d for a step at the learning rate η: with Δ_i = −η g_i it is Δ_i·step / η
        promised = (outcome.updates.gram @ outcome.coefficients[0])[: len(cids)] / server.lr
        fairness = torch.from_numpy(evening(losses.numpy())) @ promised

        largest = 2.0**self.s if before is None or bool(torch.isin(before, online).all()) else 1.0
        ratio = largest
        tried: list[tuple[float, float]] = []
        while ratio >= 2.0**-self.s / sigma or not tried:
            question = Trial(ratio=ratio, direction=None if tried else step)
            answers = server.ask(self.trial, dict.fromkeys(cids, question))
            after = torch.tensor([answers[cid].loss if cid in answers else math.nan for cid in cids]).double()
            after = torch.where(after.isnan(), losses, after)  # clients without an answer count as unchanged
            tried.append((ratio, float(after.mean())))
            helped = bool((losses - after >= self.beta * ratio * promised).all())
            if helped and unfairness(losses) - unfairness(after) >= self.beta * ratio * fairness:
                break
            ratio /= 2
        else:
            better = [trial for trial in tried if trial[1] < float(losses.mean())]
            ratio = better[0][0] if better else min(tried, key=lambda trial: trial[1])[0]
        server.record.method["step"] = {"ratio": ratio, "trials": len(tried)}
        return ratio


def unfairness(losses: Tensor) -> Tensor:
    """F: the negative cosine between the losses and equal losses."""
    return -F.cosine_similarity(losses, torch.ones_like(losses), dim=0)
